"""Writes the entry points the stub leaves out: each is there, as in a real library, and answers NOT_SUPPORTED."""

from __future__ import annotations

import re

DECLARED = re.compile(r"\bDECLDIR\s+(nvml\w+)\s*\(")
DEFINED = re.compile(r"^(?:nvmlReturn_t|const char \*)\s*(nvml\w+)\(", re.MULTILINE)
NOT_SUPPORTED = 3


def rest_of_library(header: str, stub: str) -> str:
    missing = sorted(set(DECLARED.findall(header)) - set(DEFINED.findall(stub)))
    return "".join(f"int {name}(void) {{ return {NOT_SUPPORTED}; }}\n" for name in missing)

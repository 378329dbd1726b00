"""SQL has names and its own files: `-- name: x` opens a statement, which runs to the next name."""

from __future__ import annotations

import os

_FOLDER = os.path.dirname(__file__)
_MARK = "-- name:"


def load(package_file: str) -> dict[str, str]:
    """The statements of a file beside this one, by name. What stands before the first name is commentary."""
    with open(os.path.join(_FOLDER, package_file), encoding="utf-8") as file:
        return parse(file.read())


def parse(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            name = line[len(_MARK) :].strip()
            if name in found:
                raise ValueError(f"two statements are named {name}")
            lines = found[name] = []
        else:
            lines.append(line)
    return {name: "\n".join(body).strip().removesuffix(";") for name, body in found.items()}

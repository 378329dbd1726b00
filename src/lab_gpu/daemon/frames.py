"""Frames between loop and doors: four bytes of length, then a JSON object. No asyncio here: the loop wants none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lab_gpu.core.errors import LabGpuError

Doc = dict[str, Any]
MOST_BYTES = 256 << 20
_HEAD_BYTES = 4


class BadFrame(ValueError):
    """The other side does not speak our language; the link is of no more use."""


def encode(doc: Mapping[str, Any]) -> bytes:
    # ASCII escapes keep bytes of a command line that are no UTF-8 as they came.
    body = json.dumps(doc, separators=(",", ":")).encode("ascii")
    if len(body) > MOST_BYTES:
        raise BadFrame(f"a frame of {len(body)} bytes is too long")
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


class Decoder:
    """Takes bytes as they come and gives the documents that are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._wanted = 0  # of the frame under way, its head included; 0: not yet known

    def feed(self, more: bytes) -> list[Doc]:
        self._bytes += more
        found = []
        while (body := self._next()) is not None:
            found.append(_document(body))
        return found

    def _next(self) -> bytes | None:
        if not self._wanted and len(self._bytes) >= _HEAD_BYTES:
            length = int.from_bytes(self._bytes[:_HEAD_BYTES], "big")
            if length > MOST_BYTES:
                raise BadFrame(f"a frame of {length} bytes is too long")
            self._wanted = _HEAD_BYTES + length
        if not self._wanted or len(self._bytes) < self._wanted:
            return None
        body = bytes(self._bytes[_HEAD_BYTES : self._wanted])
        del self._bytes[: self._wanted]
        self._wanted = 0
        return body


def _document(body: bytes) -> Doc:
    try:
        doc = json.loads(body)
    except ValueError as error:
        raise BadFrame(f"a frame is not JSON: {error}") from None
    if not isinstance(doc, dict):
        raise BadFrame("a frame is not a JSON object")
    return doc


def fault_doc(error: LabGpuError) -> Doc:
    """What the loop answers in place of `ok`."""
    return {"slug": error.slug, "text": str(error), "problems": list(error.problems)}

"""HTTP/1.1 as far as our client needs it, without I/O: the bytes of a question, the reading of an answer.

Written here because every HTTP library costs more to import than a whole `lab-gpu submit` may take.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Query = Mapping[str, str | int | float | bool | None]

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~,:@")


class HalfAnswer(ConnectionError):
    """The connection ended before the answer did."""


class NotHttp(Exception):
    """Whoever answered does not speak HTTP."""


def quoted(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())


def target(path: str, query: Query | None) -> str:
    """The path with its query; parameters that are None are left out, as are empty queries."""
    pairs = [
        f"{quoted(key)}={quoted(_word(value))}" for key, value in (query or {}).items() if value is not None
    ]
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def question(method: str, path: str, headers: Mapping[str, str], body: Any = None) -> bytes:
    """One whole request, which asks for the connection to be closed: each has one of its own."""
    lines = [f"{method} {path} HTTP/1.1", "Connection: close", "Accept: application/json"]
    content = b""
    if body is not None:
        from json import dumps

        content = dumps(body, separators=(",", ":")).encode()
        lines.append("Content-Type: application/json")
    if content or method != "GET":
        lines.append(f"Content-Length: {len(content)}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content


class Answer:
    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class AnswerReader:
    """Takes bytes as they come; `answer` is there once all are. Feeding nothing: the connection ended."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self._bytes = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._body_at = 0

    def feed(self, more: bytes) -> Answer | None:
        self._bytes += more
        if self._head is None:
            self._read_head()
        if self._head is not None:
            body = self._body(self._head[1], ended=not more)
            if body is not None:
                self.answer = Answer(*self._head, body)
        if self.answer is None and not more:
            raise HalfAnswer(f"{len(self._bytes)} bytes came")
        return self.answer

    def _read_head(self) -> None:
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            if self._bytes and not b"HTTP/".startswith(self._bytes[:5]):
                raise NotHttp(bytes(self._bytes[:40]).decode("latin-1"))
            return
        status, headers = _parsed_head(bytes(self._bytes[:end]))
        if 100 <= status < 200:  # an interim answer: the real one follows
            del self._bytes[: end + 4]
            self._read_head()
            return
        self._head, self._body_at = (status, headers), end + 4

    def _body(self, headers: dict[str, str], ended: bool) -> bytes | None:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return _unchunked(self._bytes, self._body_at)
        if "content-length" in headers:
            end = self._body_at + int(headers["content-length"])
            return bytes(self._bytes[self._body_at : end]) if len(self._bytes) >= end else None
        if self._head is not None and self._head[0] in (204, 304):
            return b""
        return bytes(self._bytes[self._body_at :]) if ended else None


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not words[0].startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
        raise NotHttp(first[:40])
    pairs = (line.partition(":") for line in rest)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _unchunked(raw: bytearray, at: int) -> bytes | None:
    parts: list[bytes] = []
    while True:
        line_end = raw.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(bytes(raw[at:line_end]).split(b";")[0], 16)
        begin, end = line_end + 2, line_end + 2 + size
        if len(raw) < end + 2:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(bytes(raw[begin:end]))
        at = end + 2

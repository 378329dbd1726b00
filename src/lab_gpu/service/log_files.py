"""A part of an attempt's log, by offset in bytes. Never more of the file is read than was asked for."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from lab_gpu.core.errors import Broken

_LONGEST_CHARACTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class LogPart:
    offset: int
    next: int
    size: int
    text: str


def read_part(path: str, offset: int, limit: int) -> LogPart:
    """A negative offset counts from the end. A file that is not there yet is an empty one."""
    try:
        # Somebody may have put a pipe or a device there: neither may keep us waiting.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return LogPart(0, 0, 0, "")
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable(path, "it is not a regular file")
        start = max(0, status.st_size + offset) if offset < 0 else min(offset, status.st_size)
        raw = os.pread(file, limit, start)
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    finally:
        os.close(file)
    at_end = start + len(raw) >= status.st_size
    whole = raw if at_end else raw[: _whole_characters(raw)]
    return LogPart(start, start + len(whole), status.st_size, whole.decode("utf-8", "replace"))


def _whole_characters(raw: bytes) -> int:
    """How many bytes end with a whole character, so that none is torn between two parts."""
    for back in range(1, min(_LONGEST_CHARACTER_BYTES, len(raw)) + 1):
        byte = raw[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # inside a character: its first byte is further back
        needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        torn = needed > back and len(raw) > back
        return len(raw) - back if torn else len(raw)
    return len(raw)


def _unreadable(path: str, why: str | None) -> Broken:
    return Broken(f"cannot read the log {path}: {why}; look at the file and its rights")

"""The master's own log may lie on the disk that is full: then a line is lost, and never the master."""

from __future__ import annotations

import io
import os


class OwnLog(io.TextIOBase):
    """What sys.stderr is in the master and its doors: each text is written at once, or left out."""

    encoding = "utf-8"

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        try:
            os.write(self._fd, text.encode(errors="backslashreplace"))
        except OSError:
            pass
        return len(text)

"""Where the bytes of one attempt's log come from: the file, or the master. Both know holes."""

from __future__ import annotations

import os

from lab_gpu.client.log_parts import Cut
from lab_gpu.core.errors import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from lab_gpu.client.transport import Api

    class Source(Protocol):
        def read(self, offset: int) -> tuple[bytes | Cut, int] | None:
            """The next bytes and where to go on; None where there is nothing more yet."""

        def extents(self) -> list[tuple[int, int]]:
            """The stretches that hold bytes, in order."""

        def stretch(self, start: int, end: int) -> bytes: ...

        def close(self) -> None: ...


BLOCK = 1 << 16
TAIL_LIMIT = 8 << 20  # a progress bar without line ends makes one line as long as the run


class FileSource:
    """A log on this machine. It stays the same file when it is renamed."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int) -> tuple[bytes | Cut, int] | None:
        size = os.fstat(self.fd).st_size
        if offset >= size:
            return None
        begin = self._data_after(offset, size)
        if begin > offset:
            return Cut(begin - offset), begin
        end = min(self._hole_after(offset, size), offset + BLOCK)
        content = os.pread(self.fd, end - offset, offset)
        return (content, offset + len(content)) if content else None

    def extents(self) -> list[tuple[int, int]]:
        size, at = os.fstat(self.fd).st_size, 0
        found: list[tuple[int, int]] = []
        while at < size:
            begin = self._data_after(at, size)
            at = self._hole_after(begin, size)
            if begin < at:
                found.append((begin, at))
        return found

    def stretch(self, start: int, end: int) -> bytes:
        return os.pread(self.fd, end - start, start)

    def _data_after(self, offset: int, size: int) -> int:
        try:
            return min(os.lseek(self.fd, offset, os.SEEK_DATA), size)
        except OSError as error:
            # ENXIO: a hole to the end. Anything else: this file system cannot tell, and all counts as bytes.
            return size if error.errno == 6 else offset

    def _hole_after(self, offset: int, size: int) -> int:
        try:
            return min(os.lseek(self.fd, offset, os.SEEK_HOLE), size)
        except OSError:
            return size

    def close(self) -> None:
        os.close(self.fd)


class MasterSource:
    """A log read through the master, for those who cannot open the file. Holes are leapt over."""

    def __init__(self, api: Api, task_id: int, attempt: int) -> None:
        self._api = api
        self._path = f"/api/v1/tasks/{task_id}/logs"
        self._attempt = attempt
        self._fetch(0, 1)  # raises NotFound where there is no log

    def read(self, offset: int) -> tuple[bytes | Cut, int] | None:
        content, following, size = self._fetch(offset, BLOCK)
        if not content:
            return None
        if _empty(content) and len(content) >= 4096:
            end = self._hole_end(following, size)
            return Cut(end - offset), end
        return content, following

    def extents(self) -> list[tuple[int, int]]:
        size = self._fetch(0, 1)[2]
        return [(0, size)] if size else []

    def stretch(self, start: int, end: int) -> bytes:
        return self._fetch(start, end - start)[0]

    def close(self) -> None:
        pass

    def _fetch(self, offset: int, limit: int) -> tuple[bytes, int, int]:
        query = {"attempt": self._attempt, "offset": offset, "limit": limit}
        part = self._api.ask("GET", self._path, query=query, patience_s=60)
        return part["text"].encode(), part["next"], part["size"]

    def _hole_end(self, start: int, size: int) -> int:
        """The first byte after the hole: doubling steps to get over it, then halving."""
        step, low = BLOCK, start
        while low + step < size and _empty(self._fetch(low + step, 64)[0]):
            low, step = low + step, step * 2
        high = min(low + step, size)
        while high - low > 64:
            middle = (low + high) // 2
            low, high = (middle, high) if _empty(self._fetch(middle, 64)[0]) else (low, middle)
        content = self._fetch(low, 128)[0]
        return low + len(content) - len(content.lstrip(b"\0"))


def _empty(content: bytes) -> bool:
    return not content.strip(b"\0")


def open_source(api: Api, task_id: int, attempt: int, path: str) -> Source | None:
    """The file itself where the master is on this machine and lets us read it. None: the log is gone."""
    if api.place.path is not None:
        try:
            return FileSource(path)
        except OSError:
            pass
    try:
        return MasterSource(api, task_id, attempt)
    except NotFound:
        return None


def tail_offset(source: Source, lines: int) -> tuple[int, int]:
    """Where the last `lines` lines begin, and how many there are: read from the end."""
    found, read, first = 0, 0, True
    for begin, end in reversed(source.extents()):
        at = end
        while at > begin:
            start = max(begin, at - BLOCK)
            block = source.stretch(start, at)
            if _empty(block) and block:
                return at, found + 1
            position = len(block)
            if first and block.endswith(b"\n"):
                position -= 1
            first = False
            while (position := block.rfind(b"\n", 0, position)) >= 0:
                found += 1
                if found == lines:
                    return start + position + 1, lines
            read, at = read + len(block), start
            if read >= TAIL_LIMIT:
                return at, found + 1
    return 0, found + (not first)

"""Keeps the logs of live attempts within their size: what is in the middle goes, head, tail and offsets stay.

The program goes on writing at the end; the hole reads as NUL bytes and takes no room.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable

BLOCK_BYTES = 4096
MIB = 1 << 20
FIRST_GUESS_BYTES_PER_S = 20 * MIB
SOONEST_S, LATEST_S = 5.0, 600.0
KEEP_SIZE, PUNCH_HOLE = 1, 2
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LogKeeper:
    """`live` names logs of running attempts; `limit_mib` 0 is no limit; `warn` gets at most one sentence."""

    def __init__(
        self,
        live: Callable[[], Iterable[str]],
        limit_mib: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._live, self._limit_mib, self._warn = live, limit_mib, warn
        self._sizes: dict[str, tuple[float, int]] = {}  # when last looked at, and how long it was
        self._warned = False

    def run_once(self, now: float) -> float | None:
        """When to look again; None: not before another attempt starts or the policy changes."""
        limit = self._limit_mib() * MIB
        due: list[float] = []
        seen: dict[str, tuple[float, int]] = {}
        for path in self._live() if limit else ():
            try:
                stat = os.stat(path)
                allocated = stat.st_blocks * 512
                if allocated > limit:
                    self._punch(path, stat.st_size, limit)
                    allocated = limit // 2
            except OSError:
                continue  # it was taken away, or what lies there now is no log
            seen[path] = (now, stat.st_size)
            due.append(now + self._wait_s(path, stat.st_size, limit - allocated, now))
        self._sizes = seen
        return min(due, default=None)

    def _wait_s(self, path: str, size: int, room: int, now: float) -> float:
        """Half the time in which it would fill its room at the speed it had."""
        at, before = self._sizes.get(path, (now, size))
        speed = (size - before) / (now - at) if now > at else FIRST_GUESS_BYTES_PER_S
        return min(LATEST_S, max(SOONEST_S, room / max(2 * speed, 1.0)))

    def _punch(self, path: str, size: int, limit: int) -> None:
        try:
            punch(path, limit // 4, size - limit // 4)
        except OSError as error:
            if not self._warned:
                self._warned = True
                why = "its file system cannot" if error.errno in _UNABLE else error.strerror
                self._warn(
                    f"cannot cut the middle out of the log {path}, which is over {limit // MIB} MiB: {why}; "
                    f"choose another log root, or raise log_max_mib"
                )


def punch(path: str, begin: int, end: int) -> None:
    """Whole blocks between the two offsets become a hole. Raises OSError where that cannot be."""
    begin = -(-begin // BLOCK_BYTES) * BLOCK_BYTES
    end = end // BLOCK_BYTES * BLOCK_BYTES
    if end <= begin:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDWR)
    try:
        mode = ctypes.c_int(PUNCH_HOLE | KEEP_SIZE)
        if libc.fallocate(fd, mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)

"""The lock of the claims directory: held for well under a millisecond, never waited for without end.

Any user of the host may take it, so any may also sit on it: whoever waits in vain says who does, and asks
only briefly from then on until it is free again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab_gpu.core.errors import Broken
from lab_gpu.probe.processes import UserNames, read_stat

WAIT_S = 5.0
WAIT_AGAIN_S = 0.1
LONGEST_PAUSE_S = 0.005
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class HostLock:
    def __init__(self) -> None:
        self._path = ""
        self._fd = -1
        self._stuck = False

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        self._take(path)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._path = -1, ""

    def _take(self, path: str) -> None:
        wait_s = WAIT_AGAIN_S if self._stuck else WAIT_S
        give_up_at, pause_s = time.monotonic() + wait_s, 0.00005
        while not self._try(path):
            if time.monotonic() >= give_up_at:
                self._stuck = True
                raise Broken(f"cannot reserve GPUs: {self._why_not(path, wait_s)}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        self._stuck = False

    def _try(self, path: str) -> bool:
        """Whether we hold it now, on the file of that name: somebody may have put another there."""
        if path != self._path or self._fd < 0:
            self.close()
            fd = _open_lock(path)
            if fd < 0:
                return False
            self._fd, self._path = fd, path
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if _is_file_at(self._fd, path):
            return True
        self.close()
        return False

    def _why_not(self, path: str, wait_s: float) -> str:
        if self._fd < 0:
            return f"{path} cannot be opened; remove it, or name another directory in LAB_GPU_CLAIMS_DIR"
        pid = holder_of(self._fd)
        stat_of = read_stat(pid) if pid else None
        if pid is None or stat_of is None:
            return f"somebody has held {path} for {wait_s:g} s; find and end that process (lslocks)"
        who = UserNames().of(stat_of.uid)
        return f"process {pid} of {who} has held {path} for {wait_s:g} s; end that process"


def holder_of(fd: int) -> int | None:
    """The pid that holds the lock of this open file, from the kernel's own list."""
    found = os.fstat(fd)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for words in map(str.split, locks):
                if len(words) >= 6 and words[1] == "FLOCK" and words[5] == file and words[4].isdigit():
                    return int(words[4]) or None
    except OSError:
        return None
    return None


def _open_lock(path: str) -> int:
    """-1: not now. Where it exists it is opened without O_CREAT, which the kernel refuses for other users' files
    in a sticky directory (fs.protected_regular)."""
    try:
        try:
            fd = os.open(path, _OPEN)
        except FileNotFoundError:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            os.fchmod(fd, 0o666)
    except OSError:
        return -1
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return -1


def _is_file_at(fd: int, path: str) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)

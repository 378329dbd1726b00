"""One cgroup per attempt, where a cgroup v2 folder was given to us: then a whole tree ends in one write.

Nothing is taken for granted: it must have `cgroup.kill`, let us make children, and be ours by delegation.
"""

from __future__ import annotations

import os
import time

from lab_gpu.engines import proc

PREFIX = "lab-gpu-"
LEFTOVER_S = 60.0
_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_DELEGATION_MARKS = ("trusted.delegate", "user.delegate")


class Cgroups:
    """`base` is the folder in which each attempt gets its own."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._emptying: set[str] = set()

    def make(self, uni_id: str) -> str | None:
        path = self.path(uni_id)
        try:
            os.mkdir(path)
        except OSError:
            return None
        return path

    def path(self, uni_id: str) -> str:
        return f"{self._base}/{PREFIX}{uni_id}"

    def pids(self, uni_id: str) -> tuple[int, ...]:
        text = proc.content(f"{self.path(uni_id)}/cgroup.procs", 1 << 20)
        return tuple(map(int, (text or b"").split()))

    def is_empty(self, uni_id: str) -> bool:
        """It is there and no process is in it; the dead that nobody has reaped do not count."""
        return proc.content(f"{self.path(uni_id)}/cgroup.procs", 64) == b""

    def kill(self, uni_id: str) -> bool:
        """False where there is no such cgroup."""
        try:
            with open(f"{self.path(uni_id)}/cgroup.kill", "wb", buffering=0) as order:
                order.write(b"1")
        except OSError:
            return False
        return True

    def remove(self, uni_id: str) -> None:
        """As soon as it is empty: now, or when the next one is removed."""
        self._emptying.add(self.path(uni_id))
        self._emptying = {path for path in self._emptying if not _removed(path)}

    def sweep(self) -> None:
        """Empty ones that a master before us left."""
        with os.scandir(self._base) as listing:
            ours = [entry.path for entry in listing if entry.name.startswith(PREFIX)]
        for path in ours:
            if _age_s(path) > LEFTOVER_S:
                _removed(path)


def _age_s(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:  # its own master was quicker
        return 0.0


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def find() -> Cgroups | None:
    for mount in _MOUNTS:
        base = f"{mount}{_own_path()}".rstrip("/")
        if os.path.exists(f"{mount}/cgroup.controllers") and _delegated(base) and _works(base):
            cgroups = Cgroups(base)
            cgroups.sweep()
            return cgroups
    return None


def _own_path() -> str:
    for line in (proc.content("/proc/self/cgroup") or b"").decode().splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _delegated(base: str) -> bool:
    """A user can write only where it was delegated; root can everywhere: there the unit must say it."""
    if os.geteuid() != 0 or not os.path.exists("/run/systemd/system"):
        return os.access(f"{base}/cgroup.procs", os.W_OK)
    return any(_mark(base, name) for name in _DELEGATION_MARKS)


def _mark(path: str, name: str) -> bool:
    try:
        return os.getxattr(path, name) == b"1"
    except OSError:
        return False


def _works(base: str) -> bool:
    trial = f"{base}/{PREFIX}trial-{os.getpid()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    works = os.path.exists(f"{trial}/cgroup.kill")
    _removed(trial)
    return works

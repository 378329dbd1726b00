"""Orphans of our attempts come to us instead of to init, so that they are found at once.

Only where the kernel lists a process's children: elsewhere they would come unknown, and stay unreaped.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Container

from lab_gpu.core.model import ProcessName
from lab_gpu.engines import proc

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    if children() is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children() -> set[int] | None:
    """Pids of this process's children. Read twice: the list may skip one while another ends."""
    first, second = _listed(), _listed()
    return None if first is None or second is None else first | second


def _listed() -> set[int] | None:
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        text = proc.content(f"/proc/self/task/{thread}/children", 1 << 20)
        if text is None and os.path.exists(f"/proc/self/task/{thread}"):
            return None
        pids.update(map(int, (text or b"").split()))
    return pids


def living_strays(mine: set[int], known: Container[int]) -> tuple[ProcessName, ...]:
    """Those of our children that nobody knows; the dead among them are reaped."""
    strays = []
    for pid in sorted(mine):
        now = proc.stat(pid) if pid not in known else None
        if now is None:
            continue
        if now.dead:
            reap(pid)
        else:
            strays.append(now.name)
    return tuple(strays)


def reap(pid: int) -> None:
    """No-op for one that lives or is not a child of ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def reap_group(group: int) -> bool:
    """A runner and what came to us out of its group. True: none of it is left to collect."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False

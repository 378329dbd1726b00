"""Who lives on this host and which attempt they belong to: looked at once per process, not once per question.

The inode of /proc/<pid> is a new one for every process: one listing shows who is new; only those are opened.
What was seen when a process was young (session, parent, environment) is kept: one that leaves its session or
cleans its environment later is still known for what it was.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from lab_gpu.core.model import ProcessName
from lab_gpu.engines import proc

UNI_ID = "LAB_GPU_UNI_ID"
# A process this young may be a fork that has not yet become its program: looked at again.
SETTLED_S = 1.0


@dataclass(slots=True)
class _Seen:
    inode: int
    name: ProcessName
    parent: int
    session: int
    uni_id: str | None
    settled: bool


class Census:
    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def members(self, uni_id: str, session: int | None, root: ProcessName | None) -> tuple[proc.Stat, ...]:
        """The living of one attempt: in its session, carrying its uni_id, or descending from such a one."""
        self._refresh()
        chosen: dict[int, _Seen] = {}
        if root is not None and (seen := self._seen.get(root.pid)) is not None and seen.name == root:
            chosen[root.pid] = seen
        in_session = session if self._session_is(session, root) else None
        rest = [seen for seen in self._seen.values() if root is None or seen.name.started >= root.started]
        for seen in rest:
            if seen.uni_id == uni_id or (in_session is not None and seen.session == in_session):
                chosen[seen.name.pid] = seen
        self._add_descendants(chosen, rest)
        found = (proc.stat_of(seen.name) for seen in chosen.values())
        return tuple(now for now in found if now is not None and not now.dead)

    def _session_is(self, session: int | None, root: ProcessName | None) -> bool:
        """A session's number may be a stranger's by now: its leader would then be younger than ours."""
        if session is None:
            return False
        leader = self._seen.get(session)
        return leader is None or root is None or root.pid != session or leader.name == root

    @staticmethod
    def _add_descendants(chosen: dict[int, _Seen], rest: list[_Seen]) -> None:
        children: dict[int, list[_Seen]] = {}
        for seen in rest:
            children.setdefault(seen.parent, []).append(seen)
        waiting = list(chosen.values())
        while waiting:
            above = waiting.pop()
            for child in children.get(above.name.pid, ()):
                # an older "child" had another parent, whose pid this one has now
                if child.name.pid not in chosen and child.name.started >= above.name.started:
                    chosen[child.name.pid] = child
                    waiting.append(child)

    def _refresh(self) -> None:
        now: dict[int, _Seen] = {}
        old = self._seen
        with os.scandir("/proc") as listing:
            for entry in listing:
                if not entry.name.isdigit():
                    continue
                pid, inode = int(entry.name), entry.inode()
                seen = old.get(pid)
                if seen is None or seen.inode != inode or not seen.settled:
                    seen = self._look(pid, inode, seen)
                if seen is not None:
                    now[pid] = seen
        self._seen = now

    def _look(self, pid: int, inode: int, before: _Seen | None) -> _Seen | None:
        stat = proc.stat(pid)
        if stat is None:
            return None
        uni_id = proc.environment_value(pid, UNI_ID) if stat.parent != 2 else None
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.name.started / self._ticks_per_s
        seen = _Seen(inode, stat.name, stat.parent, stat.session, uni_id, age_s > SETTLED_S)
        if before is not None and before.name == stat.name:
            seen.parent, seen.session = before.parent, before.session
            seen.uni_id = before.uni_id or uni_id
        return seen

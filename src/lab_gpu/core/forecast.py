"""When something will start, as far as can be foreseen: the planner itself is played on, end after end.

Holders whose end nobody knows never let go in this play, so what depends on them has no answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heapify, heappop, heappush

from lab_gpu.core.backfill import release_of
from lab_gpu.core.capacity import giving_back, taking
from lab_gpu.core.ids import NodeName
from lab_gpu.core.plan import Planner
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import AskGroup, GroupKey, NodeView, Plan, Running, Snapshot

FEWEST_STEPS, MOST_STEPS, WORK = 8, 300, 4_000


def earliest_start(
    snapshot: Snapshot, policy: Policy, utc_offset_s: float, kind: str, ident: int
) -> float | None:
    """None where nobody knows, or where it lies too many ends away to be worth the wait for an answer."""
    play = _Play(snapshot, policy, utc_offset_s)
    steps = WORK // (len(snapshot.nodes) + len(snapshot.groups) + 10)
    for _ in range(min(MOST_STEPS, max(FEWEST_STEPS, steps))):
        planned = play.plan()
        if any(placed.kind == kind and placed.id == ident for placed in planned.placements):
            return play.now
        play.start(planned)
        if not play.pass_time(planned.due_at):
            return None
    return None


class _Play:
    def __init__(self, snapshot: Snapshot, policy: Policy, utc_offset_s: float) -> None:
        self.now = snapshot.now
        self._policy, self._utc_offset_s = policy, utc_offset_s
        self._planner = Planner()
        self._nodes: dict[NodeName, NodeView] = dict(snapshot.nodes)
        self._rooms = dict(snapshot.rooms)
        self._asks = {group.key: deque(group.asks) for group in snapshot.groups}
        self._groups = {key: AskGroup(key, asks) for key, asks in self._asks.items()}
        self._key_of = {(key.kind, ident): key for key, asks in self._asks.items() for _, ident in asks}
        self._running = {(holder.kind, holder.id): holder for holder in snapshot.running}
        self._room_of: dict[tuple[str, int], int] = {}
        self._ends = [
            (release.at, holder.kind, holder.id)
            for holder in snapshot.running
            if not (release := release_of(holder, self.now, policy)).unknown
        ]
        self._opens_at = self._settled_at()
        self._quiet_steps = 0
        heapify(self._ends)

    def _settled_at(self) -> float | None:
        """When GPUs whose memory is not back yet are taken to be open again."""
        settling = any(gpu.settling for node in self._nodes.values() for gpu in node.gpus)
        return self.now + self._policy.gpu_memory_wait_s if settling else None

    def plan(self) -> Plan:
        snapshot = Snapshot(
            self.now, self._nodes, list(self._groups.values()), list(self._running.values()), self._rooms
        )
        return self._planner.plan(snapshot, self._policy, self._utc_offset_s)

    def start(self, planned: Plan) -> None:
        for placed in planned.placements:
            key = self._key_of[placed.kind, placed.id]
            ends_at = None if key.expected_s is None else self.now + key.expected_s
            holder = Running(placed.kind, placed.id, key.owner, key.priority, placed.grant, ends_at)
            self._hold(holder, key)
        for eviction in planned.evictions:
            gone_at = self.now + self._policy.soft_timeout_s + self._policy.term_timeout_s
            holder = self._running["task", eviction.task]
            self._running["task", eviction.task] = replace(holder, stopping=True, ends_at=gone_at)
            heappush(self._ends, (gone_at, "task", eviction.task))

    def _hold(self, holder: Running, key: GroupKey) -> None:
        self._asks[key].popleft()  # a pass serves each group from its head
        if not self._asks[key]:
            del self._groups[key]
        if key.room_key is not None and key.room_key in self._rooms:
            self._rooms[key.room_key] -= 1
            self._room_of[holder.kind, holder.id] = key.room_key
        self._running[holder.kind, holder.id] = holder
        if holder.grant.gpus:
            node = self._nodes[holder.grant.node]
            self._nodes[node.name] = taking(node, holder.grant.gpus, holder.grant.vram_mib)
        if holder.ends_at is not None:
            heappush(self._ends, (holder.ends_at, holder.kind, holder.id))

    def pass_time(self, due_at: float | None) -> bool:
        """On to the next instant at which anything changes; false where there is none.

        Once nobody is left to end, one day and one night show all that time alone can do.
        """
        times = [at for at in (due_at, self._opens_at, self._ends[0][0] if self._ends else None) if at]
        self._quiet_steps = 0 if self._ends else self._quiet_steps + 1
        if not times or self._quiet_steps > 3:
            return False
        self.now = min(times)
        if self._opens_at is not None and self._opens_at <= self.now:
            self._open_settled()
        while self._ends and self._ends[0][0] <= self.now:
            self._end(*heappop(self._ends)[1:])
        return True

    def _end(self, kind: str, ident: int) -> None:
        holder = self._running.pop((kind, ident), None)
        if holder is None:
            return
        room = self._room_of.pop((kind, ident), None)
        if room is not None:
            self._rooms[room] += 1
        node = self._nodes.get(holder.grant.node)
        if node is not None and holder.grant.gpus:
            self._nodes[node.name] = giving_back(node, [holder])

    def _open_settled(self) -> None:
        self._opens_at = None
        for node in list(self._nodes.values()):
            if any(gpu.settling for gpu in node.gpus):
                gpus = tuple(replace(g, closed=None, settling=False) if g.settling else g for g in node.gpus)
                self._nodes[node.name] = replace(node, gpus=gpus)

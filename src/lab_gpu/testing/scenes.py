"""A small world that is played: asks come in, the planner answers, what it placed runs and ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lab_gpu.core.capacity import giving_back, taking
from lab_gpu.core.ids import NodeName
from lab_gpu.core.plan import Planner
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import AskGroup, GroupKey, NodeView, Plan, Running, Snapshot
from lab_gpu.testing.builders import NOON


class Scene:
    """Nodes, what waits, what runs. `plan` answers, `start` does what a plan says, `end` lets holders go."""

    def __init__(self, *nodes: NodeView, policy: Policy | None = None, now: float = NOON) -> None:
        self.policy = policy or Policy()
        self.now = now
        self.nodes: dict[NodeName, NodeView] = {node.name: node for node in nodes}
        self.running: dict[tuple[str, int], Running] = {}
        self.rooms: dict[int, int] = {}
        self._asks: dict[GroupKey, list[tuple[int, int]]] = {}
        self._groups: dict[GroupKey, AskGroup] = {}
        self.planner = Planner()

    def ask(self, *groups: AskGroup) -> None:
        for group in groups:
            if group.key not in self._groups:
                self._asks[group.key] = []
                self._groups[group.key] = AskGroup(group.key, self._asks[group.key])
            self._asks[group.key].extend(group.asks)
            self._asks[group.key].sort()

    def withdraw(self, ident: int, kind: str = "task") -> None:
        for key, asks in list(self._asks.items()):
            asks[:] = [ask for ask in asks if key.kind != kind or ask[1] != ident]
            if not asks:
                del self._asks[key], self._groups[key]

    def waiting(self) -> set[int]:
        return {ident for asks in self._asks.values() for _, ident in asks}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now,
            dict(self.nodes),
            list(self._groups.values()),
            list(self.running.values()),
            dict(self.rooms),
        )

    def plan(self) -> Plan:
        return self.planner.plan(self.snapshot(), self.policy, 0)

    def hold(self, holder: Running) -> None:
        """Something runs on these GPUs, however it got there."""
        self.running[holder.kind, holder.id] = holder
        if holder.grant.gpus:
            node = self.nodes[holder.grant.node]
            self.nodes[node.name] = taking(node, holder.grant.gpus, holder.grant.vram_mib)

    def start(self, plan: Plan | None = None) -> list[int]:
        """Starts what a plan placed, and returns the ids in the order of the plan."""
        placements = (plan or self.plan()).placements
        keys = {(key.kind, ident): key for key, asks in self._asks.items() for _, ident in asks}
        for placed in placements:
            key = keys[placed.kind, placed.id]
            ends_at = None if key.expected_s is None else self.now + key.expected_s
            self.hold(Running(placed.kind, placed.id, key.owner, key.priority, placed.grant, ends_at))
            if key.room_key is not None and key.room_key in self.rooms:
                self.rooms[key.room_key] -= 1
            self.withdraw(placed.id, placed.kind)
        return [placed.id for placed in placements]

    def end(self, *idents: int, kind: str = "task") -> None:
        for ident in idents:
            gone = self.running.pop((kind, ident))
            if gone.grant.gpus:
                node = self.nodes[gone.grant.node]
                self.nodes[node.name] = giving_back(node, [gone])

    def change(self, kind: str, ident: int, **fields: object) -> None:
        self.running[kind, ident] = replace(self.running[kind, ident], **fields)  # type: ignore[arg-type]

    def close(self, names: Iterable[str], why: str = "drained") -> None:
        for name in names:
            self.nodes[NodeName(name)] = replace(self.nodes[NodeName(name)], closed=why)

"""The mind: from all it may see and the policy to what starts now, what is kept for whom, and who waits.

Asks are taken in their order. Each is placed by filters and ranks, or its group is refused whole (its members
need the same). The first one blocked gets a reservation; those after it may only fill in around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from lab_gpu.core.backfill import Guard, Search, Wait
from lab_gpu.core.capacity import Field, World, taking
from lab_gpu.core.feasible import Terms, terms_of
from lab_gpu.core.ids import NodeName, TaskId
from lab_gpu.core.model import Grant, Request
from lab_gpu.core.night import next_boundary
from lab_gpu.core.order import Line, Turn, night_now, rank_of
from lab_gpu.core.policy import Policy
from lab_gpu.core.preempt import victims
from lab_gpu.core.rank import Choices, choose_on
from lab_gpu.core.refusals import Refusals, Scene
from lab_gpu.core.snapshot import (
    AskGroup,
    Eviction,
    GpuView,
    GroupKey,
    NodeView,
    Placement,
    Plan,
    Reservation,
    Running,
    Snapshot,
)

LOCAL = NodeName("local")  # where a task without GPUs runs while no node is known
MOST_NEXT = 64
LONGEST_LOG = 4096
SPARE_MEMORIES = 64


def plan(snapshot: Snapshot, policy: Policy, utc_offset_s: float) -> Plan:
    """A pure function: the same world, policy and offset of local time give the same plan."""
    return Planner().plan(snapshot, policy, utc_offset_s)


class Shape:
    """What the planner knows of one request: its index and, on demand, each node's choice of GPUs."""

    __slots__ = ("_choices", "_world", "field", "gpus", "vram_mib")

    def __init__(self, world: World, field: Field, gpus: int, vram_mib: int) -> None:
        self._world, self.field, self.gpus, self.vram_mib = world, field, gpus, vram_mib
        self._choices: Choices | None = None

    def best(self) -> tuple[NodeName, Sequence[GpuView]] | None:
        if self._choices is None:
            self._choices = Choices(self._world, self.field, self.gpus, self.vram_mib)
        return self._choices.best()

    def restart_log(self) -> None:
        if self._choices is not None:
            self._choices.restart_log()


class Asking:
    """A group as the planner remembers it. `shape` is None where no GPU is asked for."""

    __slots__ = ("by_night", "key", "rank", "shape")

    def __init__(self, key: GroupKey, rank: tuple[int, float], shape: Shape | None, by_night: bool) -> None:
        self.key, self.rank, self.shape, self.by_night = key, rank, shape, by_night

    def may_ever(self) -> bool:
        """Whether ours letting go could be enough."""
        shape = self.shape
        return shape is None or shape.field.most_later(shape.gpus) >= shape.vram_mib


class Planner:
    """`plan` with a memory: a pass costs by what changed since the last one, and answers as `plan` would.

    It compares nodes and group keys by identity: whoever changes one makes another value.
    """

    def __init__(self) -> None:
        self._world = World()
        self._terms: tuple[Policy, bool] | None = None
        self._fields: dict[Terms, Field] = {}
        self._shapes: dict[tuple[Terms, int, int], Shape] = {}
        self._askings: dict[int, Asking] = {}

    def plan(self, snapshot: Snapshot, policy: Policy, utc_offset_s: float) -> Plan:
        night = night_now(snapshot.now, policy, utc_offset_s)
        self._renew(policy, night)
        self._world.meet(snapshot.nodes, snapshot.running)
        askings = self._recall(snapshot.groups, policy, night)
        if len(self._askings) > 2 * len(askings) + SPARE_MEMORIES:
            self._keep_only(askings)
        return _Pass(snapshot, policy, night, self._world, askings).run(utc_offset_s)

    def _renew(self, policy: Policy, night: bool) -> None:
        if self._terms is None or self._terms[0] != policy or self._terms[1] != night:
            self._fields, self._shapes, self._askings = {}, {}, {}
            self._terms = (policy, night)
        if len(self._world.log) > LONGEST_LOG:
            for field in self._fields.values():
                field.restart_log()
            for shape in self._shapes.values():
                shape.restart_log()
            self._world.log.clear()

    def _keep_only(self, askings: Sequence[Asking]) -> None:
        """Forgets groups that are gone, and what only they needed."""
        self._askings = {id(asking.key): asking for asking in askings}
        shapes = {id(asking.shape) for asking in askings}
        self._shapes = {terms: shape for terms, shape in self._shapes.items() if id(shape) in shapes}
        fields = {id(shape.field) for shape in self._shapes.values()}
        self._fields = {terms: field for terms, field in self._fields.items() if id(field) in fields}

    def _recall(self, groups: Sequence[AskGroup], policy: Policy, night: bool) -> list[Asking]:
        known = self._askings
        askings = []
        for group in groups:
            key = group.key
            asking = known.get(id(key))
            if asking is None:
                asking = known[id(key)] = self._meet(key, policy, night)
            askings.append(asking)
        return askings

    def _meet(self, key: GroupKey, policy: Policy, night: bool) -> Asking:
        """The key is kept, so that its identity stays its own."""
        request, shape = key.request, None
        idle_differs = policy.base_idle_util_threshold != policy.night_idle_util_threshold
        by_night = key.priority < 0 and policy.night_low_bonus > 0
        if request.gpus:
            shape = self._shape(request, terms_of(request, key.kind, policy, night))
            by_night = by_night or (request.whole and request.max_util is None and idle_differs)
        return Asking(key, rank_of(key, policy, night), shape, by_night)

    def _shape(self, request: Request, terms: Terms) -> Shape:
        found = self._shapes.get((terms, request.gpus, request.vram_mib or 0))
        if found is None:
            field = self._fields.get(terms)
            if field is None:
                field = self._fields[terms] = Field(terms, self._world)
            found = Shape(self._world, field, request.gpus, request.vram_mib or 0)
            self._shapes[terms, request.gpus, request.vram_mib or 0] = found
        return found


class _Pass:
    """One pass: what it has decided so far."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, night: bool, world: World, askings: Sequence[Asking]
    ) -> None:
        self.snapshot, self.policy, self.night = snapshot, policy, night
        self.now = snapshot.now
        self.world, self.askings = world, askings
        self.rooms = dict(snapshot.rooms)
        self.placements: list[Placement] = []
        self.evictions: tuple[Eviction, ...] = ()
        self.refused: list[Turn] = []
        self.full: set[int] = set()  # numbers of groups that only their room stopped
        self.reservation: Reservation | None = None
        self.guard: Guard | None = None
        self.line = Line(snapshot.groups, [asking.rank for asking in askings])

    def run(self, utc_offset_s: float) -> Plan:
        while (turn := self.line.here) is not None:
            self._serve(turn, self.askings[turn[-1]])
        scene = self._scene()
        refused = [(self.askings[turn[-1]].key, turn[-1] in self.full) for turn in self.refused]
        return Plan(
            placements=tuple(self.placements),
            evictions=self.evictions,
            refusals=Refusals(scene, refused),
            reservation=self.reservation,
            next_in_line=self._next_in_line(scene),
            due_at=self._due_at(utc_offset_s),
        )

    def _serve(self, turn: Turn, asking: Asking) -> None:
        room = asking.key.room_key
        if room is not None and self.rooms.get(room, 1) <= 0:
            self.full.add(turn[-1])
            self._refuse(turn)
            return
        grant = (
            self._seat_without_gpu(asking.key) if asking.shape is None else self._seat(asking, asking.shape)
        )
        if grant is not None:
            self._place(turn, asking.key, grant)
            self.line.next_of_group()
            return
        if self.reservation is None and asking.shape is not None and asking.may_ever():
            self._reserve(turn, asking, asking.shape)
        self._refuse(turn)

    # --- placing -------------------------------------------------------------------------------

    def _seat(self, asking: Asking, shape: Shape) -> Grant | None:
        """GPUs that are free for it: nobody waits for them, or those who do can spare them."""
        if shape.field.most_now(shape.gpus) >= shape.vram_mib:
            found = shape.best()
            if found is not None:
                grant = self._grant(self.world.views[found[0]], found[1], asking.key.request)
                self._take(grant)
                return grant
        return self._seat_before_reserved(asking, shape)

    def _seat_before_reserved(self, asking: Asking, shape: Shape) -> Grant | None:
        guard = self.guard
        if guard is None or not guard.lets_by(asking.key.expected_s, self.now, self.policy):
            return None
        if shape.field.most_on(guard.bare, shape.gpus) < shape.vram_mib:
            return None
        choice = choose_on(guard.bare, shape.field, shape.gpus, shape.vram_mib)
        if choice is None:
            return None
        grant = self._grant(guard.bare, choice[1], asking.key.request)
        guard.take_short(grant)
        return grant

    def _take(self, grant: Grant) -> None:
        if self.guard is not None and self.guard.bare.name == grant.node:
            self.guard.take_long(grant)
        else:
            self.world.change(taking(self.world.views[grant.node], grant.gpus, grant.vram_mib))

    def _grant(self, node: NodeView, gpus: Sequence[GpuView], request: Request) -> Grant:
        return Grant(
            node=node.name,
            gpus=tuple(gpu.uuid for gpu in gpus),
            indices=tuple(gpu.index for gpu in gpus),
            vram_mib=None if request.whole else request.vram_mib,
            virtual=node.virtual,
        )

    def _seat_without_gpu(self, key: GroupKey) -> Grant | None:
        nodes = self.snapshot.nodes
        wanted = key.request.node
        here = [
            node
            for node in nodes.values()
            if (wanted is None or node.name == wanted) and (node.local or wanted)
        ]
        if not here:
            return Grant(LOCAL) if wanted is None else None
        there_open = [node for node in here if node.closed is None]
        if not there_open:
            return None
        node = min(there_open, key=lambda node: (node.virtual, node.name))
        return Grant(node.name, virtual=node.virtual)

    def _place(self, turn: Turn, key: GroupKey, grant: Grant) -> None:
        self.placements.append(
            Placement(key.kind, turn[3], grant, backfilled=bool(grant.gpus) and self.reservation is not None)
        )
        self._use_room(key)
        if grant.gpus:
            ends_at = None if key.expected_s is None else self.now + key.expected_s
            self.world.hold(Running(key.kind, turn[3], key.owner, key.priority, grant, ends_at))

    def _use_room(self, key: GroupKey) -> None:
        if key.room_key is not None and key.room_key in self.rooms:
            self.rooms[key.room_key] -= 1

    # --- waiting -------------------------------------------------------------------------------

    def _refuse(self, turn: Turn) -> None:
        self.refused.append(turn)
        self.line.skip_group()

    def _reserve(self, turn: Turn, asking: Asking, shape: Shape) -> None:
        """Keeps GPUs for the first one blocked; one that nothing of ours keeps waiting blocks nobody."""
        search = Search(shape.field, shape.gpus, shape.vram_mib, self.world, self.now, self.policy)
        found = search.soonest()
        if found is None:
            return
        if self.policy.preemption and not self._is_about_to_start(found[1]):
            found = self._push_out(turn, asking, shape) or found
        node, wait = found
        grant = self._grant(node, wait.gpus, asking.key.request)
        self.reservation = Reservation(
            asking.key.kind, turn[3], grant, at=None if wait.unknown_count else wait.at
        )
        self.guard = Guard(self.world, self.world.views[node.name], wait)
        self._use_room(asking.key)  # nor may the rest of its array take its place there

    def _is_about_to_start(self, wait: Wait) -> bool:
        """Only a reading, or memory not yet back, keeps it: nobody has to go for that."""
        return not wait.unknown_count and wait.at <= self.now + self.policy.gpu_memory_wait_s

    def _push_out(self, turn: Turn, asking: Asking, shape: Shape) -> tuple[NodeView, Wait] | None:
        key = asking.key
        if key.kind != "task":
            return None
        found = victims(key.priority, shape.field, shape.gpus, shape.vram_mib, self.world)
        if found is None:
            return None
        node, gone = found
        chosen = choose_on(node, shape.field, shape.gpus, shape.vram_mib)
        if chosen is None:
            return None
        self.evictions = tuple(Eviction(TaskId(holder.id), TaskId(turn[3])) for holder in gone)
        at = self.now + self.policy.soft_timeout_s + self.policy.term_timeout_s
        return node, Wait(0, at, self.now, chosen[1], (None,) * shape.gpus)

    def _scene(self) -> Scene:
        """The world as this pass leaves it: later passes change theirs, so the nodes are copied."""
        guard = self.guard
        kept = dict(self.world.views)
        return Scene(
            now=self.now,
            policy=self.policy,
            night=self.night,
            nodes=kept if guard is None else {**kept, guard.bare.name: guard.bare},
            kept=kept,
            holders=self.world.holders(),
            reservation=self.reservation,
            until=None if guard is None else guard.until,
        )

    def _next_in_line(self, scene: Scene) -> tuple[tuple[str, int], ...]:
        """The first in order that ours keep waiting, one for each GPU that is in use."""
        in_use = sum(1 for node in scene.nodes.values() for gpu in node.gpus if gpu.holders)
        return tuple(islice(self._kept_waiting(), min(in_use, MOST_NEXT)))

    def _kept_waiting(self) -> Iterator[tuple[str, int]]:
        waiting = list(self.refused)
        while waiting:
            turn = heappop(waiting)
            asking = self.askings[turn[-1]]
            if asking.key.kind != "task" or not asking.may_ever():
                continue
            yield (asking.key.kind, turn[3])
            following = self.line.after(turn)
            if following is not None:
                heappush(waiting, following)

    def _due_at(self, utc_offset_s: float) -> float | None:
        if not any(self.askings[turn[-1]].by_night for turn in self.refused):
            return None
        return next_boundary(self.now, self.policy.night_start, self.policy.night_end, utc_offset_s)

"""The GPUs as we hold them: facts joined with promises, into the views the planner sees.

A promise is held until its attempt or lease is over and its memory is back, whatever a reading says in between.
A node's view is built anew only when something on that node changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lab_gpu.core.claims import OthersClaim
from lab_gpu.core.ids import GpuUuid, NodeName
from lab_gpu.core.model import DeclaredNode, Grant, ProcessName
from lab_gpu.core.readings import VIRTUAL_PREFIX, ForeignUse, foreign_use, really_used, virtual_facts
from lab_gpu.core.snapshot import GpuFacts, GpuView, HostFacts, NodeView, Running

UNRELEASED_SLACK_MIB = 256
NOBODY = ForeignUse()


@dataclass(slots=True)
class Holder:
    """An attempt or lease that holds GPUs."""

    kind: str  # "task" | "lease"
    id: int
    owner: str
    name: str | None
    grant: Grant
    since: float
    uni_id: str | None = None
    process: ProcessName | None = None
    priority: int = 0
    ends_at: float | None = None
    limit_at: float | None = None
    stopping: bool = False
    used_mib: dict[GpuUuid, int] = field(default_factory=dict)
    unclaimed_mib: dict[GpuUuid, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return (self.kind, self.id)

    def promised_mib(self, gpu: GpuFacts) -> int:
        if self.grant.vram_mib is None:
            return gpu.total_mib
        return max(self.grant.vram_mib, self.used_mib.get(gpu.uuid, 0))


@dataclass(frozen=True, slots=True)
class Unreleased:
    """A GPU whose last holder is gone, until a later reading shows its memory gone too."""

    holder: Holder
    since: float


@dataclass(frozen=True, slots=True)
class Closed:
    reason: str
    who: str | None
    at: float


class GpuBook:
    def __init__(self, hostname: str, clock: Callable[[], float]) -> None:
        self._hostname = hostname
        self._clock = clock
        self.foreign_memory_mib = 1024
        self.declared: dict[NodeName, DeclaredNode] = {}
        self.closed: dict[tuple[str, str], Closed] = {}
        self.facts = HostFacts(at=0.0, source="none")
        self.others: tuple[OthersClaim, ...] = ()
        self.holders: dict[tuple[str, int], Holder] = {}
        self.unreleased: dict[GpuUuid, Unreleased] = {}
        self.virtual_readings: dict[str, dict[str, dict[str, float]]] = {}
        self._on_gpu: dict[GpuUuid, dict[tuple[str, int], Holder]] = {}
        self._views: dict[NodeName, NodeView] = {}
        self._facts_of: dict[NodeName, tuple[GpuFacts, ...]] = {}
        self._dirty: set[NodeName] | None = None  # None: all of them
        self._node_of: dict[GpuUuid, NodeName] = {}
        self.foreign: dict[GpuUuid, ForeignUse] = {}

    # --- what there is -------------------------------------------------------------------------

    @property
    def local_name(self) -> NodeName:
        """The name of this host's own GPUs: as declared, else the host's."""
        return next(
            (name for name, node in self.declared.items() if not node.virtual), NodeName(self._hostname)
        )

    @property
    def has_real(self) -> bool:
        return bool(self.facts.gpus)

    def is_real(self, grant: Grant) -> bool:
        return bool(grant.gpus) and not grant.virtual

    def declare(self, node: DeclaredNode) -> None:
        self.declared[node.name] = node
        self._dirty = None

    def forget(self, name: NodeName) -> None:
        self.declared.pop(name, None)
        for key in [key for key in self.closed if key[0] == name]:
            del self.closed[key]
        self._dirty = None

    def close(self, node: str, gpu: str, closed: Closed) -> None:
        self.closed[node, gpu] = closed
        self._touch_node(NodeName(node))

    def open(self, node: str, gpu: str) -> bool:
        self._touch_node(NodeName(node))
        return self.closed.pop((node, gpu), None) is not None

    def holders_on(self, node: NodeName) -> list[Holder]:
        return [holder for holder in self.holders.values() if holder.grant.node == node]

    # --- promises ------------------------------------------------------------------------------

    def hold(self, holder: Holder) -> None:
        self.holders[holder.key] = holder
        for uuid in holder.grant.gpus:
            self._on_gpu.setdefault(uuid, {})[holder.key] = holder
            holder.unclaimed_mib[uuid] = self._unclaimed_mib(uuid)
        self._touch_node(holder.grant.node)

    def let_go(self, kind: str, ident: int, *, now: float) -> Holder | None:
        """The promise ends. On real GPUs the room is free only after a later reading (see `read`)."""
        holder = self.holders.pop((kind, ident), None)
        if holder is None:
            return None
        for uuid in holder.grant.gpus:
            self._on_gpu.get(uuid, {}).pop(holder.key, None)
            if not holder.grant.virtual:
                self.unreleased[uuid] = Unreleased(holder, now)
        self._touch_node(holder.grant.node)
        return holder

    def forget_holders(self) -> None:
        """Before all of them are read anew."""
        self.holders, self._on_gpu, self._dirty = {}, {}, None

    def mark(self, kind: str, ident: int, *, stopping: bool) -> None:
        holder = self.holders.get((kind, ident))
        if holder:
            holder.stopping = stopping

    def running(self, now: float) -> list[Running]:
        return [
            Running(
                kind=holder.kind,
                id=holder.id,
                owner=holder.owner,
                priority=holder.priority,
                grant=holder.grant,
                ends_at=holder.ends_at,
                overdue=holder.limit_at is not None and holder.limit_at <= now,
                stopping=holder.stopping,
            )
            for holder in self.holders.values()
            if holder.grant.gpus
        ]

    # --- readings ------------------------------------------------------------------------------

    def read(self, facts: HostFacts, others: Sequence[OthersClaim]) -> bool:
        """Takes a reading in. True where it changes what the planner would see."""
        before = dict(self.nodes())
        self.facts, self.others = facts, tuple(others)
        by_uuid = {gpu.uuid: gpu for gpu in facts.gpus}
        for uuid, holders in self._on_gpu.items():
            if uuid in by_uuid:
                for holder in holders.values():
                    holder.used_mib[uuid] = self._used_by(by_uuid[uuid], holder)
        for uuid in [u for u, gone in self.unreleased.items() if self._is_back(by_uuid.get(u), gone)]:
            del self.unreleased[uuid]
        self._dirty = None
        return before != self.nodes()

    def shift(self, step_s: float) -> None:
        """The clock was set: a reading is as old, and memory gone as long, as before."""
        self.facts = replace(self.facts, at=self.facts.at + step_s)
        self.unreleased = {
            uuid: replace(gone, since=gone.since + step_s) for uuid, gone in self.unreleased.items()
        }

    def never_back(self, now: float, patience_s: float) -> list[tuple[GpuUuid, Unreleased]]:
        """GPUs whose memory did not come back in time: they are to be set aside."""
        late = [(u, gone) for u, gone in self.unreleased.items() if now - gone.since > patience_s]
        for uuid, _ in late:
            del self.unreleased[uuid]
        return late

    def _used_by(self, gpu: GpuFacts, holder: Holder) -> int:
        return really_used(gpu, holder.uni_id, _names(holder))

    def _is_back(self, gpu: GpuFacts | None, gone: Unreleased) -> bool:
        if gpu is None:
            return True
        if self.facts.at <= gone.since or gpu.problem:
            return False
        if self._used_by(gpu, gone.holder) > 0:
            return False
        return (
            self._unclaimed_mib(gpu.uuid) <= gone.holder.unclaimed_mib.get(gpu.uuid, 0) + UNRELEASED_SLACK_MIB
        )

    def _unclaimed_mib(self, uuid: GpuUuid) -> int:
        """Memory in use that no living process accounts for; 0 where the driver does not tell by process."""
        gpu = next((each for each in self.facts.gpus if each.uuid == uuid), None)
        if gpu is None or any(process.mib is None for process in gpu.processes):
            return 0
        return max(0, gpu.used_mib - sum(process.mib or 0 for process in gpu.processes))

    # --- views ---------------------------------------------------------------------------------

    def nodes(self) -> dict[NodeName, NodeView]:
        if self._dirty is None:
            self._views = {}
            self._dirty = set(self._names_of_nodes())
        for name in self._dirty:
            self._views[name] = self._view(name)
        self._dirty = set()
        return self._views

    def facts_of(self, name: NodeName) -> tuple[GpuFacts, ...]:
        """As of the last view: which GPUs there are does not change with a promise."""
        if name not in self._facts_of:
            self.nodes()
        return self._facts_of.get(name, ())

    def free_mib(self, uuid: GpuUuid) -> int:
        name = self.node_of(uuid)
        gpus = self.nodes()[name].gpus if name is not None else ()
        return next((gpu.free_mib for gpu in gpus if gpu.uuid == uuid), 0)

    def node_of(self, uuid: GpuUuid) -> NodeName | None:
        self.nodes()
        return self._node_of.get(uuid)

    def holders_of_gpu(self, uuid: GpuUuid) -> Iterable[Holder]:
        return self._on_gpu.get(uuid, {}).values()

    def claims(self) -> list[tuple[GpuUuid, int, ProcessName | None]]:
        """What we hold on real GPUs, for the other masters of this host."""
        totals = {gpu.uuid: gpu for gpu in self.facts.gpus}
        return [
            (uuid, holder.promised_mib(totals[uuid]), holder.process)
            for uuid, holders in self._on_gpu.items()
            if uuid in totals
            for holder in holders.values()
        ]

    def _names_of_nodes(self) -> list[NodeName]:
        names = [name for name, node in self.declared.items() if node.virtual]
        if self.facts.gpus:
            names.insert(0, self.local_name)
        return names

    def _touch_node(self, name: NodeName) -> None:
        if self._dirty is not None and name in self._views:
            self._dirty.add(name)
        elif name not in self._views:
            self._dirty = None

    def _view(self, name: NodeName) -> NodeView:
        declared = self.declared.get(name)
        virtual = bool(declared and declared.virtual)
        facts = self._virtual_facts(declared) if declared and virtual else self._local_facts(declared)
        self._facts_of[name] = facts
        for gpu in facts:
            self._node_of[gpu.uuid] = name
        closed = self.closed.get((name, ""))
        return NodeView(
            name=name,
            gpus=tuple(self._gpu_view(name, gpu) for gpu in facts),
            virtual=virtual,
            closed=closed.reason if closed else None,
        )

    def _local_facts(self, declared: DeclaredNode | None) -> tuple[GpuFacts, ...]:
        """This host's GPUs; as many and as much of them as a person allowed."""
        gpus = self.facts.gpus
        if declared is None:
            return gpus
        limit = declared.vram_mib
        return tuple(
            replace(gpu, total_mib=min(gpu.total_mib, limit)) if limit else gpu
            for gpu in gpus[: declared.gpus or len(gpus)]
        )

    def _virtual_facts(self, declared: DeclaredNode) -> tuple[GpuFacts, ...]:
        busy = {uuid for uuid, holders in self._on_gpu.items() if holders}
        return virtual_facts(declared, busy, self.virtual_readings.get(declared.name, {}))

    def _gpu_view(self, node: NodeName, gpu: GpuFacts) -> GpuView:
        holders = self._on_gpu.get(gpu.uuid, {}).values()
        promised = sum(holder.promised_mib(gpu) for holder in holders)
        foreign = self._foreign(gpu, holders, promised)
        own_mib = sum(max(holder.promised_mib(gpu), holder.used_mib.get(gpu.uuid, 0)) for holder in holders)
        return GpuView(
            uuid=gpu.uuid,
            index=gpu.index,
            name=gpu.name,
            total_mib=gpu.total_mib,
            foreign_mib=foreign.foreign_mib,
            promised_mib=promised,
            holders=len(holders),
            taken_whole=any(holder.grant.vram_mib is None for holder in holders),
            shareable=not gpu.exclusive_mode,
            foreign_busy_mib=foreign.foreign_busy_mib,
            used_mib=max(gpu.used_mib, own_mib if not self.facts.gpus else gpu.used_mib),
            utilization=gpu.utilization,
            closed=self._why_closed(node, gpu),
            foreign_note=foreign.note,
            settling=gpu.uuid in self.unreleased and not gpu.problem and (node, gpu.uuid) not in self.closed,
        )

    def _foreign(self, gpu: GpuFacts, holders: Iterable[Holder], promised_mib: int) -> ForeignUse:
        if gpu.uuid.startswith(VIRTUAL_PREFIX):
            return NOBODY
        found = self.foreign[gpu.uuid] = foreign_use(
            gpu,
            {holder.uni_id for holder in holders if holder.uni_id},
            {name for holder in holders for name in _names(holder)},
            promised_mib,
            [each for each in self.others if each.claim.gpu == gpu.uuid],
        )
        return found

    def _why_closed(self, node: NodeName, gpu: GpuFacts) -> str | None:
        closed = self.closed.get((node, gpu.uuid))
        if closed:
            return closed.reason
        if gpu.problem:
            return gpu.problem
        gone = self.unreleased.get(gpu.uuid)
        if gone:
            return f"the memory of {gone.holder.kind} {gone.holder.id}, which ended, is not back yet"
        return None


def _names(holder: Holder) -> set[tuple[int, int]]:
    return {(holder.process.pid, holder.process.started)} if holder.process else set()

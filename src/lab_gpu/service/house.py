"""What the rooms of the loop share, in one place: the ledger, what is open, what lives, what is promised."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab_gpu.core.ids import AttemptId, LeaseId, TaskId
from lab_gpu.core.model import AttemptState, Grant, Lease, ProcessName, TaskSpec
from lab_gpu.core.plan import Planner
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import GroupKey, Plan, Refusal
from lab_gpu.core.stop_steps import Sent
from lab_gpu.service.gpu_book import GpuBook
from lab_gpu.service.launch import Launcher, Ready
from lab_gpu.service.observe import Observer
from lab_gpu.service.ports import Claims, Engine
from lab_gpu.service.projection import Projection
from lab_gpu.store.ledger import Ledger

if TYPE_CHECKING:
    from lab_gpu.service.outside import OutsideRun

Answer = dict[str, Any]  # a document, for whoever asked


@dataclass(slots=True)
class Live:
    """An attempt that holds GPUs, as the loop steers it."""

    id: AttemptId
    task: TaskId
    number: int
    uni_id: str
    state: AttemptState
    grant: Grant
    directory: str
    log_path: str
    spec: TaskSpec
    runner: ProcessName | None
    started_at: float | None = None
    outside: bool = False
    adopted: bool = False
    stop_why: str | None = None
    stop_by: str | None = None
    stop_then: str = "queue"
    stop_began_at: float | None = None
    timeouts_s: tuple[float | None, float | None] = (None, None)
    stop_due: float | None = None  # when the next step of its stop is due
    sent: Sent = field(default_factory=Sent)
    runner_gone: bool = False  # its shell is over
    sweep_began_at: float | None = None  # what it left behind is being ended
    swept: Sent = field(default_factory=Sent)
    stuck_since: float | None = None  # nothing of it is left but its shell, which does not end
    watched: set[ProcessName] = field(default_factory=set)
    limit_at: float | None = None
    launch_problem: str | None = None


@dataclass(slots=True)
class Standing:
    """Facts about this master that do not change while it runs."""

    home: str
    host: str
    hostname: str
    owner: str
    owner_uid: int
    pid: int
    version: str
    started_at: float
    epoch: int
    socket: str
    url: str | None
    log: str
    policy_path: str | None
    manual_tick: bool
    autostarted: bool
    utc_offset_s: Callable[[float], float]
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class House:
    ledger: Ledger
    projection: Projection
    book: GpuBook
    engine: Engine
    launcher: Launcher
    observer: Observer
    claims: Claims
    clock: Callable[[], float]
    standing: Standing
    policy: Policy = field(default_factory=Policy)
    planner: Planner = field(default_factory=Planner)
    live: dict[TaskId, Live] = field(default_factory=dict)
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    outside: dict[AttemptId, OutsideRun] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    changed: bool = True  # something the planner sees is new: a pass is due
    pass_after_reading: bool = False  # something could not start for want of a fresh reading
    passes: int = 0
    planned_at: float = 0.0
    readings: int = 0
    begun: list[Live] = field(default_factory=list)
    to_start: list[tuple[Live, Ready]] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    watch: Callable[[str, int, ProcessName], None] = lambda kind, ident, process: None
    end: Callable[[], None] = lambda: None
    doors_pid: Callable[[], int] = lambda: 0
    tell_doors: Callable[[], None] = lambda: None
    read_rows: Callable[[str, Mapping[str, Any]], list[Any]] = lambda question, args: []
    read_policy: Callable[[str], object] = lambda path: None
    knows_zone: Callable[[str], bool] = lambda name: True

    @property
    def now(self) -> float:
        return self.clock()

    def warn(self, text: str) -> None:
        """Something the caretaker should see, once however often it happens."""
        if text not in self.standing.warnings:
            self.standing.warnings.append(text)
            print(text, file=sys.stderr, flush=True)

    def refusal_of(self, key: GroupKey | None) -> Refusal | None:
        return self.plan.refusals.get(key) if key else None

    def known_children(self) -> Iterable[int]:
        """Processes of ours that are no strays: the doors, runners of live attempts, and shells that wait."""
        yield self.doors_pid()
        yield from self.launcher.armed_pids()
        for live in self.live.values():
            if live.runner:
                yield live.runner.pid
        for _, ready in self.to_start:
            yield ready.armed.process.pid

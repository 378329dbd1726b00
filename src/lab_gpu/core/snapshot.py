"""What the planner may see, frozen at `now`, and what it answers.

The loop keeps these values between passes and replaces only what changed, so that a pass costs by what it touches.
Facts are what a probe read; views are facts joined with what we have promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lab_gpu.core.ids import GpuUuid, NodeName, TaskId
from lab_gpu.core.model import Grant, Request


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU, as the driver tells it and /proc confirms it. `mib` None: the driver does not say."""

    pid: int
    started: int
    mib: int | None
    graphics: bool = False
    owner: str | None = None
    command: str | None = None
    uni_id: str | None = None  # LAB_GPU_UNI_ID of its environment, where it can be read
    claimed_by: str | None = None  # another master of this host, by its claim
    ancestors: tuple[tuple[int, int], ...] = ()  # (pid, started) of its parents, nearest first


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU at an instant. `problem` says why the rest is not to be believed."""

    uuid: GpuUuid
    index: int
    name: str
    total_mib: int
    used_mib: int = 0
    utilization: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    exclusive_mode: bool = False
    mig: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All GPUs of this host at an instant, from one source ("nvml", "nvidia-smi", "none")."""

    at: float
    source: str
    gpus: tuple[GpuFacts, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as the planner sees it. Free VRAM = total - foreign - promised, never below zero."""

    uuid: GpuUuid
    index: int
    name: str
    total_mib: int
    foreign_mib: int = 0  # processes that are not ours, other masters' claims included
    promised_mib: int = (
        0  # sum over our holders of max(promised, really used); a whole holder counts the total
    )
    holders: int = 0  # live attempts and leases of ours on it
    taken_whole: bool = False  # a holder has the whole of it
    shareable: bool = True  # false in exclusive compute mode
    foreign_busy_mib: int = 0  # foreign memory without display servers: decides idleness
    used_mib: int = 0  # the live reading
    utilization: int | None = None  # 0-100, live
    closed: str | None = None  # why nothing may start on it: drained, sick, memory not yet back
    foreign_note: str | None = None  # who the foreign use is, for people
    settling: bool = False  # closed only until the memory of what ended is back: it opens by itself

    @property
    def free_mib(self) -> int:
        return max(0, self.total_mib - self.foreign_mib - self.promised_mib)


@dataclass(frozen=True, slots=True)
class NodeView:
    name: NodeName
    gpus: tuple[GpuView, ...]
    virtual: bool = False
    local: bool = True
    closed: str | None = None  # drained, with its reason


@dataclass(frozen=True, slots=True)
class Running:
    """A holder of GPUs and when it is expected to let go (None: nobody knows)."""

    kind: str  # "task" | "lease"
    id: int
    owner: str
    priority: int
    grant: Grant
    ends_at: float | None = None
    overdue: bool = False
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Asks with equal keys are the same to the planner but for their place in line.

    `front` above zero: moved to the head, higher first; below zero: put behind all.
    `expected_s` is the limit, estimate or learned run time that backfill may count on.
    `room_key` names a shared ceiling (an array's %4); asks of one ceiling may stand in several groups.
    """

    kind: str  # "task" | "lease"
    owner: str
    request: Request
    priority: int = 0
    front: int = 0
    expected_s: float | None = None
    room_key: int | None = None


@dataclass(frozen=True, slots=True)
class AskGroup:
    """`asks` is ordered: (position, id) pairs, smallest position first."""

    key: GroupKey
    asks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float
    nodes: Mapping[NodeName, NodeView]
    groups: Sequence[AskGroup] = ()
    running: Sequence[Running] = ()
    rooms: Mapping[int, int] = field(default_factory=dict)  # room_key -> how many more may start


class RefusalCode(str, Enum):
    NO_NODE = "no_node"  # nothing is known yet that could run it
    IMPOSSIBLE = "impossible"  # no known node could ever hold it
    CLOSED = "closed"  # those that could are drained or set aside
    GPUS_BUSY = "gpus_busy"  # ours hold what it needs
    FOREIGN = "foreign"  # others' processes hold what it needs
    NOT_IDLE = "not_idle"  # free of promises, but busy
    CONDITION = "condition"  # --min-free-memory or --max-util not met now
    BEHIND = "behind"  # would fit, but must not delay the first in line
    ROOM = "room"  # its array's limit is reached
    # waits that are not the planner's: core.eligible
    HELD = "held"
    DEPENDENCY = "dependency"
    QUEUE = "queue"
    BACKOFF = "backoff"
    BEGIN = "begin"


@dataclass(frozen=True, slots=True)
class GpuRefusal:
    """Why one GPU was not taken, with the numbers."""

    node: NodeName
    index: int
    code: RefusalCode
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an ask has no placement: data first, the sentence made from it."""

    code: RefusalCode
    text: str  # one line for lists: "waiting for a GPU with 10 GiB free (most free: 6 GiB on gpu1 GPU 0)"
    gpus: tuple[GpuRefusal, ...] = ()
    earliest_start: float | None = None
    behind: int | None = None  # the task id in front, where that is the reason
    advice: tuple[str, ...] = ()  # what would let it start now


@dataclass(frozen=True, slots=True)
class Placement:
    kind: str
    id: int
    grant: Grant
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    task: TaskId
    for_task: TaskId


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the first blocked ask of the order will get, and when."""

    kind: str
    id: int
    grant: Grant
    at: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: Mapping[GroupKey, Refusal] = field(default_factory=dict)
    reservation: Reservation | None = None
    next_in_line: tuple[
        tuple[str, int], ...
    ] = ()  # who would start next when something ends, best guess first
    due_at: float | None = None  # when time alone could change the answer (night begins or ends)

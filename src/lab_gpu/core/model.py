"""The nouns of the house. Each is a value: whoever wants another one makes another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lab_gpu.core.ids import GpuUuid, LeaseId, NodeName, TaskId

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000


class TaskState(str, Enum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (TaskState.QUEUED, TaskState.RUNNING)


class AttemptState(str, Enum):
    ARMED = "armed"
    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPING = "stopping"
    SILENT = "silent"
    ENDED = "ended"


class Ending(str, Enum):
    """How an attempt ended. What follows from it is core.verdict's business."""

    OK = "ok"
    ERROR = "error"
    OOM = "oom"
    OOM_HOST = "oom_host"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    RESIZED = "resized"
    CANCELLED = "cancelled"
    LAUNCH_FAILED = "launch_failed"
    LOST = "lost"


class LeaseState(str, Enum):
    WAITING = "waiting"
    HELD = "held"
    RELEASED = "released"


class After(str, Enum):
    """What must have become of the task one waits for."""

    OK = "ok"
    FAIL = "fail"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Request:
    """What a task or lease needs. `vram_mib` and the thresholds are per GPU; no `vram_mib` means whole GPUs."""

    gpus: int = 1
    vram_mib: int | None = None
    exclusive: bool = False
    gpu_type: str | None = None
    gpu_ids: tuple[int, ...] = ()
    node: str | None = None
    min_free_mib: int | None = None
    max_util: int | None = None

    @property
    def whole(self) -> bool:
        return self.gpus > 0 and (self.exclusive or self.vram_mib is None)


@dataclass(frozen=True, slots=True)
class Dependency:
    on: TaskId
    kind: After = After.OK


@dataclass(frozen=True, slots=True)
class RetryRule:
    """`max_retries` None is unlimited. After every `before_backoff` failures it waits `backoff_s`, else `pause_s`."""

    max_retries: int | None = 0
    pause_s: float = 2.0
    before_backoff: int = 3
    backoff_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Activation:
    """The environment of `--env`: a conda environment or a virtual environment, by its own directory."""

    kind: str  # "conda" | "venv"
    path: str
    conda_root: str | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """All that stays as it was submitted and that only its launch and its verdict read (stored as one JSON document)."""

    setenv: Mapping[str, str] = field(default_factory=dict)
    activation: Activation | None = None
    submit_dir: str | None = None
    log_root: str | None = None
    retry: RetryRule = RetryRule()
    kill_at_limit: bool = False
    never_twice: bool = False
    no_output_limit_s: float | None = None
    strip_path: str | None = None


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task as the desk hands it to the ledger: checked, complete, without an id."""

    owner: str
    uid: int
    command: str
    workdir: str
    request: Request
    spec: TaskSpec = TaskSpec()
    name: str | None = None
    environment: Mapping[str, str] | None = None
    priority: int = 0
    time_limit_s: float | None = None
    estimate_s: float | None = None
    begin_at: float | None = None
    after: tuple[Dependency, ...] = ()
    queue: str | None = None
    held: bool = False
    batch: int | None = None
    array_index: int | None = None
    batch_limit: int | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """GPUs that a task or lease was given on one node. `vram_mib` None: the whole of each."""

    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    indices: tuple[int, ...] = ()
    vram_mib: int | None = None
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process, told from a later one with the same pid by its start time (clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Lease:
    id: LeaseId
    owner: str
    uid: int
    name: str | None
    state: LeaseState
    request: Request
    process: ProcessName | None
    grant: Grant | None
    asked_at: float
    granted_at: float | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class DeclaredNode:
    """A node a person told us about: a limit on this host's own GPUs, or a virtual one."""

    name: NodeName
    virtual: bool
    gpus: int | None = None
    vram_mib: int | None = None
    gpu_type: str | None = None

"""What the service and an engine say to each other about one attempt: orders, facts, one way to fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import Activation, ProcessName

# What an attempt's environment says of it: neither another attempt nor a master started inside one may inherit it.
ATTEMPT_VARIABLES = (
    "LAB_GPU_TASK_ID",
    "LAB_GPU_ATTEMPT",
    "LAB_GPU_UNI_ID",
    "LAB_GPU_NAME",
    "LAB_GPU_GRACE_S",
    "LAB_GPU_MEM_MB",
    "LAB_GPU_SUBMIT_DIR",
    "LAB_GPU_ARRAY_INDEX",
)


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """All that is known of an attempt before its GPUs are: enough to make everything but the start itself."""

    task: TaskId
    number: int
    uni_id: str
    owner: str
    uid: int
    directory: str  # <home>/tasks/task_<id>/<attempt>; made by the engine, never there before
    log_path: str
    command: str
    workdir: str
    environment: Mapping[str, str]  # the submitter's own, before anything of ours
    setenv: Mapping[str, str] = field(default_factory=dict)
    activation: Activation | None = None
    strip_path: str | None = None  # a bin folder of ours to take out of PATH
    name: str | None = None
    array_index: int | None = None
    submit_dir: str | None = None
    grace_s: float = 300.0
    vram_mib: int | None = None


@dataclass(frozen=True, slots=True)
class GpuLine:
    """What the waiting shell is told when it may start: the GPUs, as the program shall see them."""

    visible: str  # value of CUDA_VISIBLE_DEVICES: "0,2", UUIDs, or "" for none
    uuids: str  # value of NVIDIA_VISIBLE_DEVICES
    memory_fraction: str = ""  # XLA_PYTHON_CLIENT_MEM_FRACTION, where there is a reservation


class LaunchFailed(Exception):
    """The attempt could not be made or started; str() is the sentence for its owner. No command ran."""


@dataclass(slots=True)
class Armed:
    """A made attempt whose shell waits. `order` as it was; `process` is run.sh."""

    order: LaunchOrder
    process: ProcessName
    pipe: int
    made_log: bool = True  # the log was not there before: a revoke takes it away again


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """What run.sh wrote when its command's shell ended: complete, or it does not count."""

    code: int  # 0-255; 128+N for a signal
    at: float


@dataclass(frozen=True, slots=True)
class Begun:
    """What the command's shell wrote before the command: it ran, as this process, in this boot."""

    process: ProcessName
    boot_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What can be found out about an attempt after a restart, from its directory and /proc."""

    begun: Begun | None  # None: it never began, and from now on never will
    record: ExitRecord | None
    runner_alive: bool
    processes: tuple[ProcessName, ...] = ()  # of its tree, strays included

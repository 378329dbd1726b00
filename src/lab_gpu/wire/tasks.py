"""Tasks as they are asked for and told of over HTTP. Ranges and files are the desk's business."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from lab_gpu.wire.base import Asked, Flag, Number, Told, Whole

State = Literal["queued", "running", "completed", "failed", "cancelled"]
Moment = str | None  # ISO 8601, UTC, milliseconds, "Z"


class ResourceBody(Asked):
    """What a task or lease needs; sizes are per GPU. Without `mem_mib` it takes whole GPUs."""

    mem_mib: Whole | None = None
    gpus: Whole | None = None
    gpu_type: str | None = None
    gpu_ids: list[Whole] | None = None
    exclusive: Flag = False
    node: str | None = None
    min_free_mib: Whole | None = None
    max_util: Whole | None = None


class AfterBody(Asked):
    """A dependency. A negative id is the k-th task of the same request."""

    id: Whole
    kind: Literal["ok", "fail", "any"] = "ok"


class ArrayBody(Asked):
    first: Whole
    last: Whole
    step: Whole = 1
    limit: Whole | None = None


class TaskBody(ResourceBody):
    command: str
    name: str | None = None
    workdir: str | None = None
    priority: Whole = 0
    time_limit_s: Number | None = None
    kill_at_limit: Flag = False
    estimate_s: Number | None = None
    begin_at: Number | None = None
    after: list[AfterBody] | None = None
    queue: str | None = None
    env: str | None = None
    setenv: dict[str, str] | None = None
    max_retries: Whole | None = None  # left out: 0; null: no limit
    retry_pause_s: Number | None = None
    never_twice: Flag = False
    no_output_limit_s: Number | None = None
    log_root: str | None = None
    held: Flag = False
    array: ArrayBody | None = None
    conda_root: str | None = None


class SubmitBody(Asked):
    """All tasks are accepted in one transaction, or none is."""

    tasks: list[TaskBody] = Field(min_length=1)
    environment: dict[str, str] | None = None
    workdir: str | None = None
    dry_run: Flag = False


class RequestChanges(Asked):
    gpus: Whole | None = None
    vram_mib: Whole | None = None
    exclusive: Flag | None = None
    gpu_type: str | None = None
    gpu_ids: list[Whole] | None = None
    node: str | None = None
    min_free_mib: Whole | None = None
    max_util: Whole | None = None


class ChangesBody(Asked):
    """What shall be different; what is left out stays. null takes a limit or name away."""

    priority: Whole | None = None
    time_limit_s: Number | None = None
    estimate_s: Number | None = None
    kill_at_limit: Flag | None = None
    name: str | None = None
    max_retries: Whole | None = None
    not_before: Number | None = None
    request: RequestChanges | None = None


class ActionsBody(Asked):
    action: Literal["cancel", "retry", "hold", "release", "top", "preempt"]
    ids: list[Whole] = Field(min_length=1)
    soft_timeout_s: Number | None = None
    term_timeout_s: Number | None = None
    then: Literal["queue", "hold", "cancel"] | None = None
    wait_s: Number = 0


class WaitBody(Asked):
    ids: list[Whole] = Field(min_length=1)
    timeout_s: Number = 30
    for_: Literal["all", "any"] = Field(default="all", alias="for")


class OutsideBody(Asked):
    """A command that somebody runs in a terminal and that shall count as an attempt of a task."""

    mem_mib: Whole | None = None
    command: str
    pid: Whole | None = None
    gpu_indices: list[Whole] | None = None
    log_path: str | None = None


class OutsideEndBody(Asked):
    exit_code: Whole
    oom: Flag = False
    peak_mib: Whole | None = None


class GpuName(Told):
    node: str | None
    index: int | None
    uuid: str
    name: str | None


class RequestDoc(Told):
    gpus: int
    vram_mib: int | None
    exclusive: bool
    gpu_type: str | None
    gpu_ids: list[int]
    node: str | None
    min_free_mib: int | None
    max_util: int | None


class BriefTask(Told):
    """A task in an answer of many."""

    id: int
    state: State
    reason: str | None
    attempt: int
    exit_code: int | None
    gpus: list[GpuName]
    submitted_at: Moment
    started_at: Moment
    ended_at: Moment


class Task(BriefTask):
    name: str | None
    owner: str
    phase: Literal["starting", "stopping", "overdue"] | None
    reason_code: str | None
    max_retries: int | None
    node: str | None
    command: str
    priority: int
    queue: str | None
    batch: int | None
    array_index: int | None
    request: RequestDoc
    not_before: Moment
    log_path: str | None
    estimated_start: Moment
    version: int


class Dependency(Told):
    id: int
    kind: Literal["ok", "fail", "any"]
    state: State


class Retry(Told):
    max_retries: int | None
    pause_s: float
    before_backoff: int
    backoff_s: float


class Attempt(Told):
    id: int
    number: int
    uni_id: str
    state: Literal["launching", "running", "stopping", "silent", "ended"]
    ending: str | None
    exit_code: int | None
    signal: int | None
    node: str | None
    gpus: list[GpuName]
    vram_mib: int | None
    pid: int | None
    log_path: str
    directory: str
    started_at: Moment
    ended_at: Moment
    detail: str | None
    outside: bool


class TaskDetail(Task):
    workdir: str
    env: str | None
    setenv: dict[str, str]
    submit_dir: str | None
    time_limit_s: float | None
    estimate_s: float | None
    kill_at_limit: bool
    never_twice: bool
    no_output_limit_s: float | None
    held: bool
    after: list[Dependency]
    retry: Retry
    attempts: list[Attempt]
    dependents: list[int]


class ItemError(Told):
    id: int
    slug: str
    text: str


class Submitted(Told):
    tasks: list[Task | BriefTask]
    warnings: list[str]


class Would(Told):
    start: bool
    node: str | None
    gpus: list[GpuName]
    reason: str | None
    reason_code: str | None
    earliest_start: Moment
    advice: list[str]


class Previewed(Told):
    would: list[Would]


class TaskList(Told):
    tasks: list[Task]
    next: str | None


class Acted(Told):
    tasks: list[Task | BriefTask]
    errors: list[ItemError]


class Waited(Told):
    tasks: list[Task | BriefTask]
    done: bool


class GpuWhy(Told):
    node: str
    index: int
    code: str
    text: str


class Why(Told):
    id: int
    state: State
    code: str | None
    text: str
    gpus: list[GpuWhy]
    earliest_start: Moment
    behind: int | None
    advice: list[str]
    position: int | None
    of: int | None


class LogPart(Told):
    """`offset` is where `text` begins and `next` where to go on, in bytes; `size` is the file's."""

    attempt: int
    offset: int
    next: int
    size: int
    text: str
    ended: bool


class Event(Told):
    seq: int
    at: Moment
    kind: str
    task: int | None
    attempt: int | None
    who: str | None
    body: dict[str, Any]


class Events(Told):
    events: list[Event]
    last: int


class History(Told):
    events: list[Event]


class OutsideAttempt(Told):
    attempt_id: int
    number: int
    uni_id: str
    log_name: str
    gpus: list[dict[str, Any]]
    log_root_default: str

"""The master itself, its policy and its mistakes as they are told of over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from lab_gpu.wire.base import Asked, Told
from lab_gpu.wire.nodes import Lease, Node
from lab_gpu.wire.tasks import GpuName, Moment, Task


class Health(Told):
    status: Literal["ok"]


class Problem(Told):
    """Every error, as application/problem+json. `detail` is one sentence; `problems` lists all mistakes."""

    type: str
    title: str
    status: int
    detail: str
    slug: str
    problems: list[str]


class Server(Told):
    pid: int
    version: str
    started_at: Moment
    home: str
    host: str
    url: str | None
    socket: str
    log: str
    policy_path: str | None
    manual_tick: bool
    autostarted: bool
    epoch: int
    commit: int
    passes: int
    running: int
    queued: int
    leases: int
    database_bytes: int
    warnings: list[str]


class ServerBrief(Told):
    pid: int
    version: str
    host: str
    url: str | None
    socket: str
    manual_tick: bool
    warnings: list[str]


class Status(Told):
    """`counts` of ended tasks are those of the last 24 hours."""

    server: ServerBrief
    nodes: list[Node]
    tasks: list[Task]
    counts: dict[str, int]
    leases: list[Lease]


class Started(Told):
    id: int
    node: str
    gpus: list[GpuName]


class Waiting(Told):
    id: int
    code: str | None
    text: str


class Ticked(Told):
    started: list[Started]
    waiting: list[Waiting]


class PolicyDoc(Told):
    policy: dict[str, Any]
    path: str | None
    night: bool


class ReloadBody(Asked):
    path: str | None = None


class Reloaded(Told):
    policy: dict[str, Any]
    path: str | None
    changed: list[str]

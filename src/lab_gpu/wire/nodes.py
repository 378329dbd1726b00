"""Nodes, GPUs and leases as they are asked for and told of over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab_gpu.core.ids import NODE_NAME_PATTERN
from lab_gpu.wire.base import Asked, Flag, Number, Told, Whole
from lab_gpu.wire.tasks import GpuName, Moment, ResourceBody


class NodeBody(Asked):
    """A node to declare: a limit on this host's own GPUs, or a virtual one."""

    name: str = Field(min_length=1, pattern=NODE_NAME_PATTERN)
    gpus: Whole | None = None
    vram_mib: Whole | None = None
    gpu_type: str | None = None
    virtual: Flag = False
    address: str | None = None


class DrainBody(Asked):
    gpu: Whole | None = None
    reason: str | None = None


class UndrainBody(Asked):
    gpu: Whole | None = None


class LeaseBody(Asked):
    request: ResourceBody
    name: str | None = None
    priority: Whole = 0
    wait_s: Number = 0
    ttl_s: Number | None = None
    inside_uni_id: str | None = None


class Holder(Told):
    kind: Literal["task", "lease"]
    id: int
    owner: str
    name: str | None
    mib: int | None
    since: Moment


class Foreign(Told):
    pid: int
    owner: str | None
    command: str | None
    mib: int | None


class Gpu(Told):
    index: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    free_mib: int
    promised_mib: int
    foreign_mib: int
    utilization: int | None
    temperature_c: int | None
    power_w: float | None
    closed: str | None
    holders: list[Holder]
    foreign: list[Foreign]


class Node(Told):
    name: str
    host: str | None
    virtual: bool
    closed: str | None
    gpus: list[Gpu]


class Readings(Told):
    nodes: list[Node]
    source: str
    problem: str | None


class AddedNode(Told):
    name: str
    created: bool
    text: str


class Lease(Told):
    id: int
    state: Literal["waiting", "held", "released"]
    owner: str | None
    name: str | None
    node: str | None
    gpus: list[GpuName]
    vram_mib: int | None
    virtual: bool
    reason: str | None
    asked_at: Moment
    granted_at: Moment
    pid: int | None


class Leases(Told):
    leases: list[Lease]

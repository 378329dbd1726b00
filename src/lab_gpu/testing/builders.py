"""Short words for the values of the planner: what a test does not name does not matter to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lab_gpu.core.ids import GpuUuid, NodeName
from lab_gpu.core.model import Grant, Request
from lab_gpu.core.snapshot import AskGroup, GpuView, GroupKey, NodeView, Running, Snapshot

GIB = 1024
NOON = 1_700_000_000.0 - 1_700_000_000.0 % 86400 + 12 * 3600  # outside the default night


def gpu(
    index: int = 0, gib: float = 24, *, node: str = "n1", name: str = "NVIDIA RTX 4090", **view: object
) -> GpuView:
    """A free GPU of `gib` GiB; any other field of GpuView by its name."""
    made = GpuView(
        uuid=GpuUuid(f"GPU-{node}-{index}"), index=index, name=name, total_mib=int(gib * GIB), utilization=0
    )
    return replace(made, **view)  # type: ignore[arg-type]


def node(name: str = "n1", gpus: int | Iterable[GpuView] = 1, gib: float = 24, **view: object) -> NodeView:
    """A node of so many free GPUs, or of these."""
    made = [gpu(i, gib, node=name) for i in range(gpus)] if isinstance(gpus, int) else list(gpus)
    return replace(NodeView(NodeName(name), tuple(made)), **view)  # type: ignore[arg-type]


def request(gib: float | None = None, gpus: int = 1, **fields: object) -> Request:
    """`gib` of VRAM on each of `gpus`; without it whole GPUs."""
    vram_mib = None if gib is None else int(gib * GIB)
    return replace(Request(gpus=gpus, vram_mib=vram_mib), **fields)  # type: ignore[arg-type]


def group(
    ids: int | Sequence[int],
    gib: float | None = None,
    gpus: int = 1,
    *,
    kind: str = "task",
    owner: str = "ann",
    priority: int = 0,
    front: int = 0,
    expected_s: float | None = None,
    room_key: int | None = None,
    **fields: object,
) -> AskGroup:
    """Asks of one need, each at the place in line that its id says."""
    numbers = [ids] if isinstance(ids, int) else list(ids)
    key = GroupKey(kind, owner, request(gib, gpus, **fields), priority, front, expected_s, room_key)
    return AskGroup(key, [(number, number) for number in numbers])


def holder(
    ident: int,
    on: NodeView,
    indices: Sequence[int] = (0,),
    gib: float | None = None,
    *,
    kind: str = "task",
    owner: str = "ann",
    priority: int = 0,
    ends_at: float | None = None,
    overdue: bool = False,
    stopping: bool = False,
) -> Running:
    """Something of ours on these GPUs of a node; `gib` None: it has the whole of each."""
    chosen = [each for each in on.gpus if each.index in indices]
    grant = Grant(
        on.name,
        tuple(each.uuid for each in chosen),
        tuple(each.index for each in chosen),
        None if gib is None else int(gib * GIB),
        on.virtual,
    )
    return Running(kind, ident, owner, priority, grant, ends_at, overdue, stopping)


def snapshot(
    nodes: Iterable[NodeView] = (),
    groups: Iterable[AskGroup] = (),
    running: Iterable[Running] = (),
    *,
    now: float = NOON,
    rooms: dict[int, int] | None = None,
) -> Snapshot:
    return Snapshot(now, {each.name: each for each in nodes}, list(groups), list(running), rooms or {})

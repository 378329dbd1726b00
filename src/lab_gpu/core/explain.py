"""All there is to say of one ask that waits: each GPU's reason, when it may start, what would start it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lab_gpu.core.backfill import may_pass
from lab_gpu.core.errors import NotFound
from lab_gpu.core.feasible import terms_of, usable
from lab_gpu.core.forecast import earliest_start
from lab_gpu.core.model import Request
from lab_gpu.core.plan import plan
from lab_gpu.core.policy import Policy
from lab_gpu.core.refusals import Desk, Refusals, Spot, reading, said_of_others
from lab_gpu.core.snapshot import GpuRefusal, GroupKey, Refusal, RefusalCode, Snapshot
from lab_gpu.core.units import format_mib

MOST_GPUS = 64
SHORTEST_LIMIT_S = 60

_NO_ADVICE = (RefusalCode.NO_NODE, RefusalCode.IMPOSSIBLE, RefusalCode.ROOM)


def explain(snapshot: Snapshot, policy: Policy, utc_offset_s: float, kind: str, ident: int) -> Refusal | None:
    """None: it starts with the next pass."""
    key = _key_of(snapshot, kind, ident)
    planned = plan(snapshot, policy, utc_offset_s)
    if any(placed.kind == kind and placed.id == ident for placed in planned.placements):
        return None
    refusals = planned.refusals
    assert isinstance(refusals, Refusals)
    found = refusals[key]
    if found.code in (RefusalCode.NO_NODE, RefusalCode.IMPOSSIBLE):
        return found
    return replace(
        found,
        gpus=_gpu_refusals(refusals.desk, key, ident) if key.request.gpus else (),
        earliest_start=earliest_start(snapshot, policy, utc_offset_s, kind, ident),
        advice=tuple(_advice(_own_view(refusals.desk, kind, ident), key))
        if found.code not in _NO_ADVICE
        else (),
    )


def _own_view(desk: Desk, kind: str, ident: int) -> Desk:
    """What is kept for the first in line is there for it."""
    first = desk.scene.reservation
    if first is None or (first.kind, first.id) != (kind, ident):
        return desk
    return Desk(replace(desk.scene, kept=desk.scene.nodes))


def _key_of(snapshot: Snapshot, kind: str, ident: int) -> GroupKey:
    for group in snapshot.groups:
        if group.key.kind == kind and any(asked == ident for _, asked in group.asks):
            return group.key
    raise NotFound(f"cannot explain {kind} {ident}: it does not wait for GPUs; look at its state")


# --- each GPU ----------------------------------------------------------------------------------


def _gpu_refusals(desk: Desk, key: GroupKey, ident: int) -> tuple[GpuRefusal, ...]:
    spots = [spot for spots in desk.spots(desk.terms(key)) for spot in spots][:MOST_GPUS]
    return tuple(
        GpuRefusal(spot.node.name, spot.gpu.index, *_why_not(desk, key, ident, spot)) for spot in spots
    )


def _why_not(desk: Desk, key: GroupKey, ident: int, spot: Spot) -> tuple[RefusalCode, str]:
    gpu, vram_mib = spot.gpu, key.request.vram_mib or 0
    if spot.bar is RefusalCode.CLOSED:
        return spot.bar, f"set aside: {spot.closed_why}"
    if spot.bar is RefusalCode.FOREIGN:
        return spot.bar, f"others use {said_of_others(gpu)}"
    if spot.bar in (RefusalCode.NOT_IDLE, RefusalCode.CONDITION):
        return spot.bar, reading(spot, desk.terms(key))
    if gpu.total_mib < vram_mib:
        return RefusalCode.IMPOSSIBLE, f"it has {format_mib(gpu.total_mib)} in all"
    if spot.bar is RefusalCode.GPUS_BUSY:
        return spot.bar, desk.use(gpu)
    if gpu.free_mib < vram_mib:
        code = RefusalCode.GPUS_BUSY if gpu.holders else RefusalCode.FOREIGN
        return code, f"{format_mib(gpu.free_mib)} of {format_mib(gpu.total_mib)} free: {desk.use(gpu)}"
    return _why_not_though_free(desk, key, ident, spot)


def _why_not_though_free(desk: Desk, key: GroupKey, ident: int, spot: Spot) -> tuple[RefusalCode, str]:
    first = desk.scene.reservation
    if first is not None and spot.gpu.uuid in first.grant.gpus:
        if (first.kind, first.id) == (key.kind, ident):
            return RefusalCode.GPUS_BUSY, "free, and kept for it until the others are"
        return RefusalCode.BEHIND, f"free, but kept for {first.kind} {first.id}, which is first in line"
    if key.request.gpus > 1:
        return RefusalCode.GPUS_BUSY, f"free, but {key.request.gpus} are needed on one node"
    return RefusalCode.ROOM, "free"


# --- what would let it start now ---------------------------------------------------------------


def _advice(desk: Desk, key: GroupKey) -> Iterator[str]:
    request = key.request
    for words, asked in _without_one_wish(request):
        if _starts_now(desk, replace(key, request=asked)):
            yield f"it would start now {words}"
    yield from _with_less_memory(desk, key)
    yield from _with_fewer_gpus(desk, key)
    yield from _with_a_limit(desk, key)


def _without_one_wish(request: Request) -> Iterator[tuple[str, Request]]:
    if request.gpu_type:
        yield "without --gpu-type", replace(request, gpu_type=None)
    if request.node:
        yield "without --node", replace(request, node=None)
    if request.gpu_ids:
        yield "without --gpu-ids", replace(request, gpu_ids=())
    if request.min_free_mib:
        yield "without --min-free-memory", replace(request, min_free_mib=None)
    if request.max_util is not None:
        yield "without --max-util", replace(request, max_util=None)
    if request.exclusive and request.vram_mib:
        yield "without --exclusive", replace(request, exclusive=False)


def _with_less_memory(desk: Desk, key: GroupKey) -> Iterator[str]:
    """The most memory that would start now, in whole GiB."""
    request = key.request
    if not request.gpus or request.exclusive:
        return
    shared = replace(request, vram_mib=0)
    gib = _most_mib(desk, replace(key, request=shared)) // 1024
    if gib >= 1 and (request.vram_mib is None or gib * 1024 < request.vram_mib):
        yield f"it would start now with --mem {gib}G" + (", sharing a GPU" if request.whole else "")


def _most_mib(desk: Desk, key: GroupKey) -> int:
    request, terms = key.request, desk.terms(key)
    most = 0
    for node in desk.scene.kept.values():
        free = sorted((gpu.free_mib for gpu in usable(node, terms, 0)), reverse=True)
        if len(free) >= request.gpus:
            most = max(most, free[request.gpus - 1])
    return most


def _with_fewer_gpus(desk: Desk, key: GroupKey) -> Iterator[str]:
    for gpus in range(key.request.gpus - 1, 0, -1):
        if _starts_now(desk, replace(key, request=replace(key.request, gpus=gpus))):
            yield f"it would start now with --gpus {gpus}"
            return


def _with_a_limit(desk: Desk, key: GroupKey) -> Iterator[str]:
    """A time limit short enough to go ahead of the first in line."""
    scene = desk.scene
    if scene.until is None:
        return
    limit_s = min(scene.policy.backfill_time_limit_s, scene.until - scene.now) // 60 * 60
    known = key.expected_s
    shorter = limit_s >= SHORTEST_LIMIT_S and (known is None or known > limit_s)
    if shorter and _starts_now(desk, replace(key, expected_s=limit_s)):
        yield f"it would start now with --time-limit {limit_s / 60:.0f}m"


def _starts_now(desk: Desk, key: GroupKey) -> bool:
    scene, request = desk.scene, key.request
    passes = may_pass(key.expected_s, scene.until, scene.now, scene.policy)
    terms = terms_of(request, key.kind, scene.policy, scene.night)
    nodes = scene.nodes if passes else scene.kept
    return any(len(usable(node, terms, request.vram_mib or 0)) >= request.gpus for node in nodes.values())

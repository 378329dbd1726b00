"""The filters: which GPUs a request may use at all, which of them now, and which once ours have let go.

Filters look at one GPU at a time and know nothing of order; the amount of VRAM is compared by whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lab_gpu.core.model import Request
from lab_gpu.core.names import is_of_type
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import GpuView, NodeView, RefusalCode

NEVER = -1  # instead of an amount of memory


@dataclass(frozen=True, slots=True)
class Terms:
    """All of a request but its amounts: requests with equal terms may use the same GPUs.

    `util_limit` is in percent; for whole GPUs it is the idle threshold unless the request brought its own.
    """

    gpu_type: str | None
    gpu_ids: tuple[int, ...]
    node: str | None
    local_only: bool
    whole: bool
    min_free_mib: int
    util_limit: float | None
    own_limit: bool
    foreign_limit_mib: int


def terms_of(request: Request, kind: str, policy: Policy, night: bool) -> Terms:
    """Leases are for processes on this host, so they get its GPUs only."""
    share = policy.night_idle_util_threshold if night else policy.base_idle_util_threshold
    own = request.max_util
    return Terms(
        gpu_type=request.gpu_type,
        gpu_ids=request.gpu_ids,
        node=request.node,
        local_only=kind == "lease",
        whole=request.whole,
        min_free_mib=request.min_free_mib or 0,
        util_limit=own if own is not None else share * 100 if request.whole else None,
        own_limit=own is not None,
        foreign_limit_mib=policy.foreign_memory_mib,
    )


of_type = lru_cache(4096)(is_of_type)


def is_candidate_node(node: NodeView, terms: Terms) -> bool:
    return (terms.node is None or node.name == terms.node) and (node.local or not terms.local_only)


def is_candidate(gpu: GpuView, terms: Terms) -> bool:
    """By what never changes: type and index."""
    if terms.gpu_ids and gpu.index not in terms.gpu_ids:
        return False
    return terms.gpu_type is None or of_type(gpu.name, terms.gpu_type)


def barred(gpu: GpuView, terms: Terms) -> RefusalCode | None:
    """The first filter that keeps a candidate from starting now, whatever the amount of VRAM."""
    if gpu.closed is not None:
        return RefusalCode.CLOSED
    if gpu.taken_whole or (gpu.holders and (terms.whole or not gpu.shareable)):
        return RefusalCode.GPUS_BUSY
    if foreign_bars(gpu, terms):
        return RefusalCode.FOREIGN
    if terms.util_limit is not None and gpu.utilization is not None and gpu.utilization > terms.util_limit:
        return RefusalCode.CONDITION if terms.own_limit else RefusalCode.NOT_IDLE
    if terms.min_free_mib and gpu.total_mib - gpu.used_mib < terms.min_free_mib:
        return RefusalCode.CONDITION
    return None


def foreign_bars(gpu: GpuView, terms: Terms) -> bool:
    """Whole GPUs bear a little of others' memory, exclusive mode none, shared ones what leaves room."""
    if not gpu.shareable and gpu.foreign_busy_mib > 0:
        return True
    return terms.whole and gpu.foreign_busy_mib > terms.foreign_limit_mib


def later_mib(gpu: GpuView, terms: Terms) -> int:
    """What it can give once all holders of ours are gone; NEVER where others or a person keep it from us."""
    if (gpu.closed is not None and not gpu.settling) or foreign_bars(gpu, terms):
        return NEVER
    # Busy without a holder of ours: by others, if any are there; else the reading is of what has just ended.
    others_compute = not gpu.holders and gpu.foreign_mib > 0
    if others_compute and terms.util_limit is not None and (gpu.utilization or 0) > terms.util_limit:
        return NEVER
    later = gpu.total_mib - gpu.foreign_mib
    return later if later >= max(terms.min_free_mib, 0) else NEVER


@dataclass(frozen=True, slots=True)
class Shelf:
    """What one node has for some terms: MiB per GPU, most first: entry N-1 is what N GPUs can all give."""

    now: tuple[int, ...] = ()
    later: tuple[int, ...] = ()


EMPTY = Shelf()


def shelf_of(node: NodeView, terms: Terms) -> Shelf:
    if node.closed is not None or not is_candidate_node(node, terms):
        return EMPTY
    now: list[int] = []
    later: list[int] = []
    for gpu in node.gpus:
        if not is_candidate(gpu, terms):
            continue
        mib = later_mib(gpu, terms)
        if barred(gpu, terms) is None:
            now.append(gpu.free_mib)
            mib = max(mib, gpu.free_mib)
        if mib != NEVER:
            later.append(mib)
    now.sort(reverse=True)
    later.sort(reverse=True)
    return Shelf(tuple(now), tuple(later)) if later else EMPTY


def usable(node: NodeView, terms: Terms, vram_mib: int) -> list[GpuView]:
    """The GPUs of a node that could start it now, this many MiB on each."""
    if node.closed is not None or not is_candidate_node(node, terms):
        return []
    return [
        gpu
        for gpu in node.gpus
        if is_candidate(gpu, terms) and gpu.free_mib >= vram_mib and barred(gpu, terms) is None
    ]

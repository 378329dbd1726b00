"""What GPUs there are, and whether any node could ever hold a request, by size and name alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab_gpu.core.feasible import is_candidate, is_candidate_node, terms_of
from lab_gpu.core.ids import NodeName
from lab_gpu.core.model import Request
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import NodeView
from lab_gpu.core.units import format_mib

MOST_KINDS = 5
_ANY_POLICY = Policy()


def impossible(request: Request, nodes: Mapping[NodeName, NodeView], kind: str = "task") -> str | None:
    """Why no known node could ever hold it, with what there is; None where one could, or none is known."""
    if not nodes:
        return None
    if request.node is not None and request.node not in nodes:
        return f"there is no node {request.node}; known are {', '.join(sorted(nodes)[:MOST_KINDS])}"
    if not request.gpus:
        return None
    terms = terms_of(request, kind, _ANY_POLICY, night=False)
    size_mib = max(request.vram_mib or 0, request.min_free_mib or 0)
    for node in nodes.values():
        if not is_candidate_node(node, terms):
            continue
        fit = sum(1 for gpu in node.gpus if gpu.total_mib >= size_mib and is_candidate(gpu, terms))
        if fit >= request.gpus:
            return None
    where = f"node {request.node}" if request.node else "no known node"
    return f"{where} {'lacks' if request.node else 'has'} {wording(request)}; {inventory(nodes.values())}"


def wording(request: Request) -> str:
    """ "2 GPUs of type A100 with 10 GiB free on one node"."""
    many = request.gpus > 1
    parts = [f"{request.gpus} {'whole ' * request.whole}GPUs" if many else f"a {'whole ' * request.whole}GPU"]
    if request.gpu_type:
        parts.append(f"of type {request.gpu_type}")
    if request.vram_mib:
        parts.append(f"with {format_mib(request.vram_mib)} free")
    if request.gpu_ids:
        parts.append(f"among {', '.join(map(str, request.gpu_ids))}")
    if request.node:
        parts.append(f"on {request.node}")
    elif many:
        parts.append("on one node")
    return " ".join(parts)


def inventory(nodes: Iterable[NodeView]) -> str:
    """ "there are 8 x NVIDIA A100-SXM4-80GB with 80 GiB (at most 8 on one node)", largest first."""
    kinds: dict[tuple[int, str], list[int]] = {}
    for node in nodes:
        here: dict[tuple[int, str], int] = {}
        for gpu in node.gpus:
            here[gpu.total_mib, gpu.name] = here.get((gpu.total_mib, gpu.name), 0) + 1
        for gpu_kind, count in here.items():
            kinds.setdefault(gpu_kind, []).append(count)
    if not kinds:
        return "no node has any GPU"
    listed = sorted(kinds.items(), reverse=True)
    shown = [
        f"{sum(counts)} x {name} with {format_mib(total)} (at most {max(counts)} on one node)"
        for (total, name), counts in listed[:MOST_KINDS]
    ]
    if len(listed) > MOST_KINDS:
        shown.append(f"{len(listed) - MOST_KINDS} smaller kinds")
    return f"there are {', '.join(shown)}"

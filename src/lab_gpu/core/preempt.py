"""Whom a higher class may push out: overdue tasks first, then the fewest of the lowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations

from lab_gpu.core.capacity import Field, World, by_node, giving_back
from lab_gpu.core.feasible import usable
from lab_gpu.core.order import class_of
from lab_gpu.core.snapshot import NodeView, Running

MOST_TRIED_IN_PAIRS = 16

Cost = tuple[int, int, list[int], list[int], str]


def victims(
    priority: int, field: Field, gpus: int, vram_mib: int, world: World
) -> tuple[NodeView, tuple[Running, ...]] | None:
    """A node as it will be, and who has to go. None: it would not help, or enough are going already."""
    best: tuple[Cost, NodeView, tuple[Running, ...]] | None = None
    running = by_node(world.before)
    for name, shelf in field.shelves.items():
        if len(shelf.later) < gpus or shelf.later[gpus - 1] < vram_mib:
            continue
        holders = running.get(name, [])
        node = _once_stopped(world.views[name], [holder for holder in holders if holder.stopping])
        if _fits(node, (), field, gpus, vram_mib):
            return None
        lower = sorted((holder for holder in holders if _may_go(holder, priority)), key=_first_to_go)
        for chosen in _sets(node, lower, field, gpus, vram_mib):
            cost = _cost(chosen, name)
            if best is None or cost < best[0]:
                best = (cost, node, chosen)
    return None if best is None else (giving_back(best[1], best[2]), best[2])


def _may_go(holder: Running, priority: int) -> bool:
    return holder.kind == "task" and not holder.stopping and class_of(holder.priority) < class_of(priority)


def _first_to_go(holder: Running) -> tuple[bool, int, int]:
    """Of equals the one that was submitted last: it has most likely the least to lose."""
    return (not holder.overdue, holder.priority, -holder.id)


def _cost(chosen: Sequence[Running], node: str) -> Cost:
    in_time = sum(1 for holder in chosen if not holder.overdue)
    priorities = sorted((holder.priority for holder in chosen), reverse=True)
    return (in_time, len(chosen), priorities, sorted(-holder.id for holder in chosen), node)


def _once_stopped(node: NodeView, stopping: Sequence[Running]) -> NodeView:
    gone = giving_back(node, stopping)
    return replace(gone, gpus=tuple(replace(g, closed=None) if g.settling else g for g in gone.gpus))


def _fits(node: NodeView, gone: Sequence[Running], field: Field, gpus: int, vram_mib: int) -> bool:
    return len(usable(giving_back(node, gone), field.terms, vram_mib)) >= gpus


def _sets(
    node: NodeView, lower: list[Running], field: Field, gpus: int, vram_mib: int
) -> list[tuple[Running, ...]]:
    """Sets of victims that suffice: single ones, pairs, and one that is as small as taking away makes it."""
    if not lower or not _fits(node, lower, field, gpus, vram_mib):
        return []
    few = lower[:MOST_TRIED_IN_PAIRS]
    small = chain(combinations(lower, 1), combinations(few, 2))
    found = [chosen for chosen in small if _fits(node, chosen, field, gpus, vram_mib)]
    return [*found, _pruned(node, lower, field, gpus, vram_mib)]


def _pruned(
    node: NodeView, lower: list[Running], field: Field, gpus: int, vram_mib: int
) -> tuple[Running, ...]:
    """All of them, but for those without whom it still fits; the last to go are spared first."""
    chosen = list(lower)
    for holder in reversed(lower):
        without = [other for other in chosen if other is not holder]
        if _fits(node, without, field, gpus, vram_mib):
            chosen = without
    return tuple(chosen)

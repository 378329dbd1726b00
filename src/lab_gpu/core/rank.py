"""The ranks: of all GPUs that would do, those whose loss costs the others least.

Shared requests fill GPUs that are shared already, the fullest that fits first, so that whole GPUs stay free;
a fresh one is opened where it is smallest. Whole ones take the smallest GPUs, on the node with the fewest
free ones left, so that large nodes stay free for many-GPU tasks. Real nodes go before virtual ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lab_gpu.core.capacity import Field, World
from lab_gpu.core.feasible import usable
from lab_gpu.core.ids import NodeName
from lab_gpu.core.snapshot import GpuView, NodeView


class Score(NamedTuple):
    """Smaller is better, entry by entry."""

    virtual: bool
    whole_gpus_broken: int
    left_over_mib: int
    size_mib: int
    whole_gpus_of_node: int
    node: NodeName


Choice = tuple[Score, tuple[GpuView, ...]]


def choose_on(node: NodeView, field: Field, gpus: int, vram_mib: int) -> Choice | None:
    """The best GPUs of one node, and how good they are."""
    fit = usable(node, field.terms, vram_mib)
    if len(fit) < gpus:
        return None
    whole = field.terms.whole
    fit.sort(key=_whole_order if whole else _shared_order)
    chosen = fit[:gpus]
    shared = [] if whole else [gpu for gpu in chosen if is_shared(gpu)]
    fresh = chosen if whole else [gpu for gpu in chosen if not is_shared(gpu)]
    score = Score(
        virtual=node.virtual,
        whole_gpus_broken=len(fresh),
        left_over_mib=sum(gpu.free_mib for gpu in shared),
        size_mib=sum(gpu.total_mib for gpu in fresh),
        whole_gpus_of_node=sum(1 for gpu in node.gpus if not is_shared(gpu) and gpu.closed is None),
        node=node.name,
    )
    return score, tuple(sorted(chosen, key=_index))


def is_shared(gpu: GpuView) -> bool:
    """Somebody is on it already, so that it is no whole GPU to lose."""
    return gpu.holders > 0 or gpu.foreign_busy_mib > 0


def _shared_order(gpu: GpuView) -> tuple[bool, int, int, int]:
    return (not is_shared(gpu), gpu.free_mib, gpu.total_mib, gpu.index)


def _whole_order(gpu: GpuView) -> tuple[int, int]:
    return (gpu.total_mib, gpu.index)


def _index(gpu: GpuView) -> int:
    return gpu.index


class Choices:
    """The choice of every node for one amount, kept up to date like a Field."""

    __slots__ = ("_by_node", "_field", "_gpus", "_read", "_vram_mib", "_world")

    def __init__(self, world: World, field: Field, gpus: int, vram_mib: int) -> None:
        self._world, self._field, self._gpus, self._vram_mib = world, field, gpus, vram_mib
        self._read = len(world.log)
        self._by_node: dict[NodeName, Choice] = {}
        field.catch_up()
        for name in field.shelves:
            self._look_at(name)

    def best(self) -> tuple[NodeName, Sequence[GpuView]] | None:
        self._catch_up()
        if not self._by_node:
            return None
        score, gpus = min(self._by_node.values(), key=_score)
        return score.node, gpus

    def restart_log(self) -> None:
        self._catch_up()
        self._read = 0

    def _catch_up(self) -> None:
        log = self._world.log
        if self._read != len(log):
            self._field.catch_up()
            for name in set(log[self._read :]):
                self._look_at(name)
            self._read = len(log)

    def _look_at(self, name: NodeName) -> None:
        shelf = self._field.shelves.get(name)
        choice = None
        if shelf is not None and len(shelf.now) >= self._gpus and shelf.now[self._gpus - 1] >= self._vram_mib:
            choice = choose_on(self._world.views[name], self._field, self._gpus, self._vram_mib)
        if choice is None:
            self._by_node.pop(name, None)
        else:
            self._by_node[name] = choice


def _score(choice: Choice) -> Score:
    return choice[0]

"""What is free, indexed so that one comparison answers most requests and an event costs by what it touched.

A World is the nodes as a pass has left them so far; a Field is an index over it for requests of equal terms.
Both live on between passes: only nodes whose view is another object than before are looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lab_gpu.core.feasible import EMPTY, NEVER, Shelf, Terms, shelf_of
from lab_gpu.core.ids import NodeName
from lab_gpu.core.snapshot import GpuView, NodeView, Running


class World:
    def __init__(self) -> None:
        self.views: dict[NodeName, NodeView] = {}
        self.log: list[
            NodeName
        ] = []  # names of nodes in the order they changed; indexes remember how far they read
        self.before: Sequence[Running] = ()  # holders of before this pass
        self._placed: list[Running] = []
        self._by_node: dict[NodeName, list[Running]] | None = None

    def meet(self, nodes: Mapping[NodeName, NodeView], running: Sequence[Running]) -> None:
        """A new pass begins: what the last one changed here, and what changed outside, is taken anew."""
        views = self.views
        for name, view in nodes.items():
            if views.get(name) is not view:
                views[name] = view
                self.log.append(name)
        if len(views) > len(nodes):
            for name in [name for name in views if name not in nodes]:
                del views[name]
                self.log.append(name)
        self.before, self._placed, self._by_node = running, [], None

    def change(self, view: NodeView) -> None:
        self.views[view.name] = view
        self.log.append(view.name)

    def hold(self, holder: Running) -> None:
        """A placement of this pass is a holder to those after it."""
        self._placed.append(holder)
        self._by_node = None

    def holders(self) -> list[Running]:
        return [*self.before, *self._placed]

    def holders_on(self, node: NodeName) -> Sequence[Running]:
        if self._by_node is None:
            self._by_node = by_node(self.holders())
        return self._by_node.get(node, ())


def by_node(holders: Iterable[Running]) -> dict[NodeName, list[Running]]:
    found: dict[NodeName, list[Running]] = {}
    for holder in holders:
        found.setdefault(holder.grant.node, []).append(holder)
    return found


class Field:
    """The shelves of all nodes for some terms, and the best of them."""

    __slots__ = ("_bare", "_best_later", "_best_now", "_read", "_world", "shelves", "terms")

    def __init__(self, terms: Terms, world: World) -> None:
        self.terms = terms
        self._world = world
        self._read = len(world.log)
        self.shelves: dict[NodeName, Shelf] = {}
        self._best_now: dict[int, int] = {}
        self._best_later: dict[int, int] = {}
        self._bare: tuple[NodeView | None, Shelf] = (None, EMPTY)
        for name in world.views:
            self._look_at(name)

    def most_now(self, gpus: int) -> int:
        """The most MiB that so many GPUs of one node can each give now; NEVER where there are not as many."""
        if self._read != len(self._world.log):
            self.catch_up()
        best = self._best_now.get(gpus)
        if best is None:
            best = max((_entry(shelf.now, gpus) for shelf in self.shelves.values()), default=NEVER)
            self._best_now[gpus] = best
        return best

    def most_later(self, gpus: int) -> int:
        """The same for when all of ours have let go."""
        if self._read != len(self._world.log):
            self.catch_up()
        best = self._best_later.get(gpus)
        if best is None:
            best = max((_entry(shelf.later, gpus) for shelf in self.shelves.values()), default=NEVER)
            self._best_later[gpus] = best
        return best

    def most_on(self, view: NodeView, gpus: int) -> int:
        """The same for one node seen in another way than the world sees it (see Guard)."""
        if self._bare[0] is not view:
            self._bare = (view, shelf_of(view, self.terms))
        return _entry(self._bare[1].now, gpus)

    def catch_up(self) -> None:
        log = self._world.log
        for name in set(log[self._read :]):
            self._look_at(name)
        self._read = len(log)

    def restart_log(self) -> None:
        """The world's log begins anew."""
        self.catch_up()
        self._read = 0

    def _look_at(self, name: NodeName) -> None:
        view = self._world.views.get(name)
        new = EMPTY if view is None else shelf_of(view, self.terms)
        old = self.shelves.get(name, EMPTY)
        if new is EMPTY:
            self.shelves.pop(name, None)
        else:
            self.shelves[name] = new
        _renew(self._best_now, old.now, new.now)
        _renew(self._best_later, old.later, new.later)


def _entry(mibs: Sequence[int], gpus: int) -> int:
    return mibs[gpus - 1] if len(mibs) >= gpus else NEVER


def _renew(best: dict[int, int], old: Sequence[int], new: Sequence[int]) -> None:
    """Keeps the maxima that one changed node leaves certain, forgets the others."""
    for gpus, most in list(best.items()):
        after = _entry(new, gpus)
        if after >= most:
            best[gpus] = after
        elif _entry(old, gpus) == most:
            del best[gpus]


def taking(node: NodeView, chosen: Collection[str], vram_mib: int | None) -> NodeView:
    """The node once somebody holds these GPUs (by UUID), `vram_mib` None: whole."""
    return _with_gpus(
        node, {gpu.uuid: _taken(gpu, vram_mib, node.virtual) for gpu in node.gpus if gpu.uuid in chosen}
    )


def _taken(gpu: GpuView, vram_mib: int | None, virtual: bool) -> GpuView:
    busy = 100 if virtual else gpu.utilization
    if vram_mib is None:
        return replace(
            gpu, promised_mib=gpu.total_mib, holders=gpu.holders + 1, taken_whole=True, utilization=busy
        )
    return replace(
        gpu,
        promised_mib=gpu.promised_mib + vram_mib,
        holders=gpu.holders + 1,
        used_mib=min(gpu.total_mib, gpu.used_mib + vram_mib),
        utilization=busy,
    )


def giving_back(node: NodeView, gone: Iterable[Running]) -> NodeView:
    """The node once these holders have let go, with readings as they should be then."""
    changed: dict[str, GpuView] = {}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    for holder in gone:
        for uuid in holder.grant.gpus:
            if uuid in gpus:
                changed[uuid] = _given_back(changed.get(uuid, gpus[uuid]), holder.grant.vram_mib)
    return _with_gpus(node, changed)


def _given_back(gpu: GpuView, vram_mib: int | None) -> GpuView:
    if gpu.holders <= 1 or vram_mib is None:
        return replace(
            gpu,
            promised_mib=0,
            holders=0,
            taken_whole=False,
            used_mib=gpu.foreign_mib,
            utilization=gpu.utilization if gpu.foreign_mib else 0,
        )
    return replace(
        gpu,
        promised_mib=max(0, gpu.promised_mib - vram_mib),
        holders=gpu.holders - 1,
        used_mib=max(gpu.foreign_mib, gpu.used_mib - vram_mib),
    )


def _with_gpus(node: NodeView, changed: Mapping[str, GpuView]) -> NodeView:
    return replace(node, gpus=tuple(changed.get(gpu.uuid, gpu) for gpu in node.gpus)) if changed else node

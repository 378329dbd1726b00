"""Why something waits, made from the world as a pass left it: a code to act on and a sentence to read.

Most refusals of a pass are never read, so each is worked out when somebody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab_gpu.core.eligible import joined
from lab_gpu.core.feasible import NEVER, Terms, barred, is_candidate, is_candidate_node, later_mib, terms_of
from lab_gpu.core.ids import NodeName
from lab_gpu.core.inventory import impossible, wording
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import GpuView, GroupKey, NodeView, Refusal, RefusalCode, Reservation, Running
from lab_gpu.core.units import format_mib

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """The world after a pass. `kept` is what those see who must not delay the reservation (until `until`)."""

    now: float
    policy: Policy
    night: bool
    nodes: Mapping[NodeName, NodeView]
    kept: Mapping[NodeName, NodeView]
    holders: Sequence[Running]
    reservation: Reservation | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """A GPU of the right type and index, and what keeps it from starting something now."""

    node: NodeView
    gpu: GpuView
    bar: RefusalCode | None

    @property
    def place(self) -> str:
        return f"{self.node.name} GPU {self.gpu.index}"

    @property
    def closed_why(self) -> str | None:
        return self.node.closed or self.gpu.closed


class Refusals(Mapping[GroupKey, Refusal]):
    """A refusal for each group that was not placed to its end."""

    def __init__(self, scene: Scene, refused: Sequence[tuple[GroupKey, bool]]) -> None:
        self.scene = scene
        self._refused = refused
        self._full: dict[GroupKey, bool] | None = None
        self._read: dict[GroupKey, Refusal] = {}
        self.desk = Desk(scene)

    def __getitem__(self, key: GroupKey) -> Refusal:
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self.desk.judge(key, full=self._by_key()[key])
        return found

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self._by_key())

    def __len__(self) -> int:
        return len(self._refused)

    def __repr__(self) -> str:
        return f"Refusals({dict(self)!r})"

    def _by_key(self) -> dict[GroupKey, bool]:
        if self._full is None:
            self._full = dict(self._refused)
        return self._full


class Desk:
    """Answers about one scene; what requests of equal terms share is looked at once."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._spots: dict[Terms, list[list[Spot]]] = {}
        self._who: dict[str, list[Running]] | None = None

    def judge(self, key: GroupKey, full: bool = False) -> Refusal:
        if full:
            return Refusal(RefusalCode.ROOM, "its array already runs as many tasks at once as it may")
        request, scene = key.request, self.scene
        if not scene.nodes:
            return Refusal(RefusalCode.NO_NODE, "no node is known yet that could run it")
        never = impossible(request, scene.nodes, key.kind)
        if never is not None:
            return Refusal(RefusalCode.IMPOSSIBLE, never)
        if not request.gpus:
            asked = [node for node in scene.nodes.values() if request.node in (None, node.name)]
            return Refusal(RefusalCode.CLOSED, f"waiting for a node: {_closed_nodes(asked)}")
        code = self._code(key)
        if code is RefusalCode.BEHIND and scene.reservation is not None:
            first = scene.reservation
            text = f"would fit now, but must not delay {first.kind} {first.id}, which is first in line"
            return Refusal(code, text, behind=first.id if first.kind == "task" else None)
        return Refusal(code, f"waiting for {wording(request)}: {self._because(key, code)}")

    def terms(self, key: GroupKey) -> Terms:
        return terms_of(key.request, key.kind, self.scene.policy, self.scene.night)

    def spots(self, terms: Terms) -> list[list[Spot]]:
        """By node, in the order of names."""
        found = self._spots.get(terms)
        if found is None:
            nodes = sorted(self.scene.nodes.values(), key=lambda node: node.name)
            found = [_spots_of(node, terms) for node in nodes if is_candidate_node(node, terms)]
            self._spots[terms] = found
        return found

    def holders(self, gpu: GpuView) -> list[Running]:
        if self._who is None:
            self._who = {}
            for holder in self.scene.holders:
                for uuid in holder.grant.gpus:
                    self._who.setdefault(uuid, []).append(holder)
        return self._who.get(gpu.uuid, [])

    # --- which code ----------------------------------------------------------------------------

    def _code(self, key: GroupKey) -> RefusalCode:
        """The least that would have to change, tried from the least on."""
        terms, need = self.terms(key), key.request
        nodes, vram_mib = self.spots(terms), need.vram_mib or 0

        def enough(*bars: RefusalCode | None) -> bool:
            return any(
                sum(1 for spot in spots if spot.bar in bars and spot.gpu.free_mib >= vram_mib) >= need.gpus
                for spots in nodes
            )

        if enough(None):
            return RefusalCode.BEHIND
        if not any(sum(1 for spot in spots if not spot.closed_why) >= need.gpus for spots in nodes):
            return RefusalCode.CLOSED
        if enough(None, RefusalCode.NOT_IDLE):
            return RefusalCode.NOT_IDLE
        if enough(None, RefusalCode.CONDITION):
            return RefusalCode.CONDITION
        if any(sum(1 for spot in spots if _later(spot, terms) >= vram_mib) >= need.gpus for spots in nodes):
            return RefusalCode.GPUS_BUSY
        if any(sum(1 for s in spots if _open_size(s) >= vram_mib) >= need.gpus for spots in nodes):
            return RefusalCode.FOREIGN
        return RefusalCode.CLOSED

    # --- which words ---------------------------------------------------------------------------

    def _because(self, key: GroupKey, code: RefusalCode) -> str:
        terms, request = self.terms(key), key.request
        spots = [spot for spots in self.spots(terms) for spot in spots]
        if code is RefusalCode.CLOSED:
            return _listed(
                [f"{spot.place} is set aside ({spot.closed_why})" for spot in spots if spot.closed_why]
            )
        if code in (RefusalCode.NOT_IDLE, RefusalCode.CONDITION):
            return _listed([f"{spot.place} {reading(spot, terms)}" for spot in spots if spot.bar is code])
        if request.gpus > 1:
            return self._most_together(key)
        if code is RefusalCode.FOREIGN:
            return self._fullest_of_others(spots)
        return self._nobody_free(spots) if request.whole else self._most_free(spots)

    def _most_together(self, key: GroupKey) -> str:
        vram_mib = key.request.vram_mib or 0
        counts = [
            (
                sum(1 for spot in spots if spot.bar is None and spot.gpu.free_mib >= vram_mib),
                spots[0].node.name,
            )
            for spots in self.spots(self.terms(key))
            if spots
        ]
        most, name = max(counts, key=lambda entry: entry[0])
        return f"{name} has {most}" if most else "no node has any"

    def _fullest_of_others(self, spots: Sequence[Spot]) -> str:
        used = [spot for spot in spots if spot.gpu.foreign_mib and not spot.closed_why]
        return _listed([f"others use {said_of_others(spot.gpu)} on {spot.place}" for spot in used])

    def _nobody_free(self, spots: Sequence[Spot]) -> str:
        busy = [spot for spot in spots if spot.bar is RefusalCode.GPUS_BUSY]
        named = [f"{self.who(spot.gpu)} on {spot.place}" for spot in busy]
        return _listed(named) or self._fullest_of_others(spots)

    def _most_free(self, spots: Sequence[Spot]) -> str:
        mine = [spot for spot in spots if spot.bar in (None, RefusalCode.GPUS_BUSY)]
        if not mine:
            return self._fullest_of_others(spots)
        best = max(mine, key=lambda spot: spot.gpu.free_mib)
        return f"the most free is {format_mib(best.gpu.free_mib)} on {best.place} ({self.use(best.gpu)})"

    def who(self, gpu: GpuView) -> str:
        """task 7 and lease 2 run."""
        holders = self.holders(gpu)
        named = [f"{holder.kind} {holder.id}" for holder in holders[:MOST_NAMED]]
        if len(holders) > MOST_NAMED:
            named.append(f"{len(holders) - MOST_NAMED} more")
        return (
            f"{joined(named)} {'runs' if len(holders) == 1 else 'run'}" if named else "something of ours runs"
        )

    def use(self, gpu: GpuView) -> str:
        """task 7 holds 18 GiB, others use 2 GiB."""
        parts = [
            f"{holder.kind} {holder.id} holds {_amount(holder.grant.vram_mib)}"
            for holder in self.holders(gpu)[:MOST_NAMED]
        ]
        if len(self.holders(gpu)) > MOST_NAMED:
            parts.append(f"{len(self.holders(gpu)) - MOST_NAMED} more")
        if gpu.foreign_mib:
            parts.append(f"others use {said_of_others(gpu)}")
        return ", ".join(parts) or "nobody is on it"


def _spots_of(node: NodeView, terms: Terms) -> list[Spot]:
    return [
        Spot(node, gpu, RefusalCode.CLOSED if node.closed else barred(gpu, terms))
        for gpu in node.gpus
        if is_candidate(gpu, terms)
    ]


def _later(spot: Spot, terms: Terms) -> int:
    return NEVER if spot.node.closed else later_mib(spot.gpu, terms)


def _open_size(spot: Spot) -> int:
    return NEVER if spot.closed_why else spot.gpu.total_mib


def _closed_nodes(nodes: Iterable[NodeView]) -> str:
    return _listed([f"{node.name} is set aside ({node.closed})" for node in nodes if node.closed])


def reading(spot: Spot, terms: Terms) -> str:
    """What the live reading says against it."""
    gpu = spot.gpu
    if terms.util_limit is not None and gpu.utilization is not None and gpu.utilization > terms.util_limit:
        return f"is {gpu.utilization} % busy (at most {terms.util_limit:g} %)"
    left = format_mib(max(0, gpu.total_mib - gpu.used_mib))
    return f"has {left} really free (at least {format_mib(terms.min_free_mib)})"


def said_of_others(gpu: GpuView) -> str:
    note = f" ({gpu.foreign_note})" if gpu.foreign_note else ""
    return format_mib(gpu.foreign_mib) + note


def _amount(vram_mib: int | None) -> str:
    return "all of it" if vram_mib is None else format_mib(vram_mib)


def _listed(sentences: Sequence[str]) -> str:
    more = len(sentences) - MOST_NAMED
    shown = ", ".join(sentences[:MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown

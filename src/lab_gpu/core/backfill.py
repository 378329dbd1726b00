"""EASY backfill: the first blocked ask reserves the GPUs it can have soonest; nobody may delay it.

Others go ahead of it on GPUs it does not need, beside it where both fit, or on what it needs only if they are
sure to be gone by then. Where nobody knows when holders end, the GPUs with the fewest such holders are kept:
their number can only fall, so the ask is not starved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lab_gpu.core.capacity import Field, World, taking
from lab_gpu.core.feasible import NEVER, barred, is_candidate, later_mib
from lab_gpu.core.model import Grant
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import GpuView, NodeView, RefusalCode, Running

SHORTEST_OVERRUN_S = 60.0

_BY_READING = (RefusalCode.CONDITION, RefusalCode.NOT_IDLE, RefusalCode.CLOSED)


class Release(NamedTuple):
    """When a holder lets go of a GPU; in the order of these fields, so that they sort as they come.

    Those whose end nobody knows come last, of them the largest first: so the fewest of them have to go.
    """

    unknown: bool
    at: float
    smallness: int
    key: tuple[str, int]
    mib: int
    not_before: float


class GpuWait(NamedTuple):
    """When one GPU can be had; in the order in which GPUs of one node are chosen.

    Those that wait for the same holders stand together, so that fewer have to end.
    """

    unknown_count: int
    at: float
    unknown: tuple[tuple[str, int], ...]
    gpu_index: int
    not_before: float
    left_mib: int | None
    gpu: GpuView


@dataclass(frozen=True, slots=True)
class Wait:
    """When GPUs of a node can be had: at `at`, unless holders whose end nobody knows have to go first.

    Nothing frees them before `not_before`. `left_mib` is what each then has beside the need; None: nothing.
    """

    unknown_count: int
    at: float
    not_before: float
    gpus: tuple[GpuView, ...]
    left_mib: tuple[int | None, ...]


def release_of(holder: Running, now: float, policy: Policy) -> Release:
    """One that outlived its time is taken to need as long again, but nobody may count on that."""
    at, not_before = holder.ends_at, now
    if at is not None and at <= now:
        at = now + max(SHORTEST_OVERRUN_S, now - at)
    elif at is not None and not holder.stopping:
        not_before = at
    if holder.stopping:
        latest = now + policy.soft_timeout_s + policy.term_timeout_s
        at = latest if at is None else min(at, latest)
    mib = holder.grant.vram_mib or 0
    return Release(at is None, at or 0.0, -mib, (holder.kind, holder.id), mib, not_before)


def releases_by_gpu(holders: Iterable[Running], now: float, policy: Policy) -> dict[str, list[Release]]:
    """Of one node, in the order in which they let go."""
    found: dict[str, list[Release]] = {}
    for holder in holders:
        release = release_of(holder, now, policy)
        for uuid in holder.grant.gpus:
            found.setdefault(uuid, []).append(release)
    for releases in found.values():
        releases.sort()
    return found


class Search:
    """Where and when one request could start, by when holders let go."""

    def __init__(
        self, field: Field, gpus: int, vram_mib: int, world: World, now: float, policy: Policy
    ) -> None:
        self._field, self._terms, self._gpus, self._vram_mib = field, field.terms, gpus, vram_mib
        self._world, self._now, self._policy = world, now, policy
        # Nobody may join where the need is for a quiet GPU, or for one to itself.
        self._alone = self._terms.whole or self._terms.util_limit is not None or self._terms.min_free_mib > 0

    def soonest(self) -> tuple[NodeView, Wait] | None:
        """The node and GPUs that could start it first; None where nothing of ours could ever make room."""
        best: tuple[tuple[int, float, bool, str], NodeView, Wait] | None = None
        for name, shelf in self._field.shelves.items():
            if len(shelf.later) < self._gpus or shelf.later[self._gpus - 1] < self._vram_mib:
                continue
            node = self._world.views[name]
            wait = self._on_node(node)
            if wait is not None:
                rank = (wait.unknown_count, wait.at, node.virtual, name)
                if best is None or rank < best[0]:
                    best = (rank, node, wait)
        return None if best is None else best[1:]

    def _on_node(self, node: NodeView) -> Wait | None:
        """On those of its GPUs that can be had first."""
        releases = releases_by_gpu(self._world.holders_on(node.name), self._now, self._policy)
        waits = []
        for gpu in node.gpus:
            if is_candidate(gpu, self._terms):
                wait = self._for_gpu(gpu, releases.get(gpu.uuid, []))
                if wait is not None:
                    waits.append(wait)
        if len(waits) < self._gpus:
            return None
        waits.sort()
        chosen = sorted(waits[: self._gpus], key=_index)
        return Wait(
            unknown_count=len({key for wait in chosen for key in wait.unknown}),
            at=max([wait.at for wait in chosen]),
            not_before=max([wait.not_before for wait in chosen]),
            gpus=tuple([wait.gpu for wait in chosen]),
            left_mib=tuple([wait.left_mib for wait in chosen]),
        )

    def _for_gpu(self, gpu: GpuView, releases: list[Release]) -> GpuWait | None:
        """None: not even with all of ours gone."""
        now, free_mib = self._now, gpu.free_mib
        bar = barred(gpu, self._terms)
        gone: Sequence[Release] = ()
        at = not_before = now
        if bar is not None or free_mib < self._vram_mib:
            later = later_mib(gpu, self._terms)
            if later == NEVER or later < self._vram_mib:
                return None
            if gpu.settling:
                at = now + self._policy.gpu_memory_wait_s
            if gpu.holders > len(releases):
                releases = [*releases, *_unseen(gpu.holders - len(releases), now)]
            all_must_go = self._terms.whole or not gpu.shareable or gpu.taken_whole or bar in _BY_READING
            gone, free_mib = _gone_first(releases, free_mib, later, NEVER if all_must_go else self._vram_mib)
        for release in gone:
            at = max(at, release.at)
            not_before = max(not_before, release.not_before)
        unknown = tuple(sorted([release.key for release in gone if release.unknown]))
        left_mib = None if self._alone or not gpu.shareable else free_mib - self._vram_mib
        return GpuWait(len(unknown), at, unknown, gpu.index, not_before, left_mib, gpu)


def _unseen(count: int, now: float) -> list[Release]:
    """Holders the view counts and nobody told us of."""
    return [Release(True, 0.0, 0, ("unseen", number), 0, now) for number in range(count)]


def _index(wait: GpuWait) -> int:
    return wait.gpu_index


def _gone_first(
    releases: Sequence[Release], free_mib: int, later_mib: int, wanted_mib: int
) -> tuple[Sequence[Release], int]:
    """Who has to let go until that much is free (NEVER: all of them), and what is free then."""
    if wanted_mib != NEVER:
        for count, release in enumerate(releases):
            if free_mib >= wanted_mib:
                return releases[:count], free_mib
            free_mib = min(later_mib, free_mib + release.mib)
    return releases, later_mib


class Guard:
    """Keeps the reserved GPUs of one node. `bare` is the node as it is; the world sees what is not kept."""

    def __init__(self, world: World, node: NodeView, wait: Wait) -> None:
        self._world = world
        self.bare = node
        self.until = None if wait.unknown_count else wait.not_before
        self._left_mib = {gpu.uuid: left for gpu, left in zip(wait.gpus, wait.left_mib, strict=True)}
        self._show()

    def lets_by(self, expected_s: float | None, now: float, policy: Policy) -> bool:
        """Whether a task is sure to be gone before the reserved GPUs are needed."""
        return may_pass(expected_s, self.until, now, policy)

    def take_short(self, grant: Grant) -> None:
        """By a task that is gone in time: what is kept for later stays as much as it was."""
        self.bare = taking(self.bare, grant.gpus, grant.vram_mib)
        self._show()

    def take_long(self, grant: Grant) -> None:
        """By a task that may still be there: it stands beside the reserved need."""
        self.bare = taking(self.bare, grant.gpus, grant.vram_mib)
        for uuid in grant.gpus:
            left = self._left_mib.get(uuid)
            if left is not None and grant.vram_mib is not None:
                self._left_mib[uuid] = left - grant.vram_mib
        self._show()

    def _show(self) -> None:
        gpus = tuple(
            _kept(gpu, self._left_mib[gpu.uuid]) if gpu.uuid in self._left_mib else gpu
            for gpu in self.bare.gpus
        )
        self._world.change(replace(self.bare, gpus=gpus))


def may_pass(expected_s: float | None, until: float | None, now: float, policy: Policy) -> bool:
    """Whether something this long is backfill: short enough, and over before the reservation begins."""
    if expected_s is None or until is None or expected_s > policy.backfill_time_limit_s:
        return False
    return now + expected_s <= until


def _kept(gpu: GpuView, left_mib: int | None) -> GpuView:
    """As one sees it who may be there when the reserved need comes."""
    if left_mib is None:
        return replace(gpu, taken_whole=True)
    kept_mib = max(0, gpu.free_mib - left_mib)
    return replace(gpu, promised_mib=gpu.promised_mib + kept_mib, holders=gpu.holders + 1)

"""Who is asked first: the front, then priority with the night's bonus, then the place in line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from lab_gpu.core.night import is_night
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import AskGroup, GroupKey

CLASS_STEP = 100


def night_now(now: float, policy: Policy, utc_offset_s: float) -> bool:
    return is_night(now, policy.night_start, policy.night_end, utc_offset_s)


def effective_priority(priority: int, policy: Policy, night: bool) -> float:
    """At night all below normal are lifted alike, but none above what `normal` or a lifted `low` has.

    Without that ceiling -1 would be a better priority than 0.
    """
    if priority >= 0 or not night:
        return priority
    bonus = policy.night_low_bonus * CLASS_STEP
    return min(priority + bonus, max(0.0, bonus - CLASS_STEP))


def class_of(priority: int) -> int:
    """-1 low, 0 normal, 1 high: the bands between the three named priorities."""
    return -1 if priority < 0 else 1 if priority >= CLASS_STEP else 0


def rank_of(key: GroupKey, policy: Policy, night: bool) -> tuple[int, float]:
    """Smaller goes first."""
    return (-key.front, -effective_priority(key.priority, policy, night))


Turn = tuple[int, float, int, int, int]  # front, priority, position, id, and which group


class Line:
    """All groups as one line: `here` is whose turn it is, and one of two answers moves it on."""

    def __init__(self, groups: Sequence[AskGroup], ranks: Sequence[tuple[int, float]]) -> None:
        self._rest: list[Iterator[tuple[int, int]]] = [iter(group.asks) for group in groups]
        self._ranks = ranks
        self._heap: list[Turn] = []
        for number, rest in enumerate(self._rest):
            first = next(rest, None)
            if first is not None:
                self._heap.append((*ranks[number], *first, number))
        heapify(self._heap)

    @property
    def here(self) -> Turn | None:
        return self._heap[0] if self._heap else None

    def next_of_group(self) -> None:
        """The one whose turn it was is served: the next of its group takes its place in the line."""
        number = self._heap[0][-1]
        following = next(self._rest[number], None)
        if following is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (*self._ranks[number], *following, number))

    def skip_group(self) -> None:
        heappop(self._heap)

    def after(self, turn: Turn) -> Turn | None:
        """Whose turn would follow in the group of one that was skipped."""
        number = turn[-1]
        following = next(self._rest[number], None)
        return None if following is None else (*self._ranks[number], *following, number)

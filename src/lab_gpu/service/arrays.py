"""One body may stand for many tasks: lays out arrays, and what tasks of one request wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import After, Dependency
from lab_gpu.wire.tasks import AfterBody, ArrayBody, TaskBody

MOST_TASKS = 100_000
MOST_LINKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """`indices` of each body's tasks (None: no array), and the place of its first task, counted from 1."""

    indices: tuple[Sequence[int | None], ...]
    first: tuple[int, ...]
    tasks: int

    def places(self, body: int) -> range:
        return range(self.first[body], self.first[body] + len(self.indices[body]))


def lay_out(bodies: Sequence[TaskBody]) -> Layout:
    """Arrays must be sound: see `array_problem`."""
    indices: list[Sequence[int | None]] = []
    first, at = [], 1
    for body in bodies:
        members: Sequence[int | None] = _members(body.array) if body.array else (None,)
        indices.append(members)
        first.append(at)
        at += len(members)
    return Layout(tuple(indices), tuple(first), at - 1)


def array_problem(array: ArrayBody) -> str | None:
    if array.first < 0:
        return "array.first must not be negative; count from 0"
    if array.last < array.first:
        return f"the array ends at {array.last}, before it begins at {array.first}; swap the two"
    if array.step < 1:
        return "array.step must be at least 1"
    if array.limit is not None and array.limit < 1:
        return "array.limit must be at least 1; leave it out for no limit"
    if len(_members(array)) > MOST_TASKS:
        return f"the array has more than {MOST_TASKS} tasks; submit it in parts"
    return None


def after_problems(own: int, body: TaskBody, bodies: int) -> list[str]:
    """`own` counts from 1."""
    found, kinds = [], dict[int, str]()
    for each in body.after or ():
        if each.id == 0 or -each.id > bodies:
            found.append(
                f"after names task {each.id}; give an id, or -1 to -{bodies} for a task of this request"
            )
        elif -each.id == own:
            found.append("it waits for itself; name another task in after")
        elif kinds.setdefault(each.id, each.kind) != each.kind:
            found.append(f"after names task {each.id} twice with different conditions; keep one of them")
    return found


def cycle_problem(bodies: Sequence[TaskBody]) -> str | None:
    """Tasks of one request that wait for each other would wait for ever."""
    waits = {
        own: {-each.id for each in body.after or () if each.id < 0} for own, body in enumerate(bodies, 1)
    }
    followers: dict[int, list[int]] = {}
    for own, others in waits.items():
        for other in others:
            followers.setdefault(other, []).append(own)
    free = deque(own for own, others in waits.items() if not others)
    while free:
        done = free.popleft()
        for follower in followers.get(done, ()):
            waits[follower].discard(done)
            if not waits[follower]:
                free.append(follower)
    stuck = [own for own, others in waits.items() if others]
    if not stuck:
        return None
    shown = ", ".join(map(str, stuck[:5])) + (" and others" if len(stuck) > 5 else "")
    return f"tasks {shown} wait for each other in a circle; take one of their dependencies out"


def dependencies(after: Sequence[AfterBody], layout: Layout) -> tuple[Dependency, ...]:
    """Who waits for an array waits for all its tasks."""
    found: dict[int, Dependency] = {}
    for each in after:
        kind = After(each.kind)
        ids = [each.id] if each.id > 0 else [-place for place in layout.places(-each.id - 1)]
        for on in ids:
            found[on] = Dependency(TaskId(on), kind)
    return tuple(found.values())


def too_much(bodies: Sequence[TaskBody]) -> str | None:
    layout = lay_out(bodies)
    if layout.tasks > MOST_TASKS:
        return f"these are {layout.tasks} tasks, and one request may bring {MOST_TASKS}; submit them in parts"
    links = sum(
        len(layout.indices[own])
        * sum(len(layout.places(-each.id - 1)) if each.id < 0 else 1 for each in body.after)
        for own, body in enumerate(bodies)
        if body.after
    )
    if links > MOST_LINKS:
        return f"the tasks wait for each other in {links} ways; put one task between two arrays that wait"
    return None


def _members(array: ArrayBody) -> range:
    return range(array.first, array.last + 1, array.step)

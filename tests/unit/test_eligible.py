"""Why a task is not in the line at all, in the words a person reads."""

from __future__ import annotations

from lab_gpu.core.eligible import eligible
from lab_gpu.core.model import After, TaskState
from lab_gpu.core.snapshot import Refusal, RefusalCode

NOW = 1_763_600_000.0  # 2025-11-20 00:53:20 UTC


def why(**facts: object) -> Refusal:
    found = eligible(now=NOW, **facts)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_task_nothing_keeps_is_in_line() -> None:
    assert eligible(now=NOW) is None
    assert eligible(now=NOW, not_before=NOW, queue="q") is None


def test_held() -> None:
    assert why(held=True).text == "held"
    found = why(held=True, held_why="two losses in a row", queue="q", queue_turn=(3, "running"))
    assert (found.code, found.text) == (RefusalCode.HELD, "held: two losses in a row")
    assert "release" in found.advice[0]


def test_dependencies_are_named_with_what_they_do() -> None:
    found = why(waits_on=[(3, After.OK, TaskState.RUNNING), (4, After.ANY, TaskState.QUEUED)])
    assert found.code is RefusalCode.DEPENDENCY
    assert found.text == "waiting for task 3 to complete (running) and task 4 to end (queued)"
    assert found.behind == 3


def test_many_dependencies_are_counted() -> None:
    found = why(waits_on=[(number, After.FAIL, TaskState.QUEUED) for number in range(1, 9)])
    assert found.text.endswith("task 5 to fail (queued) and 3 more")


def test_a_queue_names_the_task_in_front() -> None:
    found = why(queue="nightly", queue_turn=(7, "backing off"))
    assert found.code is RefusalCode.QUEUE
    assert found.text == "waiting for its turn in queue nightly: task 7 is in front (backing off)"
    assert found.behind == 7


def test_times_are_relative_and_exact() -> None:
    begin = why(not_before=NOW + 7200)
    assert (begin.code, begin.earliest_start) == (RefusalCode.BEGIN, NOW + 7200)
    assert begin.text == "to begin in 2h (2025-11-20 02:53:20 UTC)"
    backoff = why(not_before=NOW + 600, tries_before=3)
    assert (backoff.code, backoff.earliest_start) == (RefusalCode.BACKOFF, NOW + 600)
    assert backoff.text == "pausing after 3 tries: it goes again in 10m (2025-11-20 01:03:20 UTC)"

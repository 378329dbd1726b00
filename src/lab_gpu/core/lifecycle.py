"""All moves of tasks and attempts, in two tables. A move that is not here raises and changes nothing."""

from __future__ import annotations

from lab_gpu.core.model import AttemptState as A
from lab_gpu.core.model import TaskState as T

TASK_MOVES: dict[tuple[T, str], T] = {
    (T.QUEUED, "launch"): T.RUNNING,
    (T.QUEUED, "cancel"): T.CANCELLED,
    (T.QUEUED, "give_up"): T.FAILED,  # a dependency that cannot be met any more
    (T.RUNNING, "complete"): T.COMPLETED,
    (T.RUNNING, "fail"): T.FAILED,
    (T.RUNNING, "cancel"): T.CANCELLED,
    (T.RUNNING, "requeue"): T.QUEUED,
    (T.COMPLETED, "retry"): T.QUEUED,
    (T.FAILED, "retry"): T.QUEUED,
    (T.CANCELLED, "retry"): T.QUEUED,
}

ATTEMPT_MOVES: dict[tuple[A, str], A] = {
    (A.ARMED, "launch"): A.LAUNCHING,
    (A.ARMED, "take_back"): A.ENDED,  # no try: its row is removed
    (A.LAUNCHING, "begin"): A.RUNNING,
    (A.LAUNCHING, "stop"): A.STOPPING,
    (A.LAUNCHING, "end"): A.ENDED,
    (A.RUNNING, "stop"): A.STOPPING,
    (A.RUNNING, "end"): A.ENDED,
    (A.STOPPING, "end"): A.ENDED,
    (A.LAUNCHING, "lose_sight"): A.SILENT,
    (A.RUNNING, "lose_sight"): A.SILENT,
    (A.STOPPING, "lose_sight"): A.SILENT,
    (A.SILENT, "find"): A.RUNNING,
    (A.SILENT, "end"): A.ENDED,
}


class IllegalMove(Exception):
    """A bug of ours: somebody asked for a move the table does not have."""


def move_task(state: T, event: str) -> T:
    try:
        return TASK_MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a {state.value} task cannot {event}") from None


def move_attempt(state: A, event: str) -> A:
    try:
        return ATTEMPT_MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"an attempt that is {state.value} cannot {event}") from None

"""What a task's end means for those that wait for it."""

from __future__ import annotations

from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import TaskState
from lab_gpu.service.house import House
from lab_gpu.service.projection import OpenTask


def fail_dependent(house: House, task: OpenTask, on: TaskId) -> None:
    """A dependency that cannot be met any more fails the task without an attempt, and so down the chain."""
    now = house.now
    pending = [(task, on)]
    while pending:
        each, cause = pending.pop()
        if each.id not in house.projection.tasks:
            continue
        text = f"dependency {cause} failed"
        spent = (0, 0)
        house.ledger.tasks.finish(each.id, TaskState.FAILED, ("dependency", text), None, spent, now)
        house.ledger.event(now, "failed", each.id, reason=text)
        house.launcher.revoke(each.id)
        pending.extend((next_one, each.id) for next_one in house.projection.ended(each, TaskState.FAILED))


def ended(house: House, task: OpenTask, state: TaskState) -> None:
    """Takes a final task out of what is open, and fails those that can never start now."""
    for dependent in house.projection.ended(task, state):
        fail_dependent(house, dependent, task.id)
    house.changed = True

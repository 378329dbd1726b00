"""The ledger's door for new tasks: what only the loop can check, then one write for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab_gpu.core.documents import new_task_from_doc
from lab_gpu.core.errors import Refused
from lab_gpu.core.ids import TaskId
from lab_gpu.core.inventory import impossible
from lab_gpu.core.model import After, NewTask, Request, TaskState
from lab_gpu.service.chains import fail_dependent
from lab_gpu.service.house import Answer, House
from lab_gpu.service.projection import OpenTask, satisfied
from lab_gpu.wire.inside import Caller


def add_tasks(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """All or none. The same key from the same person is answered as the first time, and nothing is added."""
    key = args.get("idempotency_key")
    if key and (before := house.ledger.repeated(who.uid, key)):
        return before | {"repeated": True}
    tasks = [new_task_from_doc(doc) for doc in args["tasks"]]
    states = _check(house, tasks)
    now = house.now
    environment = args.get("environment")
    environment_id = house.ledger.tasks.environment(environment) if environment is not None else None
    tasks = _with_batches(house, tasks)
    ids = house.ledger.tasks.add(tasks, environment_id, house.projection.next_position, now)
    house.ledger.events(now, "submitted", ids, who.user)
    position = house.projection.next_position
    for offset, (task, task_id) in enumerate(zip(tasks, ids, strict=True)):
        _remember(house, task, task_id, position + offset, ids, states)
    house.changed = True
    answer: Answer = {"ids": ids, "warnings": _warnings(house, tasks)}
    if key:
        house.ledger.remember(who.uid, key, answer, now)
    return answer | {"repeated": False}


def _with_batches(house: House, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Tasks that were submitted together are known by the id of the first of them."""
    first = house.ledger.tasks.next_id()
    names: dict[int, int] = {}
    for offset, task in enumerate(tasks):
        if task.batch is not None:
            names.setdefault(task.batch, first + offset)
    return [replace(task, batch=names[task.batch]) if task.batch is not None else task for task in tasks]


def _check(house: House, tasks: Sequence[NewTask]) -> dict[TaskId, TaskState]:
    """Refuses what no known node could ever hold, and dependencies that are not there. Answers their states."""
    problems: list[str] = []
    states: dict[TaskId, TaskState] = {}
    verdicts: dict[Request, str | None] = {}
    for number, task in enumerate(tasks, 1):
        prefix = f"task {number}: " if len(tasks) > 1 else ""
        if task.request not in verdicts:
            verdicts[task.request] = impossible(task.request, house.book.nodes())
        if verdicts[task.request]:
            problems.append(f"{prefix}cannot submit: {verdicts[task.request]}")
        problems.extend(f"{prefix}{text}" for text in _bad_dependencies(house, tasks, number, states))
    if problems:
        raise Refused(
            problems[0] if len(problems) == 1 else f"cannot submit: {'; '.join(problems[:3])}",
            tuple(problems),
        )
    return states


def _bad_dependencies(
    house: House, tasks: Sequence[NewTask], number: int, states: dict[TaskId, TaskState]
) -> list[str]:
    bad = []
    for each in tasks[number - 1].after:
        if each.on < 0:
            if -each.on >= number:
                bad.append(f"cannot wait for task {-each.on} of this submit: it comes later; put it first")
        elif each.on not in states:
            state = house.ledger.tasks.state(each.on)
            if state is None:
                bad.append(
                    f"cannot wait for task {each.on}: there is no such task; `lab-gpu list` shows them"
                )
            else:
                states[each.on] = state
    return bad


def _remember(
    house: House,
    task: NewTask,
    task_id: TaskId,
    position: int,
    ids: Sequence[TaskId],
    states: Mapping[TaskId, TaskState],
) -> None:
    waits_on: list[tuple[TaskId, After]] = []
    hopeless: TaskId | None = None
    for each in task.after:
        on = ids[-each.on - 1] if each.on < 0 else each.on
        met = satisfied(each.kind, states.get(on, TaskState.QUEUED))
        if met is None:
            waits_on.append((on, each.kind))
        elif not met:
            hopeless = on
    opened = open_task(task, task_id, position)
    house.projection.add(opened, waits_on)
    if hopeless is not None:
        fail_dependent(house, opened, hopeless)


def open_task(task: NewTask, task_id: TaskId, position: int) -> OpenTask:
    return OpenTask(
        id=task_id,
        owner=task.owner,
        uid=task.uid,
        state=TaskState.QUEUED,
        request=task.request,
        priority=task.priority,
        position=position,
        held=task.held,
        not_before=task.begin_at,
        queue=(task.owner, task.queue) if task.queue else None,
        batch=task.batch,
        batch_limit=task.batch_limit,
        time_limit_s=task.time_limit_s,
        estimate_s=task.estimate_s,
        signature=task.signature,
        name=task.name,
    )


def _warnings(house: House, tasks: Sequence[NewTask]) -> list[str]:
    nodes = house.book.nodes()
    if not nodes and any(task.request.gpus for task in tasks):
        return [
            "no GPU is known here yet: the task waits; declare a virtual node with"
            " `lab-gpu server add-node --name node-1 --gpus 1 --vram 24`"
        ]
    if house.standing.manual_tick:
        return ["the master schedules by hand: `lab-gpu server tick` runs a pass"]
    return []

"""What a person wants done to tasks. Each wish names its tasks; one that cannot be met is answered by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab_gpu.core.documents import request_from_doc, spec_from_doc
from lab_gpu.core.errors import Forbidden, LabGpuError, NotFound, Refused, TooLate
from lab_gpu.core.ids import TaskId
from lab_gpu.core.inventory import impossible
from lab_gpu.core.lifecycle import move_task
from lab_gpu.core.model import After, TaskState
from lab_gpu.service.chains import ended, fail_dependent
from lab_gpu.service.house import Answer, House
from lab_gpu.service.projection import OpenTask, from_row, satisfied
from lab_gpu.service.stop import begin_stop
from lab_gpu.wire.inside import Caller


def act(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """One wish for many tasks; those it cannot be met for are told apart from the others."""
    wish = WISHES[args["action"]]
    if wish is top:
        args = {**args, "fronts": _fronts(house, args["ids"])}
    done: list[int] = []
    errors: list[Answer] = []
    for number in dict.fromkeys(args["ids"]):
        try:
            wish(house, who, TaskId(number), args)
            done.append(number)
        except LabGpuError as error:
            errors.append({"id": number, "slug": error.slug, "text": str(error)})
    return {"done": done, "errors": errors}


def _owned(house: House, who: Caller, task_id: TaskId, verb: str) -> tuple[OpenTask | None, TaskState]:
    """The open task, or None with the state it ended in. Raises where it is not there or somebody else's."""
    task = house.projection.tasks.get(task_id)
    if task:
        uid, owner, state = task.uid, task.owner, task.state
    else:
        row = house.ledger.tasks.row(task_id)
        if row is None:
            raise NotFound(
                f"cannot {verb} task {task_id}: there is no such task; `lab-gpu list --all` shows them"
            )
        uid, owner, state = row["uid"], row["owner"], TaskState(row["state"])
    if who.uid not in (uid, house.standing.owner_uid, 0):
        raise Forbidden(f"cannot {verb} task {task_id}: it belongs to {owner}; ask them")
    return task, state


def _open_only(house: House, who: Caller, task_id: TaskId, verb: str) -> OpenTask:
    task, state = _owned(house, who, task_id, verb)
    if task is None:
        raise TooLate(
            f"cannot {verb} task {task_id}: it is {state.value} already; `lab-gpu retry {task_id}` runs it again"
        )
    return task


def _queued_only(house: House, who: Caller, task_id: TaskId, verb: str, instead: str) -> OpenTask:
    task = _open_only(house, who, task_id, verb)
    if task.state is not TaskState.QUEUED:
        raise TooLate(f"cannot {verb} task {task_id}: it is running; {instead}")
    return task


def cancel(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    task = _open_only(house, who, task_id, "cancel")
    if task.state is TaskState.RUNNING:
        live = house.live[task_id]
        timeouts = (args.get("soft_timeout_s"), args.get("term_timeout_s"))
        begin_stop(house, live, "cancelled", who.user, timeouts_s=timeouts)
        return
    cancel_queued(house, task, who.user)


def cancel_queued(house: House, task: OpenTask, by: str) -> None:
    now = house.now
    row = house.ledger.tasks.row(task.id)
    assert row is not None
    state = move_task(task.state, "cancel")
    spent = (row["failures"], row["losses"])
    house.launcher.revoke(task.id)
    reason = ("cancelled", f"cancelled by {by}")
    house.ledger.tasks.finish(task.id, state, reason, row["exit_code"], spent, now)
    house.ledger.event(now, "cancelled", task.id, who=by)
    ended(house, task, state)


def preempt(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    task = _open_only(house, who, task_id, "preempt")
    if task.state is not TaskState.RUNNING:
        raise TooLate(
            f"cannot preempt task {task_id}: it is not running; `lab-gpu why {task_id}` says why it waits"
        )
    timeouts = (args.get("soft_timeout_s"), args.get("term_timeout_s"))
    begin_stop(
        house,
        house.live[task_id],
        "preempted",
        who.user,
        then=args.get("then") or "queue",
        timeouts_s=timeouts,
    )


def hold(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    instead = f"`lab-gpu server preempt --task-id {task_id} --then hold` stops it first"
    task = _queued_only(house, who, task_id, "hold", instead)
    task.held, task.reason = True, ("held", f"held by {who.user}")
    house.launcher.revoke(task_id)
    house.ledger.tasks.hold(task_id, True, task.reason)
    house.ledger.event(house.now, "held", task_id, who=who.user)
    house.changed |= house.projection.regroup(task)


def release(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    task = _queued_only(house, who, task_id, "release", "there is nothing to release")
    if not task.held:
        raise TooLate(
            f"cannot release task {task_id}: it is not held; `lab-gpu why {task_id}` says why it waits"
        )
    task.held, task.reason = False, (None, None)
    house.ledger.tasks.hold(task_id, False, task.reason)
    house.ledger.event(house.now, "released", task_id, who=who.user)
    house.changed |= house.projection.regroup(task)


def top(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    """To the head of the line. Several of one wish keep the order they were named in."""
    task = _queued_only(house, who, task_id, "move", "it needs no place in line")
    front: int = args["fronts"][task_id]
    house.ledger.tasks.front(task_id, front)
    house.ledger.event(house.now, "moved_to_head", task_id, who=who.user)
    house.projection.moved(task, front=front, position=task.position)
    house.changed = True


def _fronts(house: House, ids: Sequence[int]) -> dict[int, int]:
    named = list(dict.fromkeys(ids))
    highest = max((each.front for each in house.projection.tasks.values()), default=0)
    return {each: highest + len(named) - place for place, each in enumerate(named)}


def retry(house: House, who: Caller, task_id: TaskId, args: Mapping[str, Any]) -> None:
    """A final task goes to the end of the line, its history kept; one in back-off is let go at once."""
    task, state = _owned(house, who, task_id, "retry")
    if task is None:
        _requeue_final(house, task_id, state, who.user)
    elif task.state is TaskState.RUNNING:
        raise TooLate(f"cannot retry task {task_id}: it is running; cancel it first")
    else:
        task.not_before = None
        task.reason = task.reason if task.held else (None, None)
        requeue_row(house, task, task.reason)
        house.ledger.event(house.now, "retried", task_id, who=who.user)
        house.changed |= house.projection.regroup(task)


def _requeue_final(house: House, task_id: TaskId, state: TaskState, by: str) -> None:
    """With it go those that failed for want of it. Nobody depends on a younger task: the oldest go first."""
    states = {task_id: state}
    followed = [task_id]
    while followed:
        for dependent in house.ledger.tasks.failed_dependents(followed.pop()):
            if dependent not in states:
                states[dependent] = TaskState.FAILED
                followed.append(dependent)
    for each in sorted(states):
        _requeue_one(house, each, states[each], by)


def _requeue_one(house: House, task_id: TaskId, state: TaskState, by: str) -> None:
    row = house.ledger.tasks.row(task_id)
    assert row is not None
    move_task(state, "retry")
    task = from_row(row)
    task.state, task.held, task.not_before, task.front = TaskState.QUEUED, False, None, 0
    task.position, task.reason = house.projection.next_position, (None, None)
    requeue_row(house, task, task.reason)
    house.ledger.event(house.now, "retried", task_id, who=by)
    _join_line(house, task)
    house.projection.reopened(task_id)


def _join_line(house: House, task: OpenTask) -> None:
    waits_on = []
    hopeless = None
    for row in house.ledger.tasks.dependencies(task.id):
        on, kind = TaskId(row["on_task_id"]), After(row["kind"])
        met = satisfied(kind, TaskState(row["on_state"]))
        if met is None:
            waits_on.append((on, kind))
        elif not met:
            hopeless = on
    house.projection.add(task, waits_on)
    house.changed = True
    if hopeless is not None:
        fail_dependent(house, task, hopeless)


def requeue_row(house: House, task: OpenTask, reason: tuple[str | None, str | None]) -> None:
    """Writes a task back into the line with all it has spent forgotten: a person wanted it so."""
    house.ledger.tasks.requeue(
        task.id,
        {
            "reason_code": reason[0],
            "reason": reason[1],
            "exit_code": None,
            "not_before": task.not_before,
            "held": task.held,
            "front": task.front,
            "position": task.position,
            "request": task.request,
            "failures": 0,
            "losses": 0,
            "refused_launches": 0,
            "attempts": task.attempts,
        },
    )


WISHES: dict[str, Callable[[House, Caller, TaskId, Mapping[str, Any]], None]] = {
    "cancel": cancel,
    "preempt": preempt,
    "hold": hold,
    "release": release,
    "top": top,
    "retry": retry,
}


def edit(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """Changes what a waiting task asks for; of a running one only its name and its limits."""
    task_id = TaskId(args["id"])
    changes: dict[str, Any] = args["changes"]
    task = _open_only(house, who, task_id, "edit")
    if task.state is TaskState.RUNNING:
        fixed = sorted(set(changes) - {"name", "time_limit_s", "estimate_s", "kill_at_limit", "max_retries"})
        if fixed:
            raise TooLate(
                f"cannot change {', '.join(fixed)} of task {task_id}: it is running; cancel it first"
            )
    request = request_from_doc(changes["request"]) if changes.get("request") else task.request
    refused = impossible(request, house.book.nodes())
    if refused:
        raise Refused(f"cannot change task {task_id}: {refused}")
    _write_edit(house, task, changes, who.user)
    return {"id": task_id}


def _write_edit(house: House, task: OpenTask, changes: Mapping[str, Any], by: str) -> None:
    row = house.ledger.tasks.row(task.id)
    assert row is not None
    spec = spec_from_doc(json.loads(row["spec"]))
    if "kill_at_limit" in changes:
        spec = replace(spec, kill_at_limit=changes["kill_at_limit"])
    if "max_retries" in changes:
        spec = replace(spec, retry=replace(spec.retry, max_retries=changes["max_retries"]))
    if changes.get("request"):
        task.request = request_from_doc(changes["request"])
    task.name = changes.get("name", task.name)
    task.priority = changes.get("priority", task.priority)
    task.time_limit_s = changes.get("time_limit_s", task.time_limit_s)
    task.estimate_s = changes.get("estimate_s", task.estimate_s)
    task.not_before = changes.get("not_before", task.not_before)
    times = (task.time_limit_s, task.estimate_s, task.not_before)
    house.ledger.tasks.edit(task.id, task.name, task.priority, times, task.request, spec)
    house.ledger.event(house.now, "edited", task.id, who=by, changes=sorted(changes))
    house.launcher.revoke(task.id)
    live = house.live.get(task.id)
    if live:
        live.spec = spec
        started = live.started_at or house.now
        live.limit_at = started + task.time_limit_s if task.time_limit_s else None
    house.changed |= house.projection.regroup(task)

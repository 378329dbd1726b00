"""The end of an attempt: what it left behind is ended, how it ended becomes a verdict, and the verdict is written.

Its GPUs are free only after all of that, and on real ones only when a reading shows their memory gone.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

from lab_gpu.core.attempts import ExitRecord
from lab_gpu.core.documents import request_from_doc
from lab_gpu.core.ids import TaskId
from lab_gpu.core.lifecycle import move_attempt, move_task
from lab_gpu.core.model import Ending, ProcessName, RetryRule, TaskState
from lab_gpu.core.units import format_duration
from lab_gpu.core.verdict import (
    Facts,
    Finish,
    Hold,
    Retry,
    Standing,
    Verdict,
    counters,
    detail_of,
    ending_of,
    verdict,
)
from lab_gpu.runner.oom_text import log_ends_in_oom
from lab_gpu.service import chains, points
from lab_gpu.service.house import House, Live
from lab_gpu.service.projection import OpenTask
from lab_gpu.service.promises import release
from lab_gpu.service.stop import sweep, tree_of

BEHIND_ALL = -1  # as `front`: after everybody, whatever their priority


def runner_ended(house: House, task_id: TaskId) -> None:
    """Its shell is over. When nothing of it lives any more, it is settled."""
    live = house.live.get(task_id)
    if live is None:
        return
    points.reached("exit_seen")
    live.runner_gone = True
    left = _left_behind(house, live)
    if left:
        begin_sweep(house, live, left)
    else:
        settle(house, live, _facts(house, live))


def _left_behind(house: House, live: Live) -> tuple[ProcessName, ...]:
    """What outlives the shell. The kernel tells at once where no stray is; else all of /proc is looked through."""
    if house.engine.is_empty(live.uni_id):
        return ()
    strays = None if live.adopted else house.engine.strays(list(house.known_children()))
    if strays == ():
        return ()
    return tree_of(house, live)


def begin_sweep(house: House, live: Live, left: tuple[ProcessName, ...]) -> None:
    """Its end waits until they are gone: they may hold the GPU."""
    if live.sweep_began_at is None:
        live.sweep_began_at = house.now
        _note_in_log(live, f"[lab-gpu] the command is over; ending {len(left)} process(es) it left behind")
    house.after_commit.append(lambda: _sweep(house, live, left))


def _sweep(house: House, live: Live, left: tuple[ProcessName, ...]) -> None:
    for process in left:
        if process not in live.watched:
            live.watched.add(process)
            house.watch("stray", live.task, process)
    sweep(house, live, left)


def look_again(house: House, live: Live) -> None:
    """One of those it left is gone, or time is up: settle when nothing is left, else go on."""
    left = tree_of(house, live)
    if left:
        house.after_commit.append(lambda: _sweep(house, live, left))
    else:
        settle(house, live, _facts(house, live))


def stray_ended(house: House, task_id: TaskId) -> None:
    live = house.live.get(task_id)
    if live is not None and live.runner_gone:
        look_again(house, live)


def _note_in_log(live: Live, text: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        log = os.open(live.log_path, flags, 0o666)  # a task may have made it a pipe that nobody reads
        try:
            os.write(log, f"\n{text}\n".encode())
        finally:
            os.close(log)
    except OSError:
        pass  # the log's disk is full or gone; the history still tells


def _facts(house: House, live: Live) -> Facts:
    record = house.engine.exit_record(live.directory)
    begun = house.engine.begun(live.directory)
    failed = record is not None and record.code != 0 and live.stop_why is None
    return Facts(
        code=record.code if record else None,
        # It was told to go: where its folder is gone with all that was in it, it may well have run.
        began=begun is not None or not house.engine.has_folder(live.directory),
        same_boot=True,
        stop_why=Ending(live.stop_why) if live.stop_why in STOPS else None,
        signalled=live.sent.soft_at is not None or live.sent.term_at is not None,
        launch_error=live.launch_problem if begun is None else None,
        oom=failed and log_ends_in_oom(live.log_path),
    )


STOPS = {each.value for each in (Ending.CANCELLED, Ending.PREEMPTED, Ending.RESIZED, Ending.TIME_LIMIT)}


def settle(house: House, live: Live, facts: Facts) -> None:
    """Writes the end of the attempt and what becomes of its task."""
    now = house.now
    task = house.projection.tasks[live.task]
    ending = ending_of(facts)
    if live.stop_why == "no_output" and (ending is not Ending.OK or facts.signalled):
        ending = Ending.ERROR
    detail = _detail(live, task, facts, ending)
    move_attempt(live.state, "end")
    house.ledger.attempts.end(live.id, ending, facts.code, detail, now)
    del house.live[live.task]
    release(house, "task", live.task)
    record = ExitRecord(facts.code, now) if facts.code is not None else None
    house.after_commit.append(lambda: _clear_up(house, live, record))
    points.reached("end_written")
    _follow(house, task, _verdict(house, task, live, facts, ending, detail), facts.code, live.number, ending)
    house.changed = True


def _clear_up(house: House, live: Live, record: ExitRecord | None) -> None:
    """After the commit and the next one's start: nobody waits for this."""
    if live.runner:
        house.engine.reap(live.runner)
    if record is not None:
        house.engine.close_report(live.directory, record)


def _detail(live: Live, task: OpenTask, facts: Facts, ending: Ending) -> str:
    if live.stop_why == "no_output" and ending is Ending.ERROR:
        return f"no output for {format_duration(live.spec.no_output_limit_s or 0)}"
    if ending is Ending.CANCELLED and live.stop_by:
        return f"cancelled by {live.stop_by}"
    if ending is Ending.PREEMPTED and live.stop_by:
        return f"preempted by {live.stop_by}"
    return detail_of(facts, ending, format_duration(task.time_limit_s) if task.time_limit_s else None)


def _verdict(
    house: House, task: OpenTask, live: Live, facts: Facts, ending: Ending, detail: str
) -> tuple[Verdict, tuple[int, int, int]]:
    row = house.ledger.tasks.standing(task.id)
    standing = Standing(
        request=request_from_doc(json.loads(row["request"])),
        rule=live.spec.retry,
        failures=row["failures"],
        losses=row["losses"],
        refused_launches=row["refused_launches"],
        never_twice=live.spec.never_twice,
        then=live.stop_then,
        time_limit=format_duration(task.time_limit_s) if task.time_limit_s else None,
    )
    found = verdict(facts, ending, standing, house.now)
    plain = detail_of(facts, ending, standing.time_limit)
    if detail != plain:
        found = _reworded(found, plain, detail)
    return found, counters(standing, found.counts)


def _reworded(found: Verdict, plain: str, detail: str) -> Verdict:
    return replace(found, reason=found.reason.replace(plain, detail, 1))


def _follow(
    house: House,
    task: OpenTask,
    judged: tuple[Verdict, tuple[int, int, int]],
    code: int | None,
    number: int,
    ending: Ending,
) -> None:
    found, spent = judged
    if isinstance(found, Finish):
        _finish(house, task, found, code, spent, number, ending)
        return
    front, position = 0, task.position
    if isinstance(found, Retry):
        task.held, task.not_before = False, found.not_before
        if found.behind:
            front, position = BEHIND_ALL, house.projection.next_position
    else:
        assert isinstance(found, Hold)
        task.held, task.not_before = True, None
    task.request, task.reason = found.request, (found.reason_code, found.reason)
    move_task(task.state, "requeue")
    house.ledger.tasks.requeue(
        task.id,
        {
            "reason_code": found.reason_code,
            "reason": found.reason,
            "exit_code": code,
            "not_before": task.not_before,
            "held": task.held,
            "front": front,
            "position": position,
            "request": found.request,
            "failures": spent[0],
            "losses": spent[1],
            "refused_launches": spent[2],
            "attempts": task.attempts,
        },
    )
    kind = "held" if task.held else "requeued"
    house.ledger.event(
        house.now, kind, task.id, number, ending=ending.value, exit_code=code, reason=found.reason
    )
    house.projection.requeued(task, front=front, position=position)


def _finish(
    house: House,
    task: OpenTask,
    found: Finish,
    code: int | None,
    spent: tuple[int, int, int],
    number: int,
    ending: Ending,
) -> None:
    now = house.now
    state = move_task(task.state, found.event)
    reason = (None, None) if state is TaskState.COMPLETED else (found.reason_code, found.reason)
    house.ledger.tasks.finish(task.id, state, reason, code, spent[:2], now)
    house.ledger.event(
        now, state.value, task.id, number, ending=ending.value, exit_code=code, reason=found.reason
    )
    chains.ended(house, task, state)


def launch_failed(house: House, task: OpenTask, sentence: str) -> None:
    """An attempt that could not even be made: it is written as one, so that its owner sees why."""
    now = house.now
    number = task.attempts + 1
    attempt = house.ledger.attempts.arm(
        {
            "task_id": task.id,
            "number": number,
            "uni_id": f"{task.id}-{number}-{os.urandom(6).hex()}",
            "directory": "",
            "log_path": "",
            "boot_id": house.engine.boot_id,
            "pid": None,
            "pid_started": None,
            "created_at": now,
        }
    )
    house.ledger.attempts.end(attempt, Ending.LAUNCH_FAILED, None, sentence, now)
    house.ledger.tasks.launch(task.id, number, now)
    house.projection.started(task, number)
    row = house.ledger.tasks.standing(task.id)
    facts = Facts(began=False, launch_error=sentence)
    standing = Standing(
        request=task.request,
        rule=RetryRule(),
        failures=row["failures"],
        losses=row["losses"],
        refused_launches=row["refused_launches"],
    )
    found = verdict(facts, Ending.LAUNCH_FAILED, standing, now)
    judged = (found, counters(standing, found.counts))
    _follow(house, task, judged, None, number, Ending.LAUNCH_FAILED)
    house.changed = True

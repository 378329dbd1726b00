"""Attempts that run in somebody's own terminal (`agent run`): we do not start them, we count what they hold."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab_gpu.core.errors import NotFound
from lab_gpu.core.ids import AttemptId, TaskId
from lab_gpu.core.model import Ending, Grant, ProcessName
from lab_gpu.service.gpu_book import Holder
from lab_gpu.service.house import Answer, House
from lab_gpu.service.log_names import free, older
from lab_gpu.service.planning import gpus_doc
from lab_gpu.service.promises import release
from lab_gpu.wire.inside import Caller

KIND = "run"


@dataclass(frozen=True, slots=True)
class OutsideRun:
    attempt: AttemptId
    task: TaskId
    number: int
    process: ProcessName | None


def begin(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    task_id = TaskId(args["task_id"])
    row = house.ledger.tasks.row(task_id)
    if row is None:
        raise NotFound(
            f"cannot add a run to task {task_id}: there is no such task; `lab-gpu list --all` shows them"
        )
    house.launcher.revoke(task_id)
    number = row["attempts"] + 1
    process = ProcessName(args["pid"], args["pid_started"]) if args.get("pid") else None
    grant = _grant(house, args)
    log_path = _log_path(house, task_id, number, args.get("log_path") or "")
    now = house.now
    uni_id = f"{task_id}-{number}-{secrets.token_hex(6)}"
    attempt = house.ledger.attempts.begin_outside(
        {
            "task_id": task_id,
            "number": number,
            "uni_id": uni_id,
            "directory": "",
            "log_path": log_path,
            "boot_id": house.engine.boot_id,
            "pid": process.pid if process else None,
            "pid_started": process.started if process else None,
            "created_at": now,
        },
        grant,
        now,
    )
    house.ledger.tasks.count_attempt(task_id, number)
    house.ledger.event(now, "run_outside", task_id, number, who=who.user, command=args.get("command"))
    task = house.projection.tasks.get(task_id)
    if task:
        task.attempts = number
    run = OutsideRun(attempt, task_id, number, process)
    house.outside[attempt] = run
    house.book.hold(
        Holder(KIND, attempt, row["owner"], row["name"], grant, now, uni_id=uni_id, process=process)
    )
    house.changed = True
    if process:
        house.after_commit.append(lambda: house.watch("outside", attempt, process))
    return {
        "attempt_id": attempt,
        "number": number,
        "uni_id": uni_id,
        "log_name": os.path.basename(log_path) or f"{task_id}.log",
        "gpus": gpus_doc(house, grant),
    }


def _log_path(house: House, task: TaskId, number: int, wanted: str) -> str:
    """The plain name is the newest attempt's: the one before makes way, unless it still runs or is none of ours."""
    if not os.path.lexists(wanted):
        return wanted
    written = any(live.task == task and live.log_path == wanted for live in house.live.values())
    if written or house.ledger.attempts.with_log(task, wanted) is None:
        return free(older(wanted, number))
    try:
        house.launcher.move_older_log(task, wanted)
    except OSError:  # its folder cannot be written any more
        return free(older(wanted, number))
    return wanted


def _grant(house: House, args: Mapping[str, Any]) -> Grant:
    """The GPUs it says it sees, else the first one: its memory has to be counted somewhere."""
    nodes = house.book.nodes()
    node = nodes.get(house.book.local_name) or next(iter(nodes.values()), None)
    if node is None:
        return Grant(house.book.local_name, vram_mib=args.get("mem_mib") or 0)
    wanted = args.get("gpu_indices")
    gpus = [gpu for gpu in node.gpus if wanted is None or gpu.index in wanted]
    gpus = gpus[:1] if wanted is None else gpus
    return Grant(
        node.name,
        tuple(gpu.uuid for gpu in gpus),
        tuple(gpu.index for gpu in gpus),
        args.get("mem_mib") or 0,
        node.virtual,
    )


def end(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    run = house.outside.pop(AttemptId(args["attempt_id"]), None)
    if run is None:
        raise NotFound(f"cannot end run {args['attempt_id']}: it is over already")
    code = args.get("exit_code")
    ending = Ending.OK if code == 0 else Ending.OOM if args.get("oom") else Ending.ERROR
    _close(house, run, ending, code, None)
    return {}


def process_ended(house: House, attempt: AttemptId) -> None:
    """Its process is gone without a word: the terminal was closed, or it was killed."""
    run = house.outside.pop(attempt, None)
    if run:
        _close(house, run, Ending.ERROR, None, "its process ended without telling how")


def _close(house: House, run: OutsideRun, ending: Ending, code: int | None, detail: str | None) -> None:
    now = house.now
    house.ledger.attempts.end(run.attempt, ending, code, detail, now)
    house.ledger.event(now, "run_ended", run.task, run.number, ending=ending.value, exit_code=code)
    release(house, KIND, run.attempt)

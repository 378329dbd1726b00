"""What a master finds when it starts, or after a write that failed: the ledger is read anew, every live attempt looked up.

Nothing new starts before each of them is known to run, to have ended, or never to have begun.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping

from lab_gpu.core.documents import grant_from_doc, spec_from_doc
from lab_gpu.core.ids import AttemptId, NodeName, TaskId
from lab_gpu.core.model import AttemptState, DeclaredNode, Ending, Grant, LeaseState, ProcessName
from lab_gpu.core.verdict import Facts
from lab_gpu.service import leasing, outside, settle
from lab_gpu.service.gpu_book import Closed, Holder
from lab_gpu.service.house import House, Live
from lab_gpu.service.log_names import older
from lab_gpu.service.planning import holder_of

NEVER_BEGAN = "the master was stopped before it could begin"


def restore(house: House, known: Mapping[AttemptId, Live]) -> None:
    """All that is remembered, from the ledger. What only memory knew of an attempt is taken over from `known`."""
    house.projection.load()
    house.book.forget_holders()
    house.live, house.outside = {}, {}
    house.leases = {lease.id: lease for lease in map(leasing.from_row, house.ledger.leases.live())}
    for lease in house.leases.values():
        if lease.state is LeaseState.HELD and lease.grant:
            since = lease.granted_at or lease.asked_at
            house.book.hold(
                Holder("lease", lease.id, lease.owner, lease.name, lease.grant, since, process=lease.process)
            )
    for row in house.ledger.attempts.live():
        if row["outside"]:
            _restore_outside(house, row)
        else:
            _restore_attempt(house, row, known.get(AttemptId(row["id"])))
    _restore_nodes(house)
    house.changed = True


def _restore_nodes(house: House) -> None:
    house.book.declared = {}
    for row in house.ledger.nodes.all():
        house.book.declare(
            DeclaredNode(
                NodeName(row["name"]), bool(row["virtual"]), row["gpus"], row["vram_mib"], row["gpu_type"]
            )
        )
    house.book.closed = {
        (row["node"], row["gpu"]): Closed(row["reason"], row["who"], row["at"])
        for row in house.ledger.nodes.closed()
    }


def _grant(row: sqlite3.Row) -> Grant:
    return grant_from_doc(row["node"], json.loads(row["gpus"]), row["vram_mib"], bool(row["virtual"]))


def _process(row: sqlite3.Row) -> ProcessName | None:
    return ProcessName(row["pid"], row["pid_started"]) if row["pid"] else None


def _restore_outside(house: House, row: sqlite3.Row) -> None:
    ident = AttemptId(row["id"])
    run = outside.OutsideRun(ident, TaskId(row["task_id"]), row["number"], _process(row))
    house.outside[ident] = run
    task = house.ledger.tasks.row(run.task)
    assert task is not None
    house.book.hold(
        Holder(
            outside.KIND,
            ident,
            task["owner"],
            task["name"],
            _grant(row),
            row["started_at"],
            uni_id=row["uni_id"],
            process=run.process,
        )
    )


def _restore_attempt(house: House, row: sqlite3.Row, known: Live | None) -> None:
    task = house.projection.tasks[TaskId(row["task_id"])]
    full = house.ledger.tasks.row(task.id)
    assert full is not None
    started = row["started_at"] or row["created_at"]
    live = Live(
        id=AttemptId(row["id"]),
        task=task.id,
        number=row["number"],
        uni_id=row["uni_id"],
        state=AttemptState(row["state"]),
        grant=_grant(row),
        directory=row["directory"],
        log_path=row["log_path"],
        spec=spec_from_doc(json.loads(full["spec"])),
        runner=_process(row),
        started_at=started,
        adopted=True,
        stop_why=row["stop_why"],
        stop_by=row["stop_by"],
        stop_then=row["stop_then"],
        stop_began_at=row["stop_began_at"],
        timeouts_s=(row["soft_timeout_s"], row["term_timeout_s"]),
        stop_due=house.now if row["stop_began_at"] else None,
        limit_at=started + task.time_limit_s if task.time_limit_s else None,
    )
    if known is not None:
        live.adopted, live.sent, live.swept = known.adopted, known.sent, known.swept
        live.runner_gone, live.sweep_began_at = known.runner_gone, known.sweep_began_at
        live.launch_problem = known.launch_problem
    house.live[task.id] = live
    holder = holder_of(house, live, task)
    holder.stopping = live.stop_began_at is not None
    house.book.hold(holder)


def recover(house: House) -> dict[str, int]:
    """At a start, inside one transaction. Answers what was found, for the log."""
    found = {"adopted": 0, "ended meanwhile": 0, "never began": 0}
    _remove_armed(house)
    restore(house, {})
    _find_moved_logs(house)
    for live in list(house.live.values()):
        found[_look_up(house, live)] += 1
    for run in list(house.outside.values()):
        if run.process is None or not house.engine.alive(run.process):
            outside.process_ended(house, run.attempt)
        else:
            _watch(house, "outside", run.attempt, run.process)
    for lease in list(house.leases.values()):
        if lease.process and not house.engine.alive(lease.process):
            leasing.let_go(house, lease, "its process ended while the master was away")
        elif lease.process:
            _watch(house, "lease", lease.id, lease.process)
    return found


def _watch(house: House, kind: str, ident: int, process: ProcessName) -> None:
    house.after_commit.append(lambda: house.watch(kind, ident, process))


def _look_up(house: House, live: Live) -> str:
    row_boot = house.ledger.attempts.boot_id(live.id)
    if row_boot != house.engine.boot_id:
        return _after_reboot(house, live)
    if live.state is not AttemptState.LAUNCHING and not house.engine.has_folder(live.directory):
        return _find_without_folder(house, live)
    seen = house.engine.find(live.directory, live.uni_id, live.runner)
    if seen.begun is None and not seen.runner_alive:
        settle.settle(house, live, Facts(began=False, lost_because=NEVER_BEGAN, stop_why=_stop(live)))
        return "never began"
    if seen.runner_alive and live.runner:
        if live.state is AttemptState.LAUNCHING and seen.begun:
            live.state = AttemptState.RUNNING
            house.ledger.attempts.begin(live.id, seen.begun.at)
        _watch(house, "attempt", live.task, live.runner)
        return "adopted"
    settle.runner_ended(house, live.task)
    return "ended meanwhile"


def _find_without_folder(house: House, live: Live) -> str:
    """It had begun, whatever became of its folder: it is not taken for one that never ran."""
    if live.runner and house.engine.alive(live.runner):
        _watch(house, "attempt", live.task, live.runner)
        return "adopted"
    settle.runner_ended(house, live.task)
    return "ended meanwhile"


def _stop(live: Live) -> Ending | None:
    return Ending(live.stop_why) if live.stop_why in settle.STOPS else None


def _after_reboot(house: House, live: Live) -> str:
    record = house.engine.exit_record(live.directory)
    begun = house.engine.begun(live.directory)
    facts = Facts(
        code=record.code if record else None, began=begun is not None, same_boot=False, stop_why=_stop(live)
    )
    live.runner = None
    settle.settle(house, live, facts)
    return "ended meanwhile" if begun else "never began"


def _remove_armed(house: House) -> None:
    """Shells that waited have seen their pipe close and ended; nothing of them was a try."""
    for row in house.ledger.attempts.armed():
        house.engine.bar(row["directory"])
        if os.path.exists(row["log_path"]) and os.path.getsize(row["log_path"]) == 0:
            os.unlink(row["log_path"])
    house.ledger.attempts.remove_armed()


def _find_moved_logs(house: House) -> None:
    """A log that got its number just before a crash that kept the ledger from hearing of it."""
    for task in house.projection.tasks.values():
        row = house.ledger.attempts.newest_log(task.id) if task.attempts else None
        if row is None or os.path.lexists(row["log_path"]):
            continue
        moved = older(row["log_path"], row["number"])
        if os.path.lexists(moved):
            house.ledger.attempts.move_log(AttemptId(row["id"]), moved)

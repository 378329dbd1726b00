"""What 1,000,000 finished tasks in the database cost: submit, status and hand-off, beside an empty database.

They are copies of one that really ran, with its attempt and its history, written straight into SQLite.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

from figures import Figure, main, median, ratio_at_most
from handoff import gaps_ms, stamped
from stand import Stand, gate_command, stand

FIRST_COPY = 10_000  # above every id the run itself uses before
OLDER_S = 30 * 86400.0


def columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"pragma table_info({table})")]


def copy_rows(database: sqlite3.Connection, table: str, new: dict[str, str], where: str, copies: int) -> None:
    """Each row of `where` again and again; `new` has expressions for what must differ, n being the copy."""
    names = columns(database, table)
    values = ", ".join(new.get(name, f"old.{name}") for name in names)
    database.execute(
        f"with recursive copy(n) as (select 0 union all select n + 1 from copy where n + 1 < {copies})"
        f" insert into {table} ({', '.join(names)}) select {values} from copy, {table} as old where {where}"
    )


def fill(path: Path, task: int, copies: int) -> None:
    earlier = f"- {OLDER_S} + n * 1.0"
    id_of_copy = f"{FIRST_COPY} + n"
    with sqlite3.connect(path) as database:
        database.execute("pragma synchronous = off")
        times = {
            name: f"old.{name} {earlier}" for name in ("submitted_at", "started_at", "ended_at", "created_at")
        }
        copy_rows(
            database, "task", {**times, "id": id_of_copy, "position": id_of_copy}, f"old.id = {task}", copies
        )
        attempt = {**times, "id": id_of_copy, "task_id": id_of_copy, "uni_id": "old.uni_id || '-' || n"}
        copy_rows(database, "attempt", attempt, f"old.task_id = {task}", copies)
        copy_rows(
            database,
            "event",
            {"seq": "null", "task_id": id_of_copy, "at": f"old.at {earlier}"},
            f"old.task_id = {task}",
            copies,
        )
    database.close()


def commands_ms(on: Stand, turns: int, *words: str) -> float:
    return 1000 * median([on.command(*words) for _ in range(turns)])


def handoff_ms(on: Stand, tasks: int) -> float:
    stamps, go = on.home / "stamps", on.home / "go"
    on.submit([{"command": gate_command(go, on.home / "over"), "priority": 101}])
    ids = on.submit([{"command": stamped(stamps), "priority": 100}] * tasks)
    go.touch()
    on.wait(ids)
    return median(gaps_ms(stamps, tasks))


def one_database(finished: int, asked: argparse.Namespace) -> dict[str, float]:
    with stand() as on:
        on.start()
        on.add_virtual(gpus=1)
        [task] = on.submit([{"command": "true"}])
        on.wait([task])
        on.stop()
        if finished:
            fill(on.home / "lab-gpu.db", task, finished)
        started_s = on.start()
        return {
            "start of the master": 1000 * started_s,
            "submit": commands_ms(on, asked.turns, "submit", "--hold", "true"),
            "status": commands_ms(on, asked.turns, "status"),
            "list": commands_ms(on, asked.turns, "list"),
            "hand-off": handoff_ms(on, asked.tasks),
        }


def measure(asked: argparse.Namespace) -> list[Figure]:
    empty, full = one_database(0, asked), one_database(asked.finished, asked)
    return [
        ratio_at_most(f"{name}, {asked.finished:,} finished tasks", full[name], empty[name], "ms", 1.5)
        if name in ("submit", "status", "hand-off")
        else Figure(f"{name}, {asked.finished:,} finished tasks", full[name], "ms", empty[name])
        for name in full
    ]


if __name__ == "__main__":
    main(
        "big_database",
        __doc__,
        measure,
        finished=(1_000_000, "finished tasks"),
        turns=(20, "times each command is run"),
        tasks=(60, "tasks of the hand-off"),
    )

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
MUST = ("submit", "status", "hand-off")


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


def prepare(on: Stand, finished: int) -> float:
    """A master on a database with so many finished tasks; the milliseconds its start took."""
    on.start()
    on.add_virtual(gpus=1)
    [task] = on.submit([{"command": "true"}])
    on.wait([task])
    on.stop()
    if finished:
        fill(on.home / "lab-gpu.db", task, finished)
        on.start()  # once to read it from the disk
        on.stop()
    return 1000 * on.start()


def handoff_ms(on: Stand, tasks: int, turn: int) -> float:
    stamps, go = on.home / f"stamps-{turn}", on.home / f"go-{turn}"
    on.submit([{"command": gate_command(go, on.home / "over"), "priority": 101}])
    ids = on.submit([{"command": stamped(stamps), "priority": 100}] * tasks)
    go.touch()
    on.wait(ids)
    return median(gaps_ms(stamps, tasks))


COMMANDS = {"submit": ("submit", "--hold", "true"), "status": ("status",), "list": ("list",)}


def side_by_side(stands: list[Stand], asked: argparse.Namespace) -> dict[str, list[float]]:
    """Each figure for each of the stands, in turns: the machine's mood is the same for both."""
    taken: dict[str, list[list[float]]] = {name: [[] for _ in stands] for name in (*COMMANDS, "hand-off")}
    for name, words in COMMANDS.items():
        for _ in range(asked.turns):
            for one, on in enumerate(stands):
                taken[name][one].append(1000 * on.command(*words))
    for turn in range(asked.rounds):
        for one, on in enumerate(stands):
            taken["hand-off"][one].append(handoff_ms(on, asked.tasks, turn))
    return {name: [median(values) for values in both] for name, both in taken.items()}


def measure(asked: argparse.Namespace) -> list[Figure]:
    with stand() as empty, stand() as full:
        starts = [prepare(empty, 0), prepare(full, asked.finished)]
        found = side_by_side([empty, full], asked)
    note = f"{asked.finished:,} finished tasks"
    return [
        *(ratio_at_most(f"{name}, {note}", found[name][1], found[name][0], "ms", 1.5) for name in MUST),
        Figure(f"list, {note}", found["list"][1], "ms", found["list"][0]),
        Figure(f"start of the master, {note}", starts[1], "ms", starts[0]),
    ]


if __name__ == "__main__":
    main(
        "big_database",
        __doc__,
        measure,
        finished=(1_000_000, "finished tasks"),
        turns=(20, "times each command is run"),
        tasks=(30, "tasks in each round of hand-offs"),
        rounds=(3, "rounds of hand-offs"),
    )

"""How long 10,000 tasks in one file take to be accepted, by the command a person types.

All are durable when it returns. The baseline writes the same lines into a bare SQLite table in one synced
transaction: no queue on disk can beat that.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from pathlib import Path

from figures import Figure, at_most, main
from stand import BenchmarkFailed, Stand, stand


def bare_sqlite(path: Path, lines: list[str]) -> float:
    began = time.monotonic()
    with sqlite3.connect(path) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
        database.execute("create table task (id integer primary key, command text not null)")
        database.executemany(
            "insert into task (command) values (?)", ((json.loads(line)["cmd"],) for line in lines)
        )
    database.close()
    return time.monotonic() - began


def queued(on: Stand) -> int:
    return int(on.api.get("/api/v1/status", {"limit": 1})["counts"].get("queued", 0))


def measure(asked: argparse.Namespace) -> list[Figure]:
    lines = [
        json.dumps({"cmd": f"python train.py --seed {seed}", "mem": "10G"}) for seed in range(asked.tasks)
    ]
    with stand() as on:
        tasks_file = on.home / "work" / "tasks.jsonl"
        tasks_file.write_text("\n".join(lines) + "\n")
        bare_s = bare_sqlite(on.home / "bare.db", lines)
        on.start()  # no GPU and no node: everything is accepted and waits
        took_s = on.command("submit-batch", "--file", str(tasks_file))
        if queued(on) != asked.tasks:
            raise BenchmarkFailed(f"{queued(on)} tasks are queued, not {asked.tasks}")
    accepted = at_most(f"submit-batch of {asked.tasks:,} tasks", took_s, "s", 2.0)
    return [accepted, Figure("the same lines into a bare SQLite table", bare_s, "s")]


if __name__ == "__main__":
    main("batch_submit", __doc__, measure, tasks=(10_000, "tasks in the file"))

"""The only memory of the house: every write to it stands here, each a named statement inside the open transaction.

Nothing here decides. The loop asks for a move, the lifecycle table has allowed it, and the tables refuse nonsense again.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab_gpu.core.documents import Doc, gpus_to_doc, request_to_doc, spec_to_doc
from lab_gpu.core.ids import AttemptId, LeaseId, TaskId
from lab_gpu.core.model import Ending, Grant, NewTask, Request, TaskSpec, TaskState
from lab_gpu.store.database import Database
from lab_gpu.store.queries import load

SQL = load("write.sql")


def _json(doc: object) -> str:
    return json.dumps(doc, separators=(",", ":"), ensure_ascii=False)


class Tasks:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def environment(self, environment: Mapping[str, str]) -> int:
        text = json.dumps(dict(environment), sort_keys=True).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(text).hexdigest()
        row = self._db.execute(SQL["find_environment"], (digest,)).fetchone()
        if row:
            return int(row[0])
        cursor = self._db.execute(SQL["add_environment"], (digest, zlib.compress(text, 1)))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def environment_body(self, environment_id: int | None) -> dict[str, str]:
        if environment_id is None:
            return {}
        (body,) = self._db.execute(SQL["environment_body"], (environment_id,)).fetchone()
        found: dict[str, str] = json.loads(zlib.decompress(body))
        return found

    def add(
        self, tasks: Sequence[NewTask], environment_id: int | None, position: int, now: float
    ) -> list[TaskId]:
        """One after another in line from `position`. Dependencies below zero name a task of this call."""
        first = self.next_id()
        ids = [TaskId(first + offset) for offset in range(len(tasks))]
        rows = [
            _task_row(task, task_id, environment_id, position + offset, now)
            for offset, (task, task_id) in enumerate(zip(tasks, ids, strict=True))
        ]
        self._db.executemany(SQL["add_task"], rows)
        links = [
            (task_id, ids[-each.on - 1] if each.on < 0 else each.on, each.kind.value)
            for task, task_id in zip(tasks, ids, strict=True)
            for each in task.after
        ]
        if links:
            self._db.executemany(SQL["add_dependency"], links)
        return ids

    def next_id(self) -> int:
        return int(self._db.execute(SQL["next_task_id"]).fetchone()[0])

    def row(self, task: TaskId) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(SQL["task"], (task,)).fetchone()
        return row

    def standing(self, task: TaskId) -> sqlite3.Row:
        """What it asks for now, and what it has spent of its tries."""
        row: sqlite3.Row = self._db.execute(SQL["task_standing"], (task,)).fetchone()
        return row

    def state(self, task: TaskId) -> TaskState | None:
        row = self._db.execute(SQL["task_state"], (task,)).fetchone()
        return TaskState(row[0]) if row else None

    def next_position(self) -> int:
        return int(self._db.execute(SQL["next_position"]).fetchone()[0])

    def open(self) -> Iterable[sqlite3.Row]:
        return self._db.execute(SQL["open_tasks"])

    def open_dependencies(self) -> Iterable[sqlite3.Row]:
        return self._db.execute(SQL["open_dependencies"])

    def dependencies(self, task: TaskId) -> list[sqlite3.Row]:
        return self._db.execute(SQL["dependencies_of"], (task,)).fetchall()

    def queued_dependents(self, task: TaskId) -> list[sqlite3.Row]:
        return self._db.execute(SQL["queued_dependents"], (task,)).fetchall()

    def failed_dependents(self, task: TaskId) -> list[TaskId]:
        return [TaskId(row[0]) for row in self._db.execute(SQL["failed_dependents"], (task,))]

    def recent_runs(self, signature: str) -> list[float]:
        """Run times of the newest completed tasks of this signature, newest first."""
        return [row[0] for row in self._db.execute(SQL["recent_runs"], (signature,))]

    def launch(self, task: TaskId, attempt_number: int, now: float) -> None:
        self._db.execute(SQL["launch_task"], (attempt_number, now, task))

    def count_attempt(self, task: TaskId, attempt_number: int) -> None:
        """An attempt that changes nothing else of its task."""
        self._db.execute(SQL["count_attempt"], (attempt_number, task))

    def finish(
        self,
        task: TaskId,
        state: TaskState,
        reason: tuple[str | None, str | None],
        exit_code: int | None,
        spent: tuple[int, int],
        now: float,
    ) -> None:
        self._db.execute(SQL["finish_task"], (state.value, *reason, exit_code, now, *spent, task))

    def requeue(self, task: TaskId, change: Mapping[str, Any]) -> None:
        """`change` names every column a task in line may have got anew."""
        self._db.execute(
            SQL["requeue_task"],
            (
                change["reason_code"],
                change["reason"],
                change["exit_code"],
                change["not_before"],
                int(change["held"]),
                change["front"],
                change["position"],
                _json(request_to_doc(change["request"])),
                change["failures"],
                change["losses"],
                change["refused_launches"],
                change["attempts"],
                task,
            ),
        )

    def hold(self, task: TaskId, held: bool, reason: tuple[str | None, str | None]) -> None:
        self._db.execute(SQL["hold_task"], (int(held), *reason, task))

    def front(self, task: TaskId, front: int) -> None:
        self._db.execute(SQL["front_task"], (front, task))

    def edit(
        self,
        task: TaskId,
        name: str | None,
        priority: int,
        times: tuple[float | None, float | None, float | None],
        request: Request,
        spec: TaskSpec,
    ) -> None:
        """`times`: limit, estimate, not before."""
        row = (name, priority, *times, _json(request_to_doc(request)), _json(spec_to_doc(spec)), task)
        self._db.execute(SQL["edit_task"], row)


def _task_row(
    task: NewTask, task_id: TaskId, environment_id: int | None, position: int, now: float
) -> tuple[object, ...]:
    return (
        task.owner,
        task.uid,
        task.name,
        task.command,
        task.workdir,
        environment_id,
        _json(request_to_doc(task.request)),
        _json(spec_to_doc(task.spec)),
        task.priority,
        position,
        int(task.held),
        task.begin_at,
        task.queue,
        task.batch,
        task.array_index,
        task.batch_limit,
        task.time_limit_s,
        task.estimate_s,
        task.signature,
        now,
        task_id,
    )


class Attempts:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def arm(self, row: Mapping[str, Any]) -> AttemptId:
        """A row of before that is still `armed` is of a shell that was taken back while nothing could be written."""
        self._db.execute(SQL["remove_armed_of"], (row["task_id"],))
        return self._add(row, "armed", None, None)

    def begin_outside(self, row: Mapping[str, Any], grant: Grant, now: float) -> AttemptId:
        """A run of `agent run`: it is under way in somebody's terminal, and we count what it holds."""
        return self._add(row, "running", grant, now)

    def _add(self, row: Mapping[str, Any], state: str, grant: Grant | None, now: float | None) -> AttemptId:
        cursor = self._db.execute(
            SQL["add_attempt"],
            (
                row["task_id"],
                row["number"],
                row["uni_id"],
                state,
                grant.node if grant else None,
                _json(gpus_to_doc(grant)) if grant else "[]",
                grant.vram_mib if grant else None,
                int(grant.virtual) if grant else 0,
                row["directory"],
                row["log_path"],
                row["boot_id"],
                row["pid"],
                row["pid_started"],
                row["created_at"],
                int(grant is not None),
                now,
            ),
        )
        assert cursor.lastrowid is not None
        return AttemptId(cursor.lastrowid)

    def launch(self, attempt: AttemptId, grant: Grant, log_path: str) -> None:
        gpus = _json(gpus_to_doc(grant))
        row = (grant.node, gpus, grant.vram_mib, int(grant.virtual), log_path, attempt)
        self._db.execute(SQL["launch_attempt"], row)

    def begin(self, attempt: AttemptId, started_at: float) -> None:
        self._db.execute(SQL["begin_attempt"], (started_at, attempt))

    def stop(
        self,
        attempt: AttemptId,
        now: float,
        why: str,
        by: str,
        then: str,
        timeouts_s: tuple[float | None, float | None],
    ) -> None:
        self._db.execute(SQL["stop_attempt"], (now, why, by, then, *timeouts_s, attempt))

    def end(
        self,
        attempt: AttemptId,
        ending: Ending,
        exit_code: int | None,
        detail: str | None,
        now: float,
    ) -> None:
        signal = exit_code - 128 if exit_code is not None and exit_code > 128 else None
        row = (ending.value, exit_code, signal, detail, now, now, attempt)
        self._db.execute(SQL["end_attempt"], row)

    def remove(self, attempt: AttemptId) -> None:
        self._db.execute(SQL["remove_attempt"], (attempt,))

    def armed(self) -> list[sqlite3.Row]:
        return self._db.execute(SQL["armed_directories"]).fetchall()

    def remove_armed(self) -> None:
        self._db.execute(SQL["remove_armed"])

    def live(self) -> list[sqlite3.Row]:
        return self._db.execute(SQL["live_attempts"]).fetchall()

    def ended_since(self, since: float) -> list[tuple[int, str, str, float]]:
        """Id, log, directory and end of the attempts that ended after that, oldest first, some hundreds at a time."""
        return [tuple(row) for row in self._db.execute(SQL["ended_attempts"], (since,))]

    def remains(self, attempt: int) -> tuple[int, str, str, float] | None:
        row = self._db.execute(SQL["ended_attempt"], (attempt,)).fetchone()
        return tuple(row) if row else None

    def files_of(self, task: TaskId) -> list[tuple[str, str]]:
        """Log and directory of each of its attempts."""
        return [(row[0], row[1]) for row in self._db.execute(SQL["files_of"], (task,))]

    def boot_id(self, attempt: AttemptId) -> str | None:
        row = self._db.execute(SQL["attempt_boot"], (attempt,)).fetchone()
        return row[0] if row else None

    def newest_log(self, task: TaskId) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(SQL["newest_log"], (task,)).fetchone()
        return row

    def with_log(self, task: TaskId, path: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(SQL["attempt_with_log"], (task, path)).fetchone()
        return row

    def move_log(self, attempt: AttemptId, path: str) -> None:
        self._db.execute(SQL["move_log"], (path, attempt))


class Leases:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def add(self, row: Mapping[str, Any], request: Request) -> LeaseId:
        cursor = self._db.execute(
            SQL["add_lease"],
            (
                row["owner"],
                row["uid"],
                row["name"],
                _json(request_to_doc(request)),
                row["priority"],
                row["pid"],
                row["pid_started"],
                row["boot_id"],
                row["asked_at"],
                row["expires_at"],
            ),
        )
        assert cursor.lastrowid is not None
        return LeaseId(cursor.lastrowid)

    def grant(self, lease: LeaseId, grant: Grant, now: float) -> None:
        row = (grant.node, _json(gpus_to_doc(grant)), grant.vram_mib, int(grant.virtual), now, lease)
        self._db.execute(SQL["grant_lease"], row)

    def beat(self, lease: LeaseId, expires_at: float) -> None:
        self._db.execute(SQL["beat_lease"], (expires_at, lease))

    def release(self, lease: LeaseId, why: str, now: float) -> None:
        self._db.execute(SQL["release_lease"], (now, why, lease))

    def live(self) -> list[sqlite3.Row]:
        return self._db.execute(SQL["live_leases"]).fetchall()

    def row(self, lease: LeaseId) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(SQL["lease"], (lease,)).fetchone()
        return row


class Nodes:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def all(self) -> list[sqlite3.Row]:
        return self._db.execute(SQL["nodes"]).fetchall()

    def add(self, row: Doc, who: str, now: float) -> None:
        values = (row["name"], int(row["virtual"]), row["gpus"], row["vram_mib"], row["gpu_type"])
        self._db.execute(SQL["add_node"], (*values, who, now))

    def remove(self, name: str) -> None:
        self._db.execute(SQL["remove_node"], (name,))
        self._db.execute(SQL["open_node"], (name,))

    def closed(self) -> list[sqlite3.Row]:
        return self._db.execute(SQL["closed"]).fetchall()

    def close(self, node: str, gpu: str, reason: str, who: str | None, now: float) -> None:
        self._db.execute(SQL["close"], (node, gpu, reason, who, now))

    def open(self, node: str, gpu: str) -> None:
        self._db.execute(SQL["open"], (node, gpu))


class Ledger:
    """All tables over one connection, and the history they share."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.connection.row_factory = sqlite3.Row
        self._db = database.connection
        self.tasks = Tasks(self._db)
        self.attempts = Attempts(self._db)
        self.leases = Leases(self._db)
        self.nodes = Nodes(self._db)
        (self.newest_event,) = self._db.execute(SQL["newest_event"]).fetchone()

    def event(
        self,
        at: float,
        kind: str,
        task: int | None = None,
        attempt: int | None = None,
        who: str | None = None,
        **body: Any,
    ) -> None:
        cursor = self._db.execute(SQL["add_event"], (at, kind, task, attempt, who, _json(body)))
        self.newest_event = cursor.lastrowid

    def events(self, at: float, kind: str, tasks: Iterable[int], who: str | None) -> None:
        """The same happened to many tasks at once."""
        self._db.executemany(SQL["add_event"], [(at, kind, task, None, who, "{}") for task in tasks])
        (self.newest_event,) = self._db.execute(SQL["newest_event"]).fetchone()

    def repeated(self, uid: int, key: str) -> Doc | None:
        """What this writer was answered when they sent this key before."""
        row = self._db.execute(SQL["repeated"], (uid, key)).fetchone()
        return json.loads(row[0]) if row else None

    def remember(self, uid: int, key: str, answer: Doc, now: float) -> None:
        self._db.execute(SQL["remember_answer"], (key, uid, _json(answer), now))

    def ended_before(self, moment: float, most: int) -> list[TaskId]:
        """The oldest of the tasks that ended before it."""
        return [TaskId(row[0]) for row in self._db.execute(SQL["ended_before"], (moment, most))]

    def forget_task(self, task: TaskId) -> None:
        """The task with its attempts and its history."""
        self._db.execute(SQL["forget_dependencies"], (task, task))
        for name in ("forget_attempts", "forget_events", "forget_task"):
            self._db.execute(SQL[name], (task,))

    def forget_answers(self, before: float) -> None:
        self._db.execute(SQL["forget_answers"], (before,))

    def meta(self, key: str) -> str | None:
        row = self._db.execute(SQL["get_meta"], (key,)).fetchone()
        return row[0] if row else None

    def put_meta(self, key: str, value: str) -> None:
        self._db.execute(SQL["put_meta"], (key, value))

"""Questions to a real database: what they answer, and that an index answers them however much lies there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from lab_gpu.core.model import Activation, After, Dependency, NewTask, TaskSpec
from lab_gpu.service.counts import Counts
from lab_gpu.service.views import DAY_S, Views, iso, masked, state_text, with_iso_moments
from lab_gpu.store import reader as reading
from lab_gpu.store.queries import parse
from lab_gpu.store.reader import Reader, open_read_only
from lab_gpu.testing.fake_loop import FakeLoop, fake_loop, task

NOW = 1_700_000_000.0
GPUS = json.dumps([{"uuid": "GPU-0", "index": 0}])


class Rows:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, question: str, /, **args: Any) -> list[dict[str, Any]]:
        return self._reader.read(question, args)


class Sight:
    async def reasons(self, ids: Sequence[int]) -> Mapping[int, Mapping[str, Any]]:
        return {each: {"code": "gpus_busy", "text": "waiting for a GPU"} for each in ids}

    async def gpu_names(self, uuids: Iterable[str]) -> Mapping[str, str]:
        return {"GPU-0": "NVIDIA RTX 4090"}


@pytest.fixture
def loop() -> Iterator[FakeLoop]:
    with fake_loop() as (found, _):
        yield found


def connection(loop: FakeLoop) -> sqlite3.Connection:
    return open_read_only(loop.ledger.database.path)


def shown(loop: FakeLoop, one: int, now: float = NOW) -> dict[str, Any]:
    reader = Reader(connection(loop))
    try:
        return asyncio.run(Views(Rows(reader), Sight()).detail(one, now))
    finally:
        reader.close()


def attempt(loop: FakeLoop, one: int, number: int, state: str, **columns: Any) -> None:
    row = {
        "task_id": one,
        "number": number,
        "uni_id": f"u-{one}-{number}",
        "state": state,
        "node": "n1",
        "gpus": GPUS,
        "directory": "/d",
        "log_path": f"/logs/{one}.log",
        "created_at": NOW,
    } | columns
    names = ", ".join(row)
    loop.sql(f"insert into attempt ({names}) values ({', '.join('?' * len(row))})", *row.values())


def run(loop: FakeLoop, state: str = "running", **fields: Any) -> int:
    [one] = loop.write(task(**fields))
    loop.sql("update task set state = 'running', started_at = ? where id = ?", NOW, one)
    attempt(loop, one, 1, state, started_at=NOW)
    return one


def test_a_waiting_task_shows_its_reason_and_no_gpus(loop: FakeLoop) -> None:
    [one] = loop.write(task())
    attempt(loop, one, 1, "ended", ending="oom", ended_at=NOW)
    attempt(loop, one, 2, "armed")
    found = shown(loop, one)
    assert (found["state"], found["reason"], found["gpus"], found["node"]) == (
        "queued",
        "waiting for a GPU",
        [],
        None,
    )
    assert found["attempt"] == 1
    assert [each["number"] for each in found["attempts"]] == [1]


@pytest.mark.parametrize(
    ("state", "phase"), [("launching", "starting"), ("running", None), ("stopping", "stopping")]
)
def test_phases_of_a_running_task(loop: FakeLoop, state: str, phase: str | None) -> None:
    found = shown(loop, run(loop, state))
    assert (found["state"], found["phase"], found["node"]) == ("running", phase, "n1")
    assert found["gpus"] == [{"node": "n1", "index": 0, "uuid": "GPU-0", "name": "NVIDIA RTX 4090"}]


def test_a_task_beyond_its_limit_is_overdue_unless_it_is_about_to_be_stopped_for_it(loop: FakeLoop) -> None:
    one = run(loop, time_limit_s=60.0)
    killed = run(loop, time_limit_s=60.0, spec=TaskSpec(kill_at_limit=True))
    assert shown(loop, one, NOW + 59)["phase"] is None
    assert shown(loop, one, NOW + 61)["phase"] == "overdue"
    assert shown(loop, killed, NOW + 61)["phase"] is None


def test_the_detail_knows_environment_dependencies_and_dependents(loop: FakeLoop) -> None:
    secret = {"WANDB_API_KEY": "abc", "LR": "0.1"}
    spec = TaskSpec(setenv=secret, activation=Activation("venv", "/v"), submit_dir="/s")
    [first] = loop.write(task())
    [one] = loop.write(task(spec=spec, after=(Dependency(first, After.ANY),)))  # type: ignore[arg-type]
    found = shown(loop, one)
    assert found["setenv"] == {"WANDB_API_KEY": "********", "LR": "0.1"}
    assert (found["env"], found["submit_dir"]) == ("/v", "/s")
    assert found["after"] == [{"id": first, "kind": "any", "state": "queued"}]
    assert shown(loop, first)["dependents"] == [one]


def test_long_commands_are_cut_in_lists_only(loop: FakeLoop) -> None:
    [one] = loop.write(task("x" * 5000))
    reader = Reader(connection(loop))
    [row] = reader.read("tasks", {"ids": [one]})
    reader.close()
    assert len(row["command"]) == 4000
    assert len(shown(loop, one)["command"]) == 5000


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        (
            {"state": "running", "phase": None, "started_at": iso(NOW - 60)},
            "it runs on n1 in attempt 2, for 1m",
        ),
        ({"state": "running", "phase": "starting", "started_at": None}, "it is starting on n1 in attempt 2"),
        (
            {"state": "running", "phase": "overdue", "started_at": iso(NOW - 60)},
            "it runs on n1 in attempt 2, for 1m, beyond its time limit",
        ),
        ({"state": "completed", "ended_at": iso(NOW - 5)}, "it completed with exit code 0 5s ago"),
        (
            {"state": "cancelled", "exit_code": None, "ended_at": iso(NOW - 5), "reason": "cancelled by ann"},
            "it was cancelled 5s ago: cancelled by ann",
        ),
    ],
)
def test_what_a_task_does_that_does_not_wait(doc: dict[str, Any], text: str) -> None:
    whole = {"attempt": 2, "node": "n1", "phase": None, "exit_code": 0, "reason": None} | doc
    assert state_text(whole, NOW) == text


def test_instants_are_written_in_utc_with_milliseconds() -> None:
    assert iso(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"
    assert iso(None) is iso(1e300) is None
    told = with_iso_moments({"since": 0, "gpus": [{"at": 0.5}], "ttl": 5})
    assert told == {"since": iso(0), "gpus": [{"at": iso(0.5)}], "ttl": 5}


def test_names_that_look_secret_are_masked() -> None:
    names = ("HF_TOKEN", "db_password", "AWS_SECRET_ACCESS_KEY", "GIT_CREDENTIALS", "X_AUTH", "LR", "DATA")
    assert [name for name, value in masked(dict.fromkeys(names, "v")).items() if value == "v"] == [
        "LR",
        "DATA",
    ]


# --- the questions themselves ---------------------------------------------------------------------


def many(loop: FakeLoop, number: int) -> None:
    tasks: list[NewTask] = [
        task(f"job {each}", queue="q" if each % 50 == 0 else None, batch=7) for each in range(number)
    ]
    loop.write(*tasks)
    loop.sql("update task set state = 'completed', ended_at = 1000.0 + id where id > 10")


LIST = {"newest_first": True, "limit": 5}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("tasks", {"ids": [1, 2]}),
    ("running", {}),
    ("queued", {"limit": 5}),
    ("ended", {"limit": 5}),
    ("states", {"ids": [1]}),
    ("open_counts", {}),
    ("ended_counts", {"since": 5000.0}),
    ("detail", {"task": 1}),
    ("attempts_of", {"task": 1}),
    ("log_of", {"task": 1, "number": None}),
    ("after_of", {"task": 1}),
    ("dependents_of", {"task": 1}),
    ("events", {"after": 0, "until": 5, "limit": 5}),
    ("events_of", {"task": 1, "after": 0, "until": 5, "limit": 5}),
    ("history_of", {"task": 1, "limit": 5}),
    ("changes", {"after": 5, "limit": 5}),
    ("newest_event", {}),
    ("list", LIST),
    ("list", LIST | {"newest_first": False, "cursor": 100}),
    ("list", LIST | {"states": ["queued", "running"], "owner": "ann"}),
    ("list", LIST | {"states": ["completed"], "owner": "ann"}),
    ("list", LIST | {"owner": "ann"}),
    ("list", LIST | {"queue": "q", "states": ["completed"]}),
    ("list", LIST | {"batch": 7, "owner": "ann"}),
    ("list", LIST | {"ids": [1, 2]}),
]


@pytest.mark.parametrize(
    ("question", "args"), QUESTIONS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_question_is_answered_from_an_index(
    loop: FakeLoop, question: str, args: dict[str, Any]
) -> None:
    many(loop, 300)
    traced: list[str] = []
    link = connection(loop)
    link.set_trace_callback(traced.append)
    reader = Reader(link)
    reader.read(question, args)
    link.set_trace_callback(None)
    for statement in traced:
        steps = [row[3] for row in link.execute(f"explain query plan {statement}")]
        scans = [
            step
            for step in steps
            if step.startswith("SCAN") and step.split()[1] in ("t", "task", "a", "attempt", "event")
        ]
        # A walk of the whole table by its key in order is no search through it: the limit ends it.
        assert not scans or (question, scans) in (("list", ["SCAN t"]), ("newest_event", scans)), steps
        assert question in ("ended_counts", "history_of") or not any(
            "TEMP B-TREE FOR ORDER" in step for step in steps
        ), steps
    reader.close()


def test_a_question_looks_at_little_however_much_lies_there(loop: FakeLoop) -> None:
    """Counted in steps of SQLite's machine, which no other load on this computer changes."""
    link = connection(loop)
    reader = Reader(link)

    def effort() -> dict[int, int]:
        found = {}
        for number, (question, args) in enumerate(QUESTIONS):
            if question in ("open_counts", "ended_counts"):
                continue  # they count, and an index is all they look at
            ticks: list[None] = []
            link.set_progress_handler(lambda: ticks.append(None), 100)  # noqa: B023
            reader.read(question, args)
            link.set_progress_handler(None, 0)
            found[number] = len(ticks)
        return found

    many(loop, 100)
    few = effort()
    many(loop, 4000)
    much = effort()
    reader.close()
    worse = {QUESTIONS[each][0]: (few[each], much[each]) for each in few if much[each] > 2 * few[each] + 10}
    assert not worse


def test_a_list_by_several_states_keeps_the_order_across_them(loop: FakeLoop) -> None:
    ids = loop.write(*(task() for _ in range(6)))
    loop.sql("update task set state = 'running' where id % 2 = 0")
    reader = Reader(connection(loop))
    both = {"states": ["queued", "running"], "limit": 4}
    assert [row["id"] for row in reader.read("list", both | {"newest_first": True})] == ids[:1:-1]
    assert [row["id"] for row in reader.read("list", both | {"newest_first": False})] == ids[:4]
    reader.close()


def test_where_a_day_has_many_ends_they_are_counted_now_and_then(loop: FakeLoop) -> None:
    reader = Reader(connection(loop))
    counts = Counts(Rows(reader))

    def counted(now: float) -> dict[str, int]:
        return asyncio.run(counts.read(now))

    many(loop, 110)
    assert counted(2000.0) == {"queued": 10, "running": 0, "completed": 100}
    assert counted(2000.0 + DAY_S) == {"queued": 10, "running": 0}
    many(loop, 5000)
    assert counted(3000.0)["completed"] == 5100
    loop.sql("update task set ended_at = null, state = 'queued' where id = 50")
    assert (counted(3001.0)["completed"], counted(3001.0)["queued"]) == (5100, 11)
    assert counted(3011.0)["completed"] == 5099
    reader.close()


def test_the_doors_cannot_write(loop: FakeLoop) -> None:
    link = connection(loop)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        link.execute("delete from task")
    link.close()


def test_named_statements_are_read_from_their_file() -> None:
    assert parse("-- head\n-- name: a\nselect 1;\n-- name: b\nselect\n 2;\n") == {
        "a": "select 1",
        "b": "select\n 2",
    }
    with pytest.raises(ValueError, match="two statements are named a"):
        parse("-- name: a\n-- name: a\n")
    assert reading.SQL["newest_event"].startswith("select")

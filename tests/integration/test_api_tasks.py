"""Tasks over real HTTP: a real doors process, a real database, and a loop that says what the scene needs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab_gpu.core.errors import NotFound, Refused, TooLate
from lab_gpu.testing.fake_loop import Doors, doors, finish, task


@pytest.fixture(scope="module")
def house() -> Iterator[Doors]:
    with doors() as found:
        yield found


@pytest.fixture
def open_house(house: Doors) -> Doors:
    house.loop.answers["add_tasks"] = house.loop.add_tasks
    house.loop.asked.clear()
    return house


def submit(house: Doors, *tasks: dict[str, Any], **body: Any) -> tuple[int, Any]:
    told = {
        "tasks": [{"command": "true"} | each for each in tasks],
        "environment": {"A": "1"},
        "workdir": "/",
    }
    return house.unix.post("/api/v1/tasks", told | body)


def test_a_submit_is_answered_with_the_tasks_and_why_they_wait(open_house: Doors) -> None:
    status, answer = submit(open_house, {"command": "echo hi", "mem_mib": 1024})
    assert status == 201
    [found] = answer["tasks"]
    assert (found["state"], found["reason"], found["command"]) == ("queued", "waiting", "echo hi")
    assert found["request"]["vram_mib"] == 1024
    assert found["submitted_at"].endswith("Z")
    [asked] = open_house.loop.ops("add_tasks")
    assert asked.who["uid"] == os.getuid()
    assert asked.args["environment"] == {"A": "1"}
    assert asked.args["idempotency_key"] is None


def test_the_idempotency_key_travels_and_the_loops_warnings_come_back(open_house: Doors) -> None:
    def add(args: dict[str, Any]) -> dict[str, Any]:
        return open_house.loop.add_tasks(args) | {"warnings": ["no node is known yet"]}

    open_house.loop.answers["add_tasks"] = add
    body = {"tasks": [{"command": "true"}], "environment": {}, "workdir": "/"}
    status, answer = open_house.unix.post("/api/v1/tasks", body, idempotency_key="k-1")
    assert (status, answer["warnings"]) == (201, ["no node is known yet"])
    assert open_house.loop.ops("add_tasks")[0].args["idempotency_key"] == "k-1"


def test_ten_thousand_tasks_in_one_request_are_taken_at_once(open_house: Doors) -> None:
    began = time.monotonic()
    status, answer = submit(open_house, *({"name": f"t{each}", "mem_mib": 1024} for each in range(10_000)))
    assert (status, len(answer["tasks"])) == (201, 10_000)
    assert set(answer["tasks"][0]) == {
        *("id", "state", "reason", "attempt", "exit_code", "gpus", "submitted_at", "started_at", "ended_at")
    }
    assert time.monotonic() - began < 10  # the figure itself is the benchmark's


def test_a_trial_writes_nothing(open_house: Doors) -> None:
    would = {
        "start": False,
        "node": None,
        "gpus": [],
        "reason": "busy",
        "reason_code": "gpus_busy",
        "earliest_start": 1_700_000_000.0,
        "advice": [],
    }
    open_house.loop.answers["preview"] = {"would": [would]}
    status, answer = submit(open_house, {}, dry_run=True)
    assert (status, answer["would"][0]["earliest_start"]) == (200, "2023-11-14T22:13:20.000Z")
    assert not open_house.loop.ops("add_tasks")


def test_mistakes_never_reach_the_loop(open_house: Doors) -> None:
    status, answer = submit(open_house, {"mem": 3}, {"gpus": "two"})
    assert (status, answer["slug"]) == (422, "refused")
    assert answer["problems"] == [
        "task 1: there is no field 'mem'; the nearest is 'mem_mib'",
        "task 2: gpus must be a whole number",
    ]
    assert answer["detail"] == f"cannot read the request: {answer['problems'][0]} (and 1 more mistake)"
    assert submit(open_house, {"mem": 3})[1]["problems"] == [
        "there is no field 'mem'; the nearest is 'mem_mib'"
    ]
    status, answer = submit(open_house, {"workdir": "/no/such"})
    assert status == 422
    assert "does not exist; create it or name another with --workdir" in answer["detail"]
    assert not open_house.loop.ops("add_tasks")


def test_what_the_loop_refuses_comes_back_as_it_said_it(open_house: Doors) -> None:
    open_house.loop.answers["add_tasks"] = Refused(
        "cannot submit: no GPU is that large; ask for less", ("p",)
    )
    status, answer = submit(open_house, {})
    assert (status, answer["slug"], answer["problems"]) == (422, "refused", ["p"])
    assert answer["detail"] == "cannot submit: no GPU is that large; ask for less"


def test_lists_filter_and_page(open_house: Doors) -> None:
    loop = open_house.loop
    ids = loop.write(*(task(f"job {n}", owner="lister", name="a%b" if n == 3 else None) for n in range(6)))
    get = open_house.unix.get

    def listed(query: str) -> list[int]:
        return [each["id"] for each in get(f"/api/v1/tasks?owner=lister&{query}")[1]["tasks"]]

    assert listed("limit=2") == [ids[5], ids[4]]
    page = get("/api/v1/tasks?owner=lister&limit=4")[1]
    assert page["next"] == str(ids[2])
    assert listed(f"limit=4&cursor={page['next']}") == [ids[1], ids[0]]
    assert get(f"/api/v1/tasks?owner=lister&cursor={page['next']}")[1]["next"] is None
    assert listed("order=old&limit=3") == ids[:3]
    assert listed(f"ids={ids[1]}-{ids[2]},{ids[5]}") == [ids[5], ids[2], ids[1]]
    loop.sql("update task set state = 'failed', ended_at = 5.0 where id = ?", ids[0])
    loop.sql("update task set state = 'running' where id = ?", ids[4])
    assert listed("state=failed,running&order=old") == [ids[0], ids[4]]
    assert listed("text=JOB%203") == listed("name=a%25b") == listed("text=a%25b") == [ids[3]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("state=open", "there are queued, running"),
        ("limit=0", "limit must be at least 1"),
        ("limit=x", "limit must be a whole number"),
        ("cursor=x", "cursor must be a whole number"),
        ("order=up", "order must be one of new, old"),
        ("ids=a-b", "an id is a whole number"),
        ("stat=queued", "there is no parameter 'stat'; the nearest is 'state'"),
    ],
)
def test_a_wrong_filter_is_refused_in_words(open_house: Doors, query: str, words: str) -> None:
    status, answer = open_house.unix.get(f"/api/v1/tasks?{query}")
    assert status == 422
    assert words in answer["detail"]


def test_what_is_not_there_is_not_found(open_house: Doors) -> None:
    for path in ("", "/why", "/history", "/logs"):
        status, answer = open_house.unix.get(f"/api/v1/tasks/999999{path}")
        assert (status, answer["slug"]) == (404, "not_found")
        assert "cannot find task 999999" in answer["detail"]


def test_an_edit_sends_only_what_changes_and_the_whole_request(open_house: Doors) -> None:
    [one] = open_house.loop.write(task())
    open_house.loop.answers["edit"] = lambda args: {"id": args["id"]}
    path = f"/api/v1/tasks/{one}"
    body = {"priority": 5, "time_limit_s": None, "request": {"vram_mib": 2048}}
    assert open_house.unix.ask("PATCH", path, body)[0] == 200
    changes = open_house.loop.ops("edit")[0].args["changes"]
    assert changes["priority"] == 5
    assert changes["time_limit_s"] is None
    assert (changes["request"]["vram_mib"], changes["request"]["gpus"]) == (2048, 1)
    assert "name" not in changes
    for wrong in (
        {},
        {"priority": None},
        {"priority": 5000},
        {"request": {"gpus": 0, "vram_mib": 5}},
        {"what": 1},
    ):
        assert open_house.unix.ask("PATCH", path, wrong)[0] == 422


def test_why_asks_the_loop_about_a_waiting_task_and_tells_of_others_itself(open_house: Doors) -> None:
    loop = open_house.loop
    [one] = loop.write(task())
    loop.answers["why"] = {
        "code": "gpus_busy",
        "text": "all are busy",
        "gpus": [],
        "earliest_start": 1_700_000_000.5,
        "behind": None,
        "advice": [],
        "position": 1,
        "of": 2,
    }
    path = f"/api/v1/tasks/{one}/why"
    answer = open_house.unix.get(path)[1]
    assert (answer["id"], answer["text"], answer["earliest_start"]) == (
        one,
        "all are busy",
        "2023-11-14T22:13:20.500Z",
    )
    loop.answers["why"] = TooLate("cannot explain: it runs")
    assert open_house.unix.get(path)[0] == 200
    loop.sql(
        "update task set state = 'failed', exit_code = 3, ended_at = ? where id = ?", time.time() - 90, one
    )
    answer = open_house.unix.get(path)[1]
    assert (answer["state"], answer["text"]) == ("failed", "it failed with exit code 3 1m 30s ago")


def test_actions_tell_what_was_done_and_what_could_not_be(open_house: Doors) -> None:
    one, two = open_house.loop.write(task(), task())
    error = {"id": two, "slug": "too_late", "text": "cannot cancel task: it is completed"}
    open_house.loop.answers["act"] = {"done": [one], "errors": [error]}
    body = {"action": "cancel", "ids": [one, two, one], "soft_timeout_s": 1}
    status, answer = open_house.unix.post("/api/v1/tasks/actions", body)
    assert (status, [each["id"] for each in answer["tasks"]], answer["errors"]) == (200, [one], [error])
    assert open_house.loop.ops("act")[0].args == {
        "action": "cancel",
        "ids": [one, two],
        "soft_timeout_s": 1.0,
    }


def test_an_action_may_wait_for_its_effect(open_house: Doors) -> None:
    [one] = open_house.loop.write(task())
    open_house.loop.answers["act"] = {"done": [one], "errors": []}
    sock = open_house.unix.begin(
        "POST", "/api/v1/tasks/actions", {"action": "cancel", "ids": [one], "wait_s": 30}
    )
    assert not answered(sock, 0.1)
    end(open_house, one, "cancelled")
    assert finish(sock)[1]["tasks"][0]["state"] == "cancelled"


def answered(sock: socket.socket, within_s: float) -> bool:
    sock.settimeout(within_s)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(30)


def end(house: Doors, one: int, state: str = "completed") -> None:
    house.loop.sql(
        "update task set state = ?, ended_at = 5.0, exit_code = 0 where id = ?", state, one, event=one
    )
    house.loop.push()


def test_a_wait_is_woken_by_the_last_end_it_waits_for(open_house: Doors) -> None:
    one, two, other = open_house.loop.write(task(), task(), task())
    open_house.loop.push()
    wait_all = open_house.unix.begin("POST", "/api/v1/wait", {"ids": [one, two]})
    wait_any = open_house.unix.begin("POST", "/api/v1/wait", {"ids": [one, two], "for": "any"})
    end(open_house, other)
    assert not answered(wait_any, 0.1)
    end(open_house, one)
    assert finish(wait_any)[1]["done"]
    assert not answered(wait_all, 0.1)
    end(open_house, two)
    answer = finish(wait_all)[1]
    assert answer["done"]
    assert [each["state"] for each in answer["tasks"]] == ["completed", "completed"]


def test_a_wait_ends_with_its_time_and_refuses_unknown_tasks(open_house: Doors) -> None:
    [one] = open_house.loop.write(task())
    status, answer = open_house.unix.post("/api/v1/wait", {"ids": [one], "timeout_s": 0.05})
    assert (status, answer["done"], answer["tasks"][0]["state"]) == (200, False, "queued")
    assert open_house.unix.post("/api/v1/wait", {"ids": [one, 999_999]})[0] == 404


def test_hundreds_may_wait_at_once_and_are_all_woken(open_house: Doors) -> None:
    [one] = open_house.loop.write(task())
    socks = [open_house.unix.begin("POST", "/api/v1/wait", {"ids": [one]}) for _ in range(200)]
    assert open_house.unix.get("/api/health")[0] == 200
    end(open_house, one)
    assert all(finish(sock)[1]["done"] for sock in socks)


def test_events_are_told_from_where_one_left_off_and_waited_for(open_house: Doors) -> None:
    get = open_house.unix.get
    last = get("/api/v1/events")[1]["last"]
    one, two = open_house.loop.write(task(), task())
    found = get(f"/api/v1/events?after={last}")[1]
    assert [(each["task"], each["kind"], each["body"]) for each in found["events"]] == [
        (one, "submitted", {}),
        (two, "submitted", {}),
    ]
    assert found["last"] == found["events"][-1]["seq"]
    assert get(f"/api/v1/events?after={last}&task={two}")[1]["events"][0]["task"] == two
    assert get(f"/api/v1/events?after={last}&limit=1")[1]["last"] == found["events"][0]["seq"]
    assert get(f"/api/v1/events?after={found['last']}&timeout_s=0.05")[1] == {
        "events": [],
        "last": found["last"],
    }
    sock = open_house.unix.begin("GET", f"/api/v1/events?after={found['last']}&task={two}")
    end(open_house, one)
    assert not answered(sock, 0.1)
    end(open_house, two)
    assert finish(sock)[1]["events"][0]["task"] == two
    assert [each["kind"] for each in get(f"/api/v1/tasks/{two}/history")[1]["events"]] == [
        "submitted",
        "changed",
    ]


def attempt(house: Doors, one: int, number: int, log: str, state: str = "running") -> None:
    ended = state == "ended"
    house.loop.sql(
        "insert into attempt (task_id, number, uni_id, state, node, gpus, directory, log_path, created_at, started_at,"
        " ended_at, ending, exit_code) values (?, ?, ?, ?, 'n1', '[{\"uuid\": \"GPU-0\", \"index\": 0}]', '/d', ?, 1.0,"
        " 1.0, ?, ?, ?)",
        *(one, number, f"u-{one}-{number}", state, log, 2.0 if ended else None),
        *("error" if ended else None, 1 if ended else None),
    )


def test_logs_are_read_by_offset_and_never_tear_a_character(open_house: Doors, tmp_path: Path) -> None:
    [one] = open_house.loop.write(task())
    path = f"/api/v1/tasks/{one}/logs"
    assert open_house.unix.get(path)[1] == {
        "attempt": 0,
        "offset": 0,
        "next": 0,
        "size": 0,
        "text": "",
        "ended": False,
    }
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes("日本".encode() + b"\xff")
    attempt(open_house, one, 1, str(old), "ended")
    attempt(open_house, one, 2, str(new))
    attempt(open_house, one, 3, "/never", "armed")
    assert open_house.unix.get(path)[1]["size"] == 0
    new.write_text("hello\n")
    answer = open_house.unix.get(path)[1]
    assert (answer["attempt"], answer["text"], answer["next"], answer["ended"]) == (2, "hello\n", 6, False)
    assert open_house.unix.get(f"{path}?offset=6")[1]["text"] == ""
    assert open_house.unix.get(f"{path}?offset=-3")[1]["text"] == "lo\n"
    first = open_house.unix.get(f"{path}?attempt=1&limit=5")[1]
    assert (first["text"], first["next"], first["ended"]) == ("日", 3, True)
    assert open_house.unix.get(f"{path}?attempt=1&offset=3")[1]["text"] == "本\ufffd"
    assert open_house.unix.get(f"{path}?attempt=7")[0] == 404
    assert open_house.unix.get(f"{path}?attempt=first")[0] == 422


def test_a_log_that_is_no_file_keeps_nobody_waiting(open_house: Doors, tmp_path: Path) -> None:
    [one] = open_house.loop.write(task())
    os.mkfifo(tmp_path / "pipe")
    attempt(open_house, one, 1, str(tmp_path / "pipe"))
    status, answer = open_house.unix.get(f"/api/v1/tasks/{one}/logs")
    assert (status, answer["slug"]) == (503, "broken")
    assert "not a regular file" in answer["detail"]


def test_a_run_outside_counts_for_the_process_that_asks(open_house: Doors) -> None:
    [one] = open_house.loop.write(task())
    begun = {"attempt_id": 4, "number": 1, "uni_id": "u", "log_name": "1.log", "gpus": []}
    open_house.loop.answers |= {"outside_begin": begun, "outside_end": {}}
    path = f"/api/v1/tasks/{one}/outside-attempts"
    status, answer = open_house.unix.post(path, {"command": "python x.py", "mem_mib": 10})
    assert (status, answer["attempt_id"]) == (201, 4)
    assert answer["log_root_default"] in ("/nas/logs", f"{open_house.home}/logs")
    args = open_house.loop.ops("outside_begin")[0].args
    assert (args["task_id"], args["pid"]) == (one, os.getpid())
    assert args["pid_started"] > 0
    assert open_house.unix.post(path, {"command": "x", "pid": 2**22 + 5})[0] == 422
    assert open_house.unix.post(path, {"command": "x", "mem_mib": -1})[0] == 422
    assert open_house.unix.post("/api/v1/outside-attempts/4/end", {"exit_code": 0}) == (200, {})
    open_house.loop.answers["outside_end"] = NotFound("cannot end run 4: it is over already")
    assert open_house.unix.post("/api/v1/outside-attempts/4/end", {"exit_code": 0})[0] == 404

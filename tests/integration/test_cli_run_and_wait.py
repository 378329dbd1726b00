"""Waiting, following and steering: exit codes, Ctrl-C of a real terminal's kind, and a master that goes and comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import json_door
import pytest
from cli_stage import Stage, staged

from tests.support.waiting import wait_until


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


def test_run_follows_and_ends_as_the_task_does(stage: Stage) -> None:
    child = stage.start("run", "--mem", "1G", "python train.py")
    wait_until(lambda: stage.master.tasks)
    stage.master.become(1, "running")
    stage.master.write_log(1, "hello\n")
    assert child.stdout is not None
    assert child.stdout.readline() == "hello\n"
    stage.master.write_log(1, "bye\n")
    stage.master.become(1, "failed", exit_code=7)
    out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("bye\n", 7)
    assert err == "task 1 submitted; Ctrl-C leaves it running\ntask 1 failed with exit code 7\n"


def test_run_of_a_task_that_never_began(stage: Stage) -> None:
    child = stage.start("run", "-q", "x")
    wait_until(lambda: stage.master.tasks)
    stage.master.become(1, "failed", reason="its directory is gone")
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 1


def interrupted(stage: Stage, *words: str) -> tuple[object, int]:
    """The command with a running task, after one Ctrl-C, and what it said then."""
    child = stage.start(*words)
    wait_until(lambda: stage.master.tasks)
    stage.master.become(1, "running")
    stage.master.write_log(1, "hello\n")
    assert child.stdout is not None
    assert child.stdout.readline() == "hello\n"
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    while "goes on" not in child.stderr.readline():
        pass
    return child, child.pid


def test_one_ctrl_c_leaves_the_task_alone(stage: Stage) -> None:
    child, _ = interrupted(stage, "run", "x")
    assert child.wait(timeout=30) == 130  # type: ignore[attr-defined]
    assert stage.master.tasks[1]["state"] == "running"
    assert stage.master.bodies("/api/v1/tasks/actions") == []


def test_a_second_ctrl_c_cancels(stage: Stage) -> None:
    child, _ = interrupted(stage, "run", "x")
    child.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
    out, err = child.communicate(timeout=30)  # type: ignore[attr-defined]
    assert (out, child.returncode) == ("", 130)  # type: ignore[attr-defined]
    assert "task 1 is being cancelled" in err
    assert stage.master.bodies("/api/v1/tasks/actions") == [{"action": "cancel", "ids": [1]}]


@pytest.mark.parametrize("words", [["submit", "--wait", "x"], ["wait", "1"]])
def test_ctrl_c_while_waiting_detaches(stage: Stage, words: list[str]) -> None:
    if words[0] == "wait":
        stage.master.add()
    child = stage.start(*words)
    wait_until(lambda: stage.master.bodies("/api/v1/wait"))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "task 1 goes on; lab-gpu wait 1 waits again, lab-gpu cancel 1 stops" in err
    assert stage.master.tasks[1]["state"] == "queued"


def test_wait_for_several(stage: Stage) -> None:
    for code in (0, 3, 2):
        stage.master.add()
        stage.master.become(len(stage.master.tasks), "failed" if code else "completed", exit_code=code)
    stage.master.add()
    done = stage.lab_gpu("wait", "1-3", code=3)
    assert done.out.splitlines() == [
        "3 tasks: 1 completed, 2 failed", "  task 2 failed with exit code 3", "  task 3 failed with exit code 2"
    ]  # fmt: skip
    assert stage.lab_gpu("wait", "1", "4", "--any").out == "task 1 completed\n"
    assert stage.lab_gpu("wait", "3", "--quiet", code=2).out == ""
    assert stage.lab_gpu("wait", "1", "--json").json["tasks"][0]["id"] == 1


def test_wait_gives_up_in_time(stage: Stage) -> None:
    stage.master.add()
    done = stage.lab_gpu("wait", "1", "--timeout", "0.05", code=124)
    assert done.err == "lab-gpu: cannot wait longer: task 1 had not ended in time; lab-gpu wait 1 goes on\n"


def test_waiting_survives_a_restart_of_the_master() -> None:
    with staged() as stage:
        stage.master.add()
        child = stage.start("wait", "1")
        wait_until(lambda: stage.master.bodies("/api/v1/wait"))
        os.rename(stage.master.socket, f"{stage.master.socket}.old")
        stage.master.refuse = _drop
        stage.master.become(1, "queued")
        with stage.master.changed:
            stage.master.changed.notify_all()
        stage.master.refuse = lambda method, path, body: None
        with json_door.listening(stage.master.socket, stage.master.answer):
            stage.master.become(1, "completed")
            assert child.wait(timeout=30) == 0


def _drop(method: str, path: str, body: object) -> None:
    raise ConnectionResetError


def test_cancel_says_what_happened_to_each(stage: Stage) -> None:
    stage.master.add()
    stage.master.add()
    done = stage.lab_gpu("cancel", "1-2", "99", code=1)
    assert done.out == "task 1 cancelled\ntask 2 cancelled\n"
    assert done.err == "lab-gpu: cannot cancel task 99: there is no such task; see lab-gpu list\n"
    answer = stage.lab_gpu("cancel", "1", "99", "--json", code=1).json
    assert [task["id"] for task in answer["tasks"]] == [1]
    assert answer["errors"][0]["slug"] == "not_found"


def test_cancel_with_its_timeouts_and_wait(stage: Stage) -> None:
    stage.master.add()
    assert (
        stage.lab_gpu("cancel", "1", "--wait", "--soft-timeout", "0", "--term-timeout", "5s").out
        == "task 1 cancelled\n"
    )
    assert stage.master.bodies("/api/v1/tasks/actions") == [
        {"action": "cancel", "ids": [1], "soft_timeout_s": 0, "term_timeout_s": 5}
    ]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("retry", "queued again"),
        ("hold", "held"),
        ("release", "released"),
        ("top", "is at the head of the queue"),
    ],
)
def test_the_other_wishes(stage: Stage, verb: str, words: str) -> None:
    stage.master.add()
    assert stage.lab_gpu(verb, "1").out == f"task 1 {words}\n"
    assert stage.master.bodies("/api/v1/tasks/actions") == [{"action": verb, "ids": [1]}]


def test_edit(stage: Stage) -> None:
    stage.master.add()
    stage.master.add()
    out = stage.lab_gpu(
        "edit", "1-2", "--priority", "high", "--mem", "16G", "--no-exclusive", "--begin", "+1h"
    ).out
    assert out == "tasks 1-2 changed\n"
    changes = stage.master.bodies("/api/v1/tasks/2")[0]
    assert isinstance(changes.pop("not_before"), float)
    assert changes == {"priority": 100, "request": {"vram_mib": 16384, "exclusive": False}}
    stage.lab_gpu("edit", "1", "--clear", "time-limit", "--clear", "gpu-type", "--clear", "gpu_ids")
    assert stage.master.bodies("/api/v1/tasks/1")[-1] == {
        "time_limit_s": None, "request": {"gpu_type": None, "gpu_ids": []}
    }  # fmt: skip
    assert "no change is named" in stage.lab_gpu("edit", "1", code=2).err
    assert "cannot clear 'priority'" in stage.lab_gpu("edit", "1", "--clear", "priority", code=2).err
    assert stage.lab_gpu("edit", "1", "99", "--name", "x", code=1).out == "task 1 changed\n"


def test_settings_by_command(stage: Stage) -> None:
    stage.lab_gpu("config", "set", "submit.mem", "4G")
    assert stage.lab_gpu("config", "set", "color", "never", "--json").json["value"] == "never"
    shown = stage.lab_gpu("config", "show", "--origin").out
    assert "submit.mem  4G" in shown
    assert shown.count(f"{stage.folder}/config/lab-gpu/config.yaml") == 2
    assert stage.lab_gpu("config", "show", "--json").json["submit.mem"]["value"] == "4G"
    stage.lab_gpu("submit", "x")
    assert stage.master.bodies("/api/v1/tasks")[-1]["tasks"] == [{"command": "x", "mem_mib": 4096}]
    told = {"key": "submit.mem", "value": None, "path": f"{stage.folder}/config/lab-gpu/config.yaml"}
    assert stage.lab_gpu("config", "set", "submit.mem", "--unset", "--json").json == told
    assert "submit.mem" not in stage.lab_gpu("config", "show").out
    assert "did you mean submit.mem?" in stage.lab_gpu("config", "set", "mem", "4G", code=2).err
    assert "cannot read size '10X'" in stage.lab_gpu("config", "set", "submit.mem", "10X", code=2).err
    assert "write a value after it" in stage.lab_gpu("config", "set", "color", code=2).err

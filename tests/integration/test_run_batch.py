"""`run_batch.sh` as a person runs it: from anywhere, with nothing but bash and an installed lab-gpu."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Stage, staged

from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "run_batch.sh"


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as stage:
        os.mkdir(f"{stage.folder}/checkout")
        shutil.copy(SCRIPT, f"{stage.folder}/checkout/run_batch.sh")
        os.mkdir(f"{stage.folder}/bin")
        program = Path(f"{stage.folder}/bin/lab-gpu")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lab_gpu "$@"\n')
        program.chmod(0o755)
        stage.env["PATH"] = f"{stage.folder}/bin:/usr/bin:/bin"
        stage.write("tasks.json", '{"tasks": [{"cmd": "a"}, {"cmd": "b", "retries": 0}]}')
        yield stage


def start(stage: Stage, *words: str, before: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [*before, f"{stage.folder}/checkout/run_batch.sh", *words], cwd=stage.here, env={**stage.env, **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    stage._children.append(child)
    return child


def end(stage: Stage, failed: tuple[int, ...] = ()) -> None:
    wait_until(lambda: stage.master.bodies("/api/v1/wait"))
    for number in list(stage.master.tasks):
        stage.master.become(number, "running")
        if number in failed:
            stage.master.become(number, "failed", exit_code=3, reason="exit code 3 after 2 attempts")
        else:
            stage.master.become(number, "completed", exit_code=0)


def sent(stage: Stage) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = stage.master.bodies("/api/v1/tasks")[0]["tasks"]
    return tasks


def test_all_went_well(stage: Stage) -> None:
    child = start(stage, "tasks.json")
    end(stage)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert out.splitlines() == ["submitted: tasks 1-2", "2 tasks: 2 completed", f"logs: {stage.folder}"]
    assert sent(stage) == [{"command": "a", "max_retries": 1}, {"command": "b", "max_retries": 0}]


def test_a_failed_task_is_told_and_exit_1(stage: Stage) -> None:
    child = start(stage, "tasks.json", MAX_RETRY="4", LOG_ROOT=f"{stage.folder}/my logs")
    end(stage, failed=(2,))
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (1, "")
    assert "  task 2 failed: exit code 3 after 2 attempts" in out.splitlines()
    assert out.splitlines()[-1] == f"logs: {stage.folder}"
    assert sent(stage)[0] == {"command": "a", "max_retries": 4, "log_root": f"{stage.folder}/my logs"}


def test_host_names_the_master(stage: Stage) -> None:
    host = stage.env.pop("LAB_GPU_HOST")
    child = start(stage, "tasks.json", HOST=host)
    end(stage)
    assert child.wait(timeout=60) == 0


def test_a_host_variable_of_the_shell_is_no_master(stage: Stage) -> None:
    child = start(stage, "tasks.json", HOST=os.uname().nodename)
    end(stage)
    assert child.wait(timeout=60) == 0


def test_mistakes_end_it_before_anything_is_queued(stage: Stage) -> None:
    stage.write("bad.json", '[{"cmd": "a", "mem": "10X"}]')
    child = start(stage, "bad.json")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (2, "")
    assert "bad.json:1: cannot read size '10X'" in err
    assert (
        "cannot read --retries 'many'"
        in start(stage, "tasks.json", MAX_RETRY="many").communicate(timeout=60)[1]
    )
    assert start(stage).wait(timeout=60) == 2
    assert stage.master.tasks == {}


def test_without_lab_gpu_it_says_so(stage: Stage) -> None:
    child = start(stage, "tasks.json", PATH="/usr/bin:/bin")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err.count("\n")) == (1, "", 1)
    assert "cannot find lab-gpu" in err


def test_the_checkouts_own_environment_comes_first(stage: Stage) -> None:
    os.makedirs(f"{stage.folder}/checkout/.venv/bin")
    shutil.move(f"{stage.folder}/bin/lab-gpu", f"{stage.folder}/checkout/.venv/bin/lab-gpu")
    os.symlink(f"{stage.folder}/checkout/run_batch.sh", f"{stage.folder}/bin/batch")
    done = subprocess.Popen(
        ["batch", "tasks.json"],
        cwd=stage.here,
        env=stage.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stage._children.append(done)
    end(stage)
    assert done.communicate(timeout=60)[1] == ""
    assert done.returncode == 0


def test_it_survives_nohup_and_a_lost_terminal(stage: Stage) -> None:
    child = start(stage, "tasks.json", before=("nohup",))
    wait_until(lambda: stage.master.bodies("/api/v1/wait"))
    os.killpg(child.pid, signal.SIGHUP)
    end(stage)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "2 tasks: 2 completed" in out


def test_a_master_that_plans_by_hand_is_ticked(stage: Stage) -> None:
    ticks = []

    def get_server_1(parts: list[str], query: object, body: object) -> dict[str, object]:
        return {"pid": 1, "manual_tick": True}

    def post_server_2(parts: list[str], query: object, body: object) -> dict[str, object]:
        ticks.append(1)
        if len(ticks) == 2:
            for number in list(stage.master.tasks):
                stage.master.become(number, "completed", exit_code=0)
        return {"started": [], "waiting": []}

    stage.master.get_server_1 = get_server_1  # type: ignore[assignment]
    stage.master.post_server_2 = post_server_2  # type: ignore[attr-defined]
    child = start(stage, "tasks.json")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert len(ticks) == 2
    assert "2 tasks: 2 completed" in out

"""The master is killed at each labelled point of a trip: every acknowledged task runs once, and none is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from lab_gpu.core.errors import LabGpuError
from lab_gpu.service.points import LABELS
from tests.support.masters import Master, a_home

TASKS = 8


def submit_until_acknowledged(master: Master, ran: Path, ids: list[int], stop: threading.Event) -> None:
    """As a client does: the same key again until somebody answers."""
    for number in range(TASKS):
        key = f"crash-{number}"
        body = master.body([{"command": f"echo $LAB_GPU_TASK_ID >> {ran}; sleep 0.02"}])
        while not stop.is_set():
            try:
                answer = master.api.post("/api/v1/tasks", body, headers={"Idempotency-Key": key})
                ids.append(answer["tasks"][0]["id"])
                break
            except LabGpuError:
                time.sleep(0.02)  # nobody there: the next master is on its way


@pytest.mark.slow
@pytest.mark.parametrize("occurrence", [1, 3])
@pytest.mark.parametrize("label", LABELS)
def test_killed_at_every_point_each_task_runs_once(label: str, occurrence: int, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with a_home() as master:
        master.start()
        master.add_gpus(1)
        master.stop()
        ready = master.start(module="tests.support.crashing", CRASH_AT=f"{label}:{occurrence}")
        assert ready.get("ready"), master.log()
        ids: list[int] = []
        stop = threading.Event()
        client = threading.Thread(target=submit_until_acknowledged, args=(master, ran, ids, stop))
        client.start()
        try:
            assert master.process is not None
            master.process.wait(timeout=30)
            assert master.process.returncode == -9, master.log()
            assert master.start()["ready"], master.log()
            client.join(timeout=30)
            assert len(ids) == TASKS
            ended = master.wait(*ids)
        finally:
            stop.set()
            client.join()
        assert {task["state"] for task in ended} == {"completed"}, ended
        assert sorted(ids) == sorted(set(ids)), "an idempotency key gave two tasks"
        everyone = {task["id"] for task in master.api.get("/api/v1/tasks", query={"limit": 100})["tasks"]}
        assert everyone == set(ids), "a task nobody was told of"
        assert Counter(map(int, ran.read_text().split())) == dict.fromkeys(ids, 1)

"""A disk that is full is an error where the person looks, and loses no accepted task (promise 8)."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab_gpu.core.errors import Broken
from lab_gpu.service.points import LABELS
from tests.integration.test_crash import submit_until_acknowledged
from tests.support.filling import fill
from tests.support.masters import Master, a_home, wait_until


@contextmanager
def small_disk(master: Master) -> Iterator[None]:
    """The home on a disk of a few MiB of its own."""
    os.makedirs(master.home)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", master.home], check=True)
    try:
        yield
    finally:
        master.kill()
        wait_until(
            lambda: subprocess.run(["umount", master.home], capture_output=True).returncode == 0,
            "the small disk can be taken away",
        )


def filled(home: str) -> str:
    path = f"{home}/filler"
    fill(path)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")
def test_a_full_disk_loses_nothing_and_says_so() -> None:
    with a_home() as master, small_disk(master):
        logs = f"{os.path.dirname(master.home)}/logs"
        assert master.start()["ready"]
        master.add_gpus(1)
        running = master.submit("while [ ! -e go ]; do sleep 0.05; done", log_root=logs)
        waiting = master.submit("true", log_root=logs)
        master.wait_state(running, "running")
        filler = filled(master.home)
        with pytest.raises(Broken, match="disk"):
            for _ in range(200):  # some fit into pages that are there already
                master.submit("echo " + "x" * 2000)
        os.unlink(filler)
        open(f"{master.home}/go", "w").close()
        ended = master.wait(running, waiting)
        assert [task["state"] for task in ended] == ["completed", "completed"]
        after = master.submit("true", log_root=logs)
        assert master.wait(after)[0]["state"] == "completed"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")
def test_a_master_outlives_that_its_own_log_is_full_too_and_answers_those_who_look() -> None:
    with a_home() as master, small_disk(master):
        os.symlink(f"{master.home}/master.log", f"{master.home}.log")
        logs = f"{os.path.dirname(master.home)}/logs"
        assert master.start()["ready"]
        go = f"{os.path.dirname(master.home)}/go"
        task = master.submit(f"while [ ! -e {go} ]; do sleep 0.05; done", gpus=0, log_root=logs)
        master.wait_state(task, "running")
        filler = filled(master.home)
        open(go, "w").close()  # its end is what cannot be written
        for _ in range(20):
            with pytest.raises(Broken, match="disk"):
                for _ in range(200):
                    master.submit("echo " + "x" * 2000, gpus=0, log_root=logs)
            assert master.api.get("/api/v1/status")["server"]["pid"] == master.ready["pid"]
        assert master.alive
        os.unlink(filler)
        assert master.wait(task)[0]["state"] == "completed"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")
def test_a_start_on_a_full_disk_says_so() -> None:
    with a_home() as master, small_disk(master):
        filled(master.home)
        ready = master.start()
        assert ready["error"].startswith(("cannot start a master", "cannot open the database"))
        assert ready["exit"] == Broken.exit_code


@pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")
def test_a_task_that_ends_on_a_full_disk_keeps_its_exit_code() -> None:
    with a_home() as master, small_disk(master):
        logs = f"{os.path.dirname(master.home)}/logs"
        assert master.start()["ready"]
        master.add_gpus(1)
        go = f"{os.path.dirname(master.home)}/go"
        task = master.submit(f"while [ ! -e {go} ]; do sleep 0.05; done; exit 7", log_root=logs)
        master.wait_state(task, "running")
        filler = filled(master.home)
        open(go, "w").close()
        wait_until(
            lambda: "full" in master.log() or master.task(task)["state"] == "failed", "its end is seen"
        )
        os.unlink(filler)
        (ended,) = master.wait(task)
        assert (ended["state"], ended["exit_code"]) == ("failed", 7)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="making a small disk needs root")
@pytest.mark.parametrize("label", LABELS)
def test_a_disk_that_fills_at_any_point_loses_nothing(label: str, tmp_path: Path) -> None:
    """The same trip as in the crash tests; room is made again once the master has met the full disk."""
    ran = tmp_path / "ran"
    with a_home() as master, small_disk(master):
        master.start()
        master.add_gpus(1)
        master.stop()
        filler = Path(master.home, "filler")
        where = {"FILL_AT": f"{label}:2", "FILLER": str(filler)}
        assert master.start(module="tests.support.filling", **where)["ready"], master.log()
        ids: list[int] = []
        stop = threading.Event()
        client = threading.Thread(target=submit_until_acknowledged, args=(master, ran, ids, stop))
        client.start()
        try:
            wait_until(filler.exists, "the disk fills")
            wait_until(lambda: "full" in master.log() or not client.is_alive(), "somebody meets it")
            filler.unlink()
            client.join(timeout=30)
            ended = master.wait(*ids)
        finally:
            stop.set()
            client.join()
        assert {task["state"] for task in ended} == {"completed"}, ended
        assert Counter(map(int, ran.read_text().split())) == dict.fromkeys(ids, 1)

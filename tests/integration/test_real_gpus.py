"""Whole masters on the stub NVML library: real bindings, real claims, real processes; only the cards are pretended."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.masters import Master, a_home, wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "nvml"))
pytest_plugins = ("stub",)
if TYPE_CHECKING:
    from stub import StubGpus

TOTAL_MIB = 24576
GUEST_UID = 65534


@contextmanager
def master_on(gpus: StubGpus, **environ: str) -> Iterator[Master]:
    with a_home(LAB_GPU_NO_NVML="", **gpus.environ, **environ) as master:
        ready = master.start()
        assert ready.get("ready"), (ready, master.log())
        yield master


def test_a_foreign_process_is_respected_shown_and_named(stub_gpus: StubGpus) -> None:
    stub_gpus.gpu(total_mib=TOTAL_MIB)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stub_gpus.living(stranger.pid, 0, 20000)
        stub_gpus.change(0, used_mib=20000)
        with master_on(stub_gpus) as master:
            task = master.submit("true", mem_mib=10240)
            why = master.api.get(f"/api/v1/tasks/{task}/why")
            assert why["code"] == "foreign", why
            assert "sleep" in str(why["gpus"]) or "sleep" in why["text"], why
            [node] = master.api.get("/api/v1/gpus")["nodes"]
            [seen] = node["gpus"][0]["foreign"]
            assert (seen["pid"], seen["mib"]) == (stranger.pid, 20000)
            assert seen["command"].startswith("sleep 60") and seen["owner"]
            stranger.kill()
            stranger.wait()
            stub_gpus.change(0, used_mib=0)
            assert master.wait(task)[0]["state"] == "completed"


def test_a_program_sees_its_gpus_as_nvidia_smi_numbers_them(stub_gpus: StubGpus) -> None:
    for _ in range(3):
        stub_gpus.gpu(total_mib=TOTAL_MIB)
    with master_on(stub_gpus) as master:
        seen = f"{master.home}/seen"
        command = f"echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $NVIDIA_VISIBLE_DEVICES > {seen}"
        task = master.submit(command, gpus=2, gpu_ids=[0, 2])
        [ended] = master.wait(task)
        assert Path(seen).read_text().split() == [
            "0,2",
            "PCI_BUS_ID",
            f"{stub_gpus.uuid(0)},{stub_gpus.uuid(2)}",
        ]
        assert [gpu["uuid"] for gpu in ended["gpus"]] == [stub_gpus.uuid(0), stub_gpus.uuid(2)]


def test_a_gpu_is_promised_again_only_when_its_memory_is_back(stub_gpus: StubGpus) -> None:
    stub_gpus.gpu(total_mib=TOTAL_MIB)
    with master_on(stub_gpus) as master:
        first = master.submit("while [ ! -e go ]; do sleep 0.02; done")
        master.wait_state(first, "running")
        stub_gpus.change(0, used_mib=9000)  # the driver keeps it after the process is gone
        second = master.submit("true")
        Path(master.home, "go").touch()
        master.wait(first)
        why = wait_until(
            lambda: "not back" in (text := master.api.get(f"/api/v1/tasks/{second}/why")["text"]) and text,
            "the reason names the memory",
        )
        assert f"task {first}" in why
        stub_gpus.change(0, used_mib=0)
        assert master.wait(second)[0]["state"] == "completed"


def test_a_gpu_whose_memory_never_comes_back_is_set_aside(stub_gpus: StubGpus, tmp_path: Path) -> None:
    stub_gpus.gpu(total_mib=TOTAL_MIB)
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpu_memory_wait_s: 1\n")
    with a_home(LAB_GPU_NO_NVML="", **stub_gpus.environ) as master:
        assert master.start("--no-tcp", "--policy", str(policy))["ready"], master.log()
        first = master.submit("while [ ! -e go ]; do sleep 0.02; done")
        master.wait_state(first, "running")
        stub_gpus.change(0, used_mib=9000)
        Path(master.home, "go").touch()
        master.wait(first)
        closed = wait_until(
            lambda: "set aside" in (master.api.get("/api/v1/gpus")["nodes"][0]["gpus"][0]["closed"] or ""),
            "the GPU is set aside",
        )
        assert closed
        waiting = master.submit("true")
        assert "set aside" in master.api.get(f"/api/v1/tasks/{waiting}/why")["text"]
        stub_gpus.change(0, used_mib=0)
        master.api.post(f"/api/v1/nodes/{os.uname().nodename}/undrain", {"gpu": 0})
        assert master.wait(waiting)[0]["state"] == "completed"


def test_a_driver_that_goes_away_loses_nothing(stub_gpus: StubGpus) -> None:
    stub_gpus.gpu(total_mib=TOTAL_MIB)
    with master_on(stub_gpus) as master:
        running = master.submit("while [ ! -e go ]; do sleep 0.02; done", mem_mib=1024)
        master.wait_state(running, "running")
        stub_gpus.driver(error=999)
        waiting = master.submit("true")
        wait_until(lambda: master.api.get("/api/v1/gpus")["problem"], "the problem is told")
        Path(master.home, "go").touch()
        assert master.wait(running)[0]["state"] == "completed"
        assert master.task(waiting)["state"] == "queued"
        stub_gpus.driver()
        assert master.wait(waiting)[0]["state"] == "completed"


# --- two masters, two users ------------------------------------------------------------------------


def interpreter_for(uid: int) -> list[str] | None:
    """A Python that this user may run, with what ours has installed."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    source = str(Path(__file__).parents[2] / "src")
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["env", f"PYTHONPATH={source}:{packages}", python]
        tried = subprocess.run(
            [*command, "-c", "import pydantic_core, fastapi, lab_gpu.daemon.main"],
            user=uid,
            group=uid,
            extra_groups=[],
            capture_output=True,
            cwd="/",
        )
        if tried.returncode == 0:
            return command
    return None


class GuestMaster(Master):
    """The same as another user."""

    def __init__(self, master: Master, python: list[str]) -> None:
        super().__init__(master.home, master.environ)
        self.python = python

    def start(self, *arguments: str, module: str = "lab_gpu.daemon", **environ: str) -> dict[str, object]:
        os.makedirs(self.home, exist_ok=True)
        os.chown(self.home, GUEST_UID, GUEST_UID)
        os.chmod(os.path.dirname(self.home), 0o755)
        with open(f"{self.home}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.python, "-m", module, "--home", self.home, "--no-tcp"],
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                user=GUEST_UID,
                group=GUEST_UID,
                extra_groups=[],
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.process.stdout.close()
        self.ready = json.loads(line)
        return self.ready


def held_intervals(master: Master) -> list[tuple[float, float, str, int]]:
    with sqlite3.connect(f"file:{master.home}/lab-gpu.db?mode=ro", uri=True) as db:
        rows = db.execute(
            "select started_at, ended_at, json_extract(g.value, '$.uuid'), coalesce(vram_mib, ?)"
            " from attempt, json_each(attempt.gpus) g where state = 'ended'",
            (TOTAL_MIB,),
        ).fetchall()
    db.close()
    return rows


def most_promised(intervals: list[tuple[float, float, str, int]]) -> dict[str, int]:
    """The highest sum of promises at any instant, for each GPU."""
    most: dict[str, int] = {}
    for uuid in {each[2] for each in intervals}:
        steps = []
        for begun, ended, gpu, mib in intervals:
            if gpu == uuid:
                steps += [(begun, 1, mib), (ended, 0, -mib)]
        now = highest = 0
        for _, _, change in sorted(steps):
            now += change
            highest = max(highest, now)
        most[uuid] = highest
    return most


@pytest.mark.slow
@pytest.mark.parametrize("users", [1, 2])
def test_two_masters_share_the_gpus_of_a_host(stub_gpus: StubGpus, users: int, tmp_path: Path) -> None:
    """500 launches by two masters that know of each other only by their claims: no GPU is over-promised."""
    for _ in range(2):
        stub_gpus.gpu(total_mib=TOTAL_MIB)
    claims = tmp_path / "claims"
    claims.mkdir()
    claims.chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
    environ = {"LAB_GPU_CLAIMS_DIR": str(claims)}
    with ExitStack() as stack:
        one = stack.enter_context(master_on(stub_gpus, **environ))
        other = stack.enter_context(a_home(LAB_GPU_NO_NVML="", **stub_gpus.environ, **environ))
        if users == 2:
            python = interpreter_for(GUEST_UID) if os.geteuid() == 0 else None
            if python is None:
                pytest.skip("a second user needs root, and a Python that user may run")
            guest = GuestMaster(other, python)
            stack.callback(guest.kill)
            other = guest
        assert other.start().get("ready"), other.log()
        sizes = [4096, 8192, 14336, None]
        ids = {
            id(master): master.submit_many(
                [{"command": "true", **({"mem_mib": m} if (m := sizes[n % 4]) else {})} for n in range(250)]
            )
            for master in (one, other)
        }
        for master in (one, other):
            ended = master.wait(*ids[id(master)], patience_s=100)
            assert {task["state"] for task in ended} == {"completed"}
        most = most_promised(held_intervals(one) + held_intervals(other))
        assert set(most) == {stub_gpus.uuid(0), stub_gpus.uuid(1)}
        assert max(most.values()) <= TOTAL_MIB, most

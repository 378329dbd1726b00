"""Client against a real master: what only both together can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from fake_master import short_folder

from lab_gpu import Client, LabGpuTimeoutError, Refused
from lab_gpu.client import launch
from tests.support.waiting import wait_until

HOLDER = "from lab_gpu import Client; lease = Client().acquire(gpus=2); print(lease.id, flush=True); input()"
INSIDE = """
from lab_gpu import Client, Refused
client = Client()
with client.acquire() as lease:
    print(lease.gpu_ids)
try:
    client.acquire(gpus=2)
except Refused as error:
    print(error)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """Private, started by the first Client, with two virtual GPUs."""
    with short_folder() as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_GPU_HOME", path)
        patch.setenv("LAB_GPU_CLAIMS_DIR", f"{path}/claims")
        patch.setenv("LAB_GPU_NO_NVML", "1")
        for name in ("LAB_GPU_HOST", "LAB_GPU_AUTOSTART", "CUDA_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)
        os.mkdir(f"{path}/claims")
        Client().api.post(
            "/api/v1/nodes", {"name": "box", "gpus": 2, "vram_mib": 24576, "gpu_type": "RTX 3090"}
        )
        yield path
        launch.stop(path)


@pytest.fixture
def client(home: str) -> Client:
    return Client()


def note(home: str) -> dict[str, object]:
    with open(f"{home}/master.json", encoding="utf-8") as file:
        return dict(json.load(file))


def test_the_three_ways_of_the_manual(client: Client) -> None:
    placement = client.acquire(mem="10G")
    assert (placement.node, placement.gpu_id) == ("box", 0) and os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    placement.release()
    assert client.request_device(mem="10G", timeout=30).gpu_ids == (0,)
    result = client.run(cmd="echo $CUDA_VISIBLE_DEVICES; exit 3", mem="10G", log_root="/tmp")
    assert (result.exit_code, result.oom, result.reason) == (3, False, "exit code 3")
    assert result.log_path is not None and result.log_path.startswith("/tmp/")
    os.unlink(result.log_path)


def test_timeouts_while_all_is_taken(client: Client) -> None:
    for lease in client.api.get("/api/v1/leases")["leases"]:
        client.api.delete(f"/api/v1/leases/{lease['id']}")
    with client.request_device(gpus=2):
        for timeout in (0, 0.1):
            with pytest.raises(LabGpuTimeoutError, match="waiting for"):
                client.acquire(timeout=timeout)
            with pytest.raises(LabGpuTimeoutError, match="cancelled"):
                client.run("true", timeout=timeout)
        waiting = [doc for doc in client.api.get("/api/v1/leases")["leases"] if doc["state"] == "waiting"]
        assert not waiting and not client.list(state="queued")
    with pytest.raises(Refused):
        client.acquire(mem="40G")


def test_a_lease_ends_with_its_process(client: Client) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LabGpuTimeoutError):
            client.request_device(timeout=0)
        holder.kill()
        client.request_device(gpus=2, timeout=30).release()


def test_inside_an_attempt(client: Client) -> None:
    task = client.submit([sys.executable, "-c", INSIDE], gpus=1)
    assert task.result().exit_code == 0
    given, refused = task.logs()
    assert given == "(0,)\n" and "it has 1" in refused


def test_followed_across_retries_and_a_killed_master(client: Client, home: str) -> None:
    """Nothing of the log is missed or shown twice."""
    task = client.submit(
        f"echo attempt $LAB_GPU_ATTEMPT; while [ ! -e {home}/go-$LAB_GPU_ATTEMPT ]; do sleep 0.02; done; exit 1",
        retries=1,
        backoff=0.05,
    )
    seen: list[str] = []
    follower = threading.Thread(target=lambda: seen.extend(task.logs(follow=True)))
    waited: list[int | None] = []
    waiter = threading.Thread(target=lambda: waited.append(task.wait().exit_code))
    follower.start()
    waiter.start()
    wait_until(lambda: task.status()["state"] == "running")
    pid = note(home)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: launch.start_private(home).get("pid") not in (None, pid))
    open(f"{home}/go-1", "w").close()
    wait_until(lambda: task.status()["attempt"] == 2)
    open(f"{home}/go-2", "w").close()
    follower.join(30)
    waiter.join(30)
    assert seen == ["attempt 1\n", "---- attempt 2 ----\n", "attempt 2\n"] and waited == [1]


def test_an_older_master_is_replaced_and_its_task_runs_on(client: Client, home: str) -> None:
    task = client.submit(f"while [ ! -e {home}/go-on ]; do sleep 0.02; done; echo survived")
    wait_until(lambda: task.status()["state"] == "running")
    before = note(home)
    with open(f"{home}/master.json", "w", encoding="utf-8") as file:
        json.dump({**before, "version": "0.0.1"}, file)
    replaced = Client()
    assert replaced.api.get("/api/v1/server")["pid"] != before["pid"]
    open(f"{home}/go-on", "w").close()
    assert task.wait().ok and list(task.logs()) == ["survived\n"]


def doors_of(pid: object) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as words, open(f"/proc/{name}/stat") as stat:
                if (
                    b"lab_gpu.daemon.doors" in words.read()
                    and int(stat.read().rpartition(") ")[2].split()[1]) == pid
                ):
                    found.append(int(name))
        except OSError:
            continue
    return found


def test_doors_killed_while_many_submit_nothing_is_lost_and_nothing_twice(client: Client, home: str) -> None:
    before = len(client.list(limit=None))
    ids: list[int] = []

    def submit(part: int) -> None:
        for number in range(25):
            ids.append(Client().submit(f"true {part} {number}", gpus=0, hold=True).id)

    submitters = [threading.Thread(target=submit, args=(part,)) for part in range(4)]
    for each in submitters:
        each.start()
    wait_until(lambda: len(ids) > 10)
    for door in doors_of(note(home)["pid"]):
        os.kill(door, signal.SIGKILL)
    for each in submitters:
        each.join(60)
    commands = [doc["command"] for doc in client.list(limit=None, state="queued")]
    assert len(ids) == len(set(ids)) == 100 == len(client.list(limit=None)) - before
    assert sorted(commands) == sorted(f"true {part} {number}" for part in range(4) for number in range(25))

"""The stand every benchmark runs on: a master of its own in a temporary home, and nothing left behind.

A benchmark refuses to report when one of its tasks failed: figures of work not done are worth nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import Any

from lab_gpu.client.transport import Api, find_master

LAB_GPU = str(Path(sys.executable).parent / "lab-gpu")
TASK_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
}
WAIT_POLL_S = 0.002


class BenchmarkFailed(Exception):
    """Something did not go as it must before its time can mean anything."""


class Stand:
    """A home, and the master that runs on it now, if one does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {**os.environ, "LAB_GPU_HOME": str(home), "LAB_GPU_CLAIMS_DIR": str(home / "claims")}
        self.environ.update(LAB_GPU_NO_NVML="1", LAB_GPU_AUTOSTART="0", NO_COLOR="1")
        self.environ.pop("LAB_GPU_HOST", None)
        self.master: subprocess.Popen[bytes] | None = None
        self.socket = ""
        (home / "claims").mkdir()
        (home / "work").mkdir()

    def start(self) -> float:
        """Starts the master; the seconds until its loop answered."""
        read_end, write_end = os.pipe()
        command = [sys.executable, "-m", "lab_gpu.daemon", "--home", str(self.home), "--no-tcp"]
        log = (self.home / "stderr").open("ab")
        began = time.monotonic()
        self.master = subprocess.Popen(
            [*command, "--ready-fd", str(write_end)],
            env=self.environ,
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            line = answer.readline()
        took_s = time.monotonic() - began
        ready = loads(line) if line else {"error": (self.home / "stderr").read_text()[-500:]}
        if "ready" not in ready:
            raise BenchmarkFailed(f"the master did not start: {ready.get('error', ready)}")
        self.socket = ready["socket"]
        return took_s

    @property
    def api(self) -> Api:
        return find_master(host=f"unix:{self.socket}", environ=self.environ)

    @property
    def pid(self) -> int:
        assert self.master is not None
        return self.master.pid

    def kill_master(self) -> None:
        """As a crash does: no goodbye, and its children find out by themselves."""
        assert self.master is not None
        doors = children_of(self.pid)
        self.master.send_signal(signal.SIGKILL)
        self.master.wait()
        self.master = None
        wait_until(
            lambda: not any(is_master_process(pid) for pid in doors), "the doors of a killed master end"
        )

    def stop(self) -> None:
        if self.master is None:
            return
        try:
            self.api.post("/api/v1/server/stop", timeout_s=10)
            self.master.wait(timeout=20)
        except Exception:
            self.master.kill()
            self.master.wait()
        self.master = None

    def add_virtual(self, gpus: int, vram_gib: int = 24) -> None:
        node = {
            "name": "bench",
            "gpus": gpus,
            "vram_mib": vram_gib * 1024,
            "gpu_type": "Virtual GPU",
            "virtual": True,
        }
        self.api.post("/api/v1/nodes", node)

    def submit(self, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        body = {"tasks": tasks, "environment": TASK_ENVIRONMENT, "workdir": str(self.home / "work")}
        return [task["id"] for task in self.api.post("/api/v1/tasks", body, timeout_s=120)["tasks"]]

    def wait(self, ids: Sequence[int], limit_s: float = 300) -> None:
        """Until all are completed; a task that ended otherwise ends the benchmark."""
        deadline = time.monotonic() + limit_s
        while True:
            answer = self.api.post("/api/v1/wait", {"ids": ids, "timeout_s": 30, "for": "all"}, timeout_s=60)
            if answer["done"]:
                break
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"not finished within {limit_s:.0f} s")
        wrong = [task for task in answer["tasks"] if task["state"] != "completed"]
        if wrong:
            task = wrong[0]
            raise BenchmarkFailed(
                f"{len(wrong)} tasks did not complete; task {task['id']}: {task['state']}, {task['reason']}"
            )

    def command(self, *words: str) -> float:
        """Runs one lab-gpu command of this home to its end, as a shell would; the seconds it took."""
        began = time.monotonic()
        done = subprocess.run(
            [LAB_GPU, *words], env=self.environ, capture_output=True, text=True, cwd=self.home / "work"
        )
        if done.returncode:
            raise BenchmarkFailed(f"lab-gpu {' '.join(words)}: {done.stderr.strip()}")
        return time.monotonic() - began


@contextmanager
def stand(parent: str = "/tmp") -> Iterator[Stand]:
    home = Path(tempfile.mkdtemp(prefix="lgb-", dir=parent))
    built = Stand(home)
    try:
        yield built
    finally:
        (home / "over").touch()  # gates end by themselves when they see it
        built.stop()
        end_strays(home)
        shutil.rmtree(home, ignore_errors=True)


def gate_command(until: Path, over: Path) -> str:
    """A task that holds its GPU until a file appears, and never outlives its stand."""
    return f"until [ -e {until} ] || [ -e {over} ]; do sleep 0.02; done"


def end_strays(home: Path) -> None:
    """Ends what an aborted benchmark left: processes whose environment names this very home."""
    mark = f"LAB_GPU_CLAIMS_DIR={home}".encode()
    deadline = time.monotonic() + 5
    while left := [
        pid for pid in numbers(os.listdir("/proc")) if mark in environ_of(pid) or works_in(pid, home)
    ]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def works_in(pid: int, home: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").startswith(str(home))
    except OSError:
        return False


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def numbers(names: Sequence[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_master_process(pid: int) -> bool:
    try:
        return b"lab_gpu.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def master_processes(loop_pid: int) -> list[int]:
    """The loop and the doors; tasks, which are the loop's children too, do not count."""
    return [loop_pid, *(pid for pid in children_of(loop_pid) if is_master_process(pid))]


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = 20) -> float:
    """The seconds until it held."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > limit_s:
            raise BenchmarkFailed(f"waited {limit_s:.0f} s in vain: {what}")
        time.sleep(WAIT_POLL_S)
    return time.monotonic() - began

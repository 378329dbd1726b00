"""Real masters for tests: started as a person's would be, in a home of their own, ended by their pid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab_gpu.client.transport import Api, find_master
from tests.support.waiting import PATIENCE_S, wait_until


class Master:
    """One home and, most of the time, one master in it."""

    def __init__(self, home: str, environ: dict[str, str]) -> None:
        self.home = home
        self.environ = environ
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    def start(self, *arguments: str, module: str = "lab_gpu.daemon", **environ: str) -> dict[str, Any]:
        """Answers its ready line, or the line that says why it could not start."""
        log = open(f"{self.home}.log", "ab")
        command = [sys.executable, "-m", module, "--home", self.home, *(arguments or ("--no-tcp",))]
        self.process = subprocess.Popen(
            command, env=self.environ | environ, stdout=subprocess.PIPE, stderr=log, cwd=_tests_root()
        )
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.process.stdout.close()
        self.ready = json.loads(line) if line else {}
        return self.ready

    @property
    def api(self) -> Api:
        return find_master(f"unix:{self.ready['socket']}", self.environ)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=10)

    def log(self) -> str:
        with open(f"{self.home}.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    # --- what tests ask for all the time

    def add_gpus(self, count: int = 2, vram_gb: int = 24, name: str = "node-1") -> None:
        node = {"name": name, "gpus": count, "vram_mib": vram_gb * 1024, "virtual": True}
        self.api.post("/api/v1/nodes", node)

    def submit(self, command: str, **fields: Any) -> int:
        answer = self.api.post("/api/v1/tasks", self.body([{"command": command} | fields]))
        return int(answer["tasks"][0]["id"])

    def submit_many(self, tasks: list[dict[str, Any]]) -> list[int]:
        return [task["id"] for task in self.api.post("/api/v1/tasks", self.body(tasks))["tasks"]]

    def body(self, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        return {"tasks": tasks, "environment": {"PATH": os.environ["PATH"]}, "workdir": self.home}

    def task(self, ident: int) -> dict[str, Any]:
        return self.api.get(f"/api/v1/tasks/{ident}")

    def wait(self, *ids: int, patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            answer = self.api.post("/api/v1/wait", {"ids": list(ids), "timeout_s": 5})
            if answer["done"]:
                return list(answer["tasks"])
        left = [task for task in answer["tasks"] if task["state"] in ("queued", "running")]
        raise AssertionError(
            f"{len(left)} of {len(ids)} tasks did not end within {patience_s:.0f} s: {left[:3]}"
        )

    def wait_state(self, ident: int, state: str) -> dict[str, Any]:
        return wait_until(lambda: (t := self.task(ident))["state"] == state and t, f"task {ident} {state}")


def _tests_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@contextmanager
def a_home(**environ: str) -> Iterator[Master]:
    """A home with no master yet. Whatever was started in it is gone afterwards, tasks too."""
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    home = f"{folder}/home"
    full = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAB_GPU_")},
        "LAB_GPU_HOME": home,
        "LAB_GPU_CLAIMS_DIR": f"{folder}/claims",
        "LAB_GPU_NO_NVML": "1",
        "LAB_GPU_AUTOSTART": "0",
        "XDG_CONFIG_HOME": f"{folder}/config",
        **environ,
    }
    master = Master(home, full)
    try:
        yield master
    finally:
        master.kill()
        end_leftovers(home)
        shutil.rmtree(folder, ignore_errors=True)


def end_leftovers(home: str) -> None:
    """Processes of tasks of this home that a test left running, by the home in their command line."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                arguments = file.read()
        except OSError:
            continue
        if home.encode() in arguments and int(pid) != os.getpid():
            try:
                os.killpg(int(pid), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


@contextmanager
def a_master(*arguments: str, gpus: int = 2, **environ: str) -> Iterator[Master]:
    with a_home(**environ) as master:
        ready = master.start(*arguments)
        assert ready.get("ready"), ready
        if gpus:
            master.add_gpus(gpus)
        yield master

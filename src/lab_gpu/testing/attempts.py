"""Scenes with real attempts: a home of their own, orders with few words, waits for conditions, nothing left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lab_gpu.core.attempts import Armed, GpuLine, LaunchOrder
from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import ProcessName
from lab_gpu.engines import proc
from lab_gpu.engines.local import LocalEngine

T = TypeVar("T")
NO_GPUS = GpuLine("", "")
PATIENCE_S = 20.0


def wait_for(what: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The first true answer."""
    until = time.monotonic() + patience_s
    while not (answer := what()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {patience_s:g} s in vain")
        time.sleep(0.002)
    return answer


class AttemptScene:
    """`environment` is what orders are given where a test names none: as little as a shell needs."""

    def __init__(self, engine: LocalEngine, place: str = "/tmp") -> None:
        self.engine = engine
        self.home = tempfile.mkdtemp(prefix="lg-", dir=place)
        self.environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": self.home}
        self.armed: list[Armed] = []
        self._started: set[ProcessName] = set()
        self._count = 0

    def order(self, command: str = "true", **changes: Any) -> LaunchOrder:
        self._count += 1
        number = self._count
        fields: dict[str, Any] = {
            "task": TaskId(number),
            "number": 1,
            "uni_id": f"{number}-1-{secrets.token_hex(6)}",
            "owner": "ada",
            "uid": os.getuid(),
            "directory": f"{self.home}/tasks/task_{number}/1",
            "log_path": f"{self.home}/logs/{number}.log",
            "command": command,
            "workdir": self.home,
            "environment": self.environment,
        }
        return LaunchOrder(**{**fields, **changes})

    def arm(self, command: str = "true", **changes: Any) -> Armed:
        armed = self.engine.arm(self.order(command, **changes))
        self.armed.append(armed)
        return armed

    def go(self, armed: Armed, line: GpuLine = NO_GPUS) -> Armed:
        self._started.add(armed.process)
        self.engine.start(armed, line)
        return armed

    def start(self, command: str, **changes: Any) -> Armed:
        return self.go(self.arm(command, **changes))

    def end(self, armed: Armed) -> int | None:
        """Waits for run.sh, reaps it, and tells the code it wrote."""
        wait_for(lambda: not self.engine.alive(armed.process))
        self.engine.reap(armed.process)
        record = self.engine.exit_record(armed.order.directory)
        return record.code if record else None

    def run(self, command: str, line: GpuLine = NO_GPUS, **changes: Any) -> tuple[int | None, str]:
        """Exit code and log of an attempt from its beginning to its end."""
        armed = self.arm(command, **changes)
        self.go(armed, line)
        return self.end(armed), self.log(armed)

    def log(self, armed: Armed) -> str:
        with open(armed.order.log_path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()

    def tree(self, armed: Armed) -> tuple[ProcessName, ...]:
        return self.engine.tree(armed.order.uni_id, armed.process, armed.process.pid)

    def programs(self, armed: Armed) -> list[str]:
        """Names of what runs in it."""
        lines = (proc.command_line(process.pid) for process in self.tree(armed))
        return [os.path.basename(line[0]) for line in lines if line]

    def close(self) -> None:
        for armed in self.armed:
            if armed.process not in self._started:
                self.engine.revoke(armed)
                continue
            self.engine.kill(armed.order.uni_id, armed.process, armed.process.pid)
            self.engine.send(armed.process, 9)
            wait_for(lambda armed=armed: not self.tree(armed))  # type: ignore[misc]
            wait_for(lambda armed=armed: not self.engine.alive(armed.process))  # type: ignore[misc]
            self.engine.reap(armed.process)
        shutil.rmtree(self.home, ignore_errors=True)

"""What the hand itself costs: arm, line to `begun`, end to record, and the processor time of a whole attempt.

Baselines: one bash that runs another one, and the plain making of an attempt's files (ext4 is slow at it for
minutes after many were deleted).
"""

from __future__ import annotations

import os
import resource
import select
import subprocess
import time
from collections.abc import Callable

from figures import Figure, main, median, p99
from lab_gpu.core.attempts import Armed
from lab_gpu.engines.local import LocalEngine
from lab_gpu.testing.attempts import NO_GPUS, AttemptScene


def milliseconds(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - began)


def processor_ms() -> tuple[float, float]:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1e3 * (own.ru_utime + own.ru_stime), 1e3 * (children.ru_utime + children.ru_stime)


def waiting(scene: AttemptScene, armed: Armed) -> None:
    """Until its shell sleeps on the pipe, as it does when it was armed ahead of time."""
    while True:
        names = scene.tree(armed)
        if names and open(f"/proc/{names[-1].pid}/wchan").read() in ("pipe_read", "anon_pipe_read"):
            return
        time.sleep(0.0005)


def gone(armed: Armed) -> None:
    fd = os.pidfd_open(armed.process.pid)
    watched = select.poll()
    watched.register(fd, select.POLLIN)
    watched.poll()
    os.close(fd)


class Attempts:
    """Figures of each attempt, in milliseconds."""

    def __init__(self, scene: AttemptScene) -> None:
        self.scene, self.engine = scene, scene.engine
        self.arm: list[float] = []
        self.begin: list[float] = []
        self.start_to_seen: list[float] = []
        self.settle: list[float] = []

    def one(self) -> None:
        order = self.scene.order("true")
        began = time.perf_counter()
        armed = self.engine.arm(order)
        self.arm.append(1e3 * (time.perf_counter() - began))
        waiting(self.scene, armed)
        told = time.time()
        began = time.perf_counter()
        self.engine.start(armed, NO_GPUS)
        gone(armed)
        self.start_to_seen.append(1e3 * (time.perf_counter() - began))
        self.settle.append(milliseconds(lambda: self._settle(armed)))
        begun = self.engine.begun(order.directory)
        assert begun is not None
        self.begin.append(1e3 * (begun.at - told))

    def _settle(self, armed: Armed) -> None:
        self.engine.reap(armed.process)
        record = self.engine.exit_record(armed.order.directory)
        assert record is not None and record.code == 0
        if self.engine.strays(()) is None:
            self.scene.tree(armed)


def throughput(scene: AttemptScene, count: int) -> tuple[float, float, float]:
    """Attempts one after the other, nothing ahead of time: (per second, own CPU ms, children's CPU ms) of each."""
    own, children = processor_ms()
    began = time.perf_counter()
    for _ in range(count):
        armed = scene.engine.arm(scene.order("true"))
        scene.engine.start(armed, NO_GPUS)
        gone(armed)
        scene.engine.reap(armed.process)
        assert scene.engine.exit_record(armed.order.directory) is not None
    took = time.perf_counter() - began
    own_after, children_after = processor_ms()
    return count / took, (own_after - own) / count, (children_after - children) / count


def two_shells_ms(count: int) -> float:
    before = processor_ms()[1]
    for _ in range(count):
        subprocess.run(["/bin/bash", "-c", "bash -c true; true"], check=True)
    return (processor_ms()[1] - before) / count


def files_ms(scene: AttemptScene, count: int) -> float:
    """The folders and files of an attempt, made by nobody in particular: what the file system asks for them."""
    before = processor_ms()[0]
    for number in range(count):
        folder = f"{scene.home}/plain/task_{number}/1"
        os.makedirs(folder)
        os.symlink("log", f"{folder}/link")
        for name in ("log", "run", "command", "report", "begun", "record"):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(b"x" * 1000)
    return (processor_ms()[0] - before) / count


def measured(count: int, place: str) -> list[Figure]:
    scene = AttemptScene(LocalEngine(), place)
    try:
        attempts = Attempts(scene)
        for _ in range(count):
            attempts.one()
        a_second, own_ms, children_ms = throughput(scene, count)
        shells_ms = two_shells_ms(count)
        made_ms = files_ms(scene, count)
    finally:
        scene.close()
    return [
        Figure("arm, median", median(attempts.arm), "ms"),
        Figure("arm, p99", p99(attempts.arm), "ms"),
        Figure("line to begun, median", median(attempts.begin), "ms"),
        Figure("line to begun, p99", p99(attempts.begin), "ms"),
        Figure("line to run.sh seen gone, median", median(attempts.start_to_seen), "ms"),
        Figure("reap, record, strays, median", median(attempts.settle), "ms"),
        Figure("attempts one after the other", a_second, "1/s"),
        Figure("processor of the shells, each", children_ms, "ms", shells_ms),
        Figure("processor of arm, start and end, each", own_ms + children_ms, "ms", shells_ms + made_ms),
        Figure("the same beyond what its files cost here", own_ms + children_ms - made_ms, "ms"),
    ]


if __name__ == "__main__":
    main(
        "engine",
        __doc__,
        lambda asked: measured(asked.attempts, asked.place),
        attempts=(200, "attempts"),
        place=("/tmp", "a folder of the file system to measure on"),
    )

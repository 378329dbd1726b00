"""What the eye costs: one reading of 8 stub GPUs with 200 processes, and one exchange of claims among 3 masters.

The stub library reads a text file where a driver asks the card, so the reading is our own side of it: the binding,
the look into /proc, the facts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, at_most, main, median, p99
from lab_gpu.core.claims import Claim
from lab_gpu.core.ids import GpuUuid
from lab_gpu.probe.claims import ClaimsDirectory
from lab_gpu.probe.nvml import NvmlProbe
from lab_gpu.probe.processes import read_stat

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "nvml"))
from stub import StubGpus, build, load_here

GPUS, PROCESSES, MASTERS, CLAIMS_EACH = 8, 200, 3, 8
READING_MUST_MS, EXCHANGE_MUST_US = 10.0, 300.0
MASTER = """
import sys
from lab_gpu.core.claims import Claim
from lab_gpu.probe.claims import ClaimsDirectory
from lab_gpu.probe.processes import read_stat
import os
started = read_stat(os.getpid()).started
ClaimsDirectory().publish([Claim(f"GPU-{n}", 1000, os.getpid(), started) for n in range(int(sys.argv[1]))])
print("told", flush=True)
sys.stdin.read()
"""


def measure(asked: argparse.Namespace) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="lg-", dir="/tmp") as root:
        reading = readings(Path(root), asked.rounds)
        on_disk = exchanges(Path(root), asked.rounds)
    with tempfile.TemporaryDirectory(prefix="lg-", dir="/dev/shm") as root:
        in_memory = exchanges(
            Path(root), asked.rounds
        )  # /run/lock is a tmpfs, where the directory is at home
    return [
        *reading,
        at_most("exchange of claims in memory, median", median(in_memory), "us", EXCHANGE_MUST_US),
        Figure("exchange of claims in memory, p99", p99(in_memory), "us"),
        Figure("exchange of claims on disk, median", median(on_disk), "us"),
    ]


def readings(root: Path, rounds: int) -> Sequence[Figure]:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lab-gpu-nvml-stub"
    gpus = StubGpus(root / "gpus", build(cache))
    load_here(gpus)
    for _ in range(GPUS):
        gpus.gpu(total_mib=81920)
    with sleepers(PROCESSES) as pids:
        gpus.processes([(pid, place % GPUS, 300) for place, pid in enumerate(pids)])
        probe = NvmlProbe()
        first_ms = timed(probe.read, 1)[0] * 1e3
        facts = probe.read()
        if sum(len(gpu.processes) for gpu in facts.gpus) != PROCESSES:
            raise RuntimeError("the probe did not see every process")
        again_ms = [seconds * 1e3 for seconds in timed(probe.read, rounds)]
        probe.close()
    return [
        at_most("one reading, median", median(again_ms), "ms", READING_MUST_MS),
        Figure("one reading, p99", p99(again_ms), "ms"),
        Figure("first reading (library, every process new)", first_ms, "ms"),
    ]


def exchanges(root: Path, rounds: int) -> list[float]:
    """What each took, in microseconds."""
    environ = {**os.environ, "LAB_GPU_CLAIMS_DIR": str(root / "claims")}
    claims, own = ClaimsDirectory(environ), read_stat(os.getpid())
    mine = [
        Claim(GpuUuid(f"GPU-{n}"), 1000, os.getpid(), own.started if own else 0) for n in range(CLAIMS_EACH)
    ]
    with masters(MASTERS - 1, environ):
        if len(claims.others()) != (MASTERS - 1) * CLAIMS_EACH:
            raise RuntimeError("not every claim was seen")
        taken_us = [
            seconds * 1e6 for seconds in timed(lambda: claims.exchange(mine, lambda others: True), rounds)
        ]
    claims.close()
    return taken_us


def timed(act: Callable[[], object], rounds: int) -> list[float]:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@contextmanager
def masters(count: int, environ: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-c", MASTER, str(CLAIMS_EACH)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe) for _ in range(count)]
    try:
        for process in started:
            if not process.stdout or process.stdout.readline() != b"told\n":
                raise RuntimeError("a master did not start")
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    main("sampling", __doc__ or "", measure, rounds=(300, "readings and exchanges to time"))

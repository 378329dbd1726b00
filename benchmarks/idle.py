"""What an idle master costs: memory (PSS) of all its processes, processor time and wake-ups over a while.

The baseline for memory is a Python that only sleeps. A wake-up is any context switch of any thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from figures import Figure, at_most, main
from stand import Stand, master_processes, stand

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    [line] = [
        line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")
    ]
    return int(line.split()[1]) * 1024 / 1e6


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


def wake_ups(pid: int) -> int:
    threads = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    lines = [line for status in threads for line in status.splitlines()]
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def sleeping_python_mb() -> float:
    code = "import sys, time; print(flush=True); time.sleep(600)"
    sleeper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        return pss_mb(sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.communicate()


def used_once(on: Stand) -> None:
    """A master nobody ever asked anything has loaded less than one that worked."""
    on.add_virtual(gpus=2)
    on.wait(on.submit([{"command": "true"}] * 4))
    on.api.get("/api/v1/status")


def measure(asked: argparse.Namespace) -> list[Figure]:
    with stand() as on:
        on.start()
        used_once(on)
        time.sleep(asked.settle_s)
        pids = master_processes(on.pid)
        memory = sum(map(pss_mb, pids))
        cpu, switches = sum(map(cpu_s, pids)), sum(map(wake_ups, pids))
        time.sleep(asked.seconds)
        cpu_percent = 100 * (sum(map(cpu_s, pids)) - cpu) / asked.seconds
        woken = (sum(map(wake_ups, pids)) - switches) / asked.seconds
        count = len(pids)
    return [
        at_most(f"memory of {count} processes (PSS)", memory, "MB", 100),
        Figure("a Python that only sleeps (PSS)", sleeping_python_mb(), "MB"),
        at_most("processor while idle", cpu_percent, "%", 0.3),
        at_most("wake-ups while idle", woken, "/s", 1),
    ]


if __name__ == "__main__":
    main(
        "idle",
        __doc__,
        measure,
        seconds=(20.0, "how long it is watched"),
        settle_s=(3.0, "how long it is left alone before"),
    )

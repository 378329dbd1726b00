"""`lab-gpu submit` and `lab-gpu status` from a cold shell, beside `-c pass` of the same interpreter in the same run.

With --home it asks the master that runs there (and leaves one small task behind each turn), else one of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from figures import Figure, main, median, ratio_at_most
from stand import LAB_GPU, BenchmarkFailed, stand

LIMIT = 4.0
SUBMIT = ("submit", "--mem", "1G", "--hold", "true")
# Installed programs have their bytecode; a shell that forbids writing it must not be what is measured.
NOT_COLD = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPROFILEIMPORTTIME")


def seconds_of(command: Sequence[str], environ: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    took_s = time.perf_counter() - began
    if done.returncode:
        raise BenchmarkFailed(f"{' '.join(command)}: {done.stderr.decode().strip()}")
    return took_s


def interleaved(environ: dict[str, str], turns: int) -> dict[str, list[float]]:
    """One of each, over and over: what else the machine does meets all alike."""
    environ = {name: text for name, text in environ.items() if name not in NOT_COLD}
    commands = {
        "pass": (sys.executable, "-c", "pass"),
        "submit": (LAB_GPU, *SUBMIT),
        "status": (LAB_GPU, "status"),
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        for name, command in commands.items():
            seconds = seconds_of(command, environ)
            if turn:  # the first of each fills the caches
                took[name].append(seconds)
    return took


def measure(asked: argparse.Namespace) -> list[Figure]:
    if asked.home:
        home = str(Path(asked.home).resolve())
        took = interleaved({**os.environ, "LAB_GPU_HOME": home, "LAB_GPU_AUTOSTART": "0"}, asked.turns)
    else:
        with stand() as on:
            on.start()
            on.add_virtual(gpus=2)
            took = interleaved(on.environ, asked.turns)
    bare_ms = 1000 * median(took["pass"])
    return [
        ratio_at_most(f"lab-gpu {name}, cold: median", 1000 * median(took[name]), bare_ms, "ms", LIMIT)
        for name in ("submit", "status")
    ]


if __name__ == "__main__":
    main("cold_start", __doc__, measure, turns=(30, "runs of each"), home=("", "of a running master"))

"""From `lab-gpu submit` to the task's first line on an idle queue, beyond the time the command itself took.

The baseline is the same line in a plain shell, from its start to its first line.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from figures import Figure, at_most, main, median, p99
from stand import Stand, stand, wait_until


def first_line(stamp: Path) -> str:
    return f"echo $EPOCHREALTIME > {stamp}.new; mv {stamp}.new {stamp}"


def plain_shell(folder: Path, turn: int) -> float:
    stamp = folder / f"bare-{turn}"
    began = time.time()
    subprocess.run(["bash", "-c", first_line(stamp)], check=True)
    return float(stamp.read_text()) - began


def one_submit(on: Stand, turn: int) -> tuple[float, float]:
    """Seconds from the command's end to the first line (negative: it came before), and the command's own."""
    stamp = on.home / f"stamp-{turn}"
    took_s = on.command("submit", "--mem", "1G", first_line(stamp))
    returned = time.time()
    wait_until(stamp.exists, "the task's first line")
    return float(stamp.read_text()) - returned, took_s


def measure(asked: argparse.Namespace) -> list[Figure]:
    with stand() as on:
        on.start()
        on.add_virtual(gpus=2)
        bare = [plain_shell(on.home, turn) for turn in range(asked.turns)]
        beyond, own = zip(*(one_submit(on, turn) for turn in range(asked.turns)), strict=True)
    return [
        at_most("submit returned to first line: median", 1000 * median(beyond), "ms", 40),
        at_most("submit returned to first line: p99", 1000 * p99(beyond), "ms", 40),
        Figure("the submit command itself: median", 1000 * median(own), "ms"),
        Figure("a plain shell to its first line: median", 1000 * median(bare), "ms"),
    ]


if __name__ == "__main__":
    main("submit_latency", __doc__, measure, turns=(40, "submits, one after another"))

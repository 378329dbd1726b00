"""How long a GPU idles between two tasks: one's last line to the next one's first, stamped by themselves.

One virtual GPU, tasks of 50 ms that take all of it, everything durable; beside it, in the same run, the
barest thing a person could use: a shell loop over the same lines. Then again as one named queue, with the API
asked without pause, and with 20,000 more tasks waiting.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, main, median, p99, ratio_at_most
from stand import BenchmarkFailed, Stand, gate_command, stand, wait_until

ASKER = Path(__file__).parent / "asker.py"
FRONT, TAIL_GATE, BACK = 100, 50, -100


def stamped(stamps: Path) -> str:
    return f"echo b $EPOCHREALTIME >> {stamps}; sleep 0.05; echo e $EPOCHREALTIME >> {stamps}"


def gaps_ms(stamps: Path, tasks: int) -> list[float]:
    lines = [line.split() for line in stamps.read_text().splitlines()]
    if [line[0] for line in lines] != ["b", "e"] * tasks:
        raise BenchmarkFailed(f"{tasks} tasks one after another should have left {2 * tasks} stamps in turn")
    ends, begins = lines[1:-1:2], lines[2::2]
    return [1000 * (float(begin[1]) - float(end[1])) for end, begin in zip(ends, begins, strict=True)]


def shell_loop(folder: Path, tasks: int) -> list[float]:
    stamps = folder / "bare"
    stamps.unlink(missing_ok=True)
    lines = f"{stamped(stamps)}\n" * tasks
    subprocess.run(
        ["xargs", "-d", "\\n", "-I%", "-P1", "bash", "-c", "%"], input=lines, text=True, check=True
    )
    return gaps_ms(stamps, tasks)


def shell_loop_once(tasks: int) -> list[float]:
    """Half of the baseline before and half after: the machine's mood changes."""
    with stand() as on:
        return shell_loop(on.home, tasks)


@contextmanager
def api_asked_without_pause(on: Stand, asking: bool) -> Iterator[Path]:
    counted = on.home / "asked"
    counted.write_text("0")
    if not asking:
        yield counted
        return
    asker = subprocess.Popen([sys.executable, str(ASKER), on.socket, str(counted)])
    try:
        wait_until(lambda: counted.read_text() not in ("", "0"), "the API answers")
        yield counted
    finally:
        asker.kill()
        asker.wait()


def wait_behind(on: Stand, waiting: int) -> int | None:
    """Tasks in line behind the measured ones, of ten different needs, kept there by one that holds it."""
    if not waiting:
        return None
    tail = {"command": gate_command(on.home / "over", on.home / "over"), "priority": TAIL_GATE}
    [tail_id] = on.submit([tail])
    behind = [{"command": ":", "priority": BACK, "mem_mib": 1024 * (1 + n % 10)} for n in range(waiting)]
    for first in range(0, waiting, 10_000):
        on.submit(behind[first : first + 10_000])
    return tail_id


def through_lab_gpu(tasks: int, asking: bool, waiting: int, queue: str | None) -> tuple[list[float], int]:
    """The gaps, and how often the API was asked meanwhile."""
    with stand() as on:
        stamps = on.home / "stamps"
        on.start()
        on.add_virtual(gpus=1)
        gate = {"command": gate_command(on.home / "go", on.home / "over"), "priority": FRONT + 1}
        on.submit([gate])
        wait_behind(on, waiting)
        one = {"command": stamped(stamps), "priority": FRONT, "queue": queue}
        ids = on.submit([one] * tasks)
        with api_asked_without_pause(on, asking) as counted:
            (on.home / "go").touch()
            on.wait(ids)
            asked = int(counted.read_text() or 0)
        return gaps_ms(stamps, tasks), asked


def variant(name: str, asked: argparse.Namespace, limits: tuple[float, float], **how: object) -> list[Figure]:
    bare = shell_loop_once(asked.tasks // 2)
    ours, answers = through_lab_gpu(asked.tasks, **how)  # type: ignore[arg-type]
    bare += shell_loop_once(asked.tasks // 2)
    figures = [
        ratio_at_most(f"hand-off, {name}: median", median(ours), median(bare), "ms", limits[0]),
        ratio_at_most(f"hand-off, {name}: p99", p99(ours), p99(bare), "ms", limits[1]),
    ]
    if how["asking"]:
        figures.append(Figure(f"hand-off, {name}: answers meanwhile", answers, ""))
    return figures


def measure(asked: argparse.Namespace) -> list[Figure]:
    os.sync()
    quiet = {"asking": False, "waiting": 0, "queue": None}
    return [
        *variant("quiet", asked, (3, 6), **quiet),
        *variant("one named queue", asked, (3, 6), **{**quiet, "queue": "line"}),
        *variant("API asked without pause", asked, (4, 8), **{**quiet, "asking": True}),
        *variant(f"{asked.waiting:,} waiting", asked, (4, 8), **{**quiet, "waiting": asked.waiting}),
    ]


if __name__ == "__main__":
    main(
        "handoff",
        __doc__,
        measure,
        tasks=(150, "tasks of 50 ms in each variant"),
        waiting=(20_000, "tasks that wait behind the measured ones in the last variant"),
    )

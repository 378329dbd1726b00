"""How many tasks a second go through: 1,000 times `true` on four virtual GPUs, beside xargs with four."""

from __future__ import annotations

import argparse
import subprocess
import time

from figures import Figure, at_least, main
from stand import stand


def through_xargs(tasks: int, at_once: int) -> float:
    began = time.monotonic()
    lines = "true\n" * tasks
    subprocess.run(
        ["xargs", "-d", "\\n", "-I%", f"-P{at_once}", "bash", "-c", "%"], input=lines, text=True, check=True
    )
    return tasks / (time.monotonic() - began)


def through_lab_gpu(tasks: int, gpus: int) -> float:
    with stand() as on:
        on.start()
        on.add_virtual(gpus=gpus)
        began = time.monotonic()
        on.wait(on.submit([{"command": "true"}] * tasks))
        return tasks / (time.monotonic() - began)


def measure(asked: argparse.Namespace) -> list[Figure]:
    bare = through_xargs(asked.tasks, asked.gpus)
    ours = through_lab_gpu(asked.tasks, asked.gpus)
    return [
        at_least(
            f"{asked.tasks:,} x true on {asked.gpus} GPUs, submitted to drained", ours, "tasks/s", 150, bare
        )
    ]


if __name__ == "__main__":
    main("throughput", __doc__, measure, tasks=(1000, "tasks"), gpus=(4, "virtual GPUs"))

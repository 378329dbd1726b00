"""How many tasks a second go through the queue: 1,000 times `true` on four virtual GPUs, submitted to drained.

Beside it, in the same run, `xargs -P4`, which keeps no record; and what the disk alone takes to make the folders
and files that a task has by right. A disk on which much was deleted lately makes new files ten times as slowly for
some minutes, so the queue is measured on a file system in memory too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time

from figures import Figure, at_least, main
from stand import stand

IN_MEMORY = "/dev/shm"
FILES_OF_A_TASK = 7


def through_xargs(tasks: int, at_once: int) -> float:
    began = time.monotonic()
    lines = "true\n" * tasks
    subprocess.run(
        ["xargs", "-d", "\\n", "-I%", f"-P{at_once}", "bash", "-c", "%"], input=lines, text=True, check=True
    )
    return tasks / (time.monotonic() - began)


def through_lab_gpu(tasks: int, gpus: int, parent: str) -> float:
    with stand(parent) as on:
        on.start()
        on.add_virtual(gpus=gpus)
        began = time.monotonic()
        on.wait(on.submit([{"command": "true"}] * tasks))
        return tasks / (time.monotonic() - began)


def files_alone(tasks: int, parent: str) -> float:
    """Tasks a second, if making their folders and empty files were all there is to do."""
    home = tempfile.mkdtemp(prefix="lgb-", dir=parent)
    try:
        began = time.monotonic()
        for number in range(tasks):
            folder = f"{home}/task_{number}/1"
            os.makedirs(folder)
            for name in range(FILES_OF_A_TASK):
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
        return tasks / (time.monotonic() - began)
    finally:
        shutil.rmtree(home)


def measure(asked: argparse.Namespace) -> list[Figure]:
    bare = through_xargs(asked.tasks, asked.gpus)
    places = {"in memory": IN_MEMORY, "on disk": "/tmp"} if os.path.isdir(IN_MEMORY) else {"on disk": "/tmp"}
    found = []
    for words, parent in places.items():
        ours = through_lab_gpu(asked.tasks, asked.gpus, parent)
        name = f"{asked.tasks:,} x true on {asked.gpus} GPUs, {words}"
        found.append(at_least(name, ours, "tasks/s", 150, bare))
    found.append(Figure("making their files alone, on disk", files_alone(asked.tasks, "/tmp"), "tasks/s"))
    return found


if __name__ == "__main__":
    main("throughput", __doc__, measure, tasks=(1000, "tasks"), gpus=(4, "virtual GPUs"))

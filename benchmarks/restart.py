"""How soon a killed master is back: loop ready, running task adopted, next one started, doors up.

Two GPUs: on one a task runs through the crash; the other's task ends while no master lives, so the one that
waits for it can only be started by the new master, after it has settled the end it did not see.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from figures import Figure, at_most, main, median
from stand import BenchmarkFailed, Stand, gate_command, stand, wait_until


def bare_python_s() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - began


def doors_answer(on: Stand) -> bool:
    return bool(on.api.get("/api/health")["status"] == "ok")


def begun(on: Stand, name: str) -> None:
    wait_until((on.home / name).exists, f"task {name} begins")


def crash_and_return(on: Stand, turn: int) -> tuple[float, float, float]:
    """Seconds from the start of the new master: loop ready, doors answering, waiting task's first line."""
    through, ends = f"through-{turn}", f"ends-{turn}"
    over = on.home / "over"
    mine = on.home / f"through-over-{turn}"
    first = f"touch {on.home}/{through}; {gate_command(mine, over)}"
    second = (
        f"touch {on.home}/{ends}; {gate_command(on.home / f'end-{turn}', over)}; touch {on.home}/ended-{turn}"
    )
    [through_id, _] = on.submit([{"command": first}, {"command": second}])
    begun(on, through)
    begun(on, ends)
    stamp = on.home / f"next-{turn}"
    [next_id] = on.submit([{"command": f"echo $EPOCHREALTIME > {stamp}.new; mv {stamp}.new {stamp}"}])
    on.kill_master()
    (on.home / f"end-{turn}").touch()
    wait_until((on.home / f"ended-{turn}").exists, "the second task ends")
    began = time.time()
    loop_s = on.start()
    doors_answer(on)
    doors_s = time.time() - began
    on.wait([next_id])
    next_s = float(stamp.read_text()) - began
    if on.api.get(f"/api/v1/tasks/{through_id}")["state"] != "running":
        raise BenchmarkFailed("the task that ran through the crash is not running any more")
    mine.touch()
    on.wait([through_id])
    return loop_s, doors_s, next_s


def measure(asked: argparse.Namespace) -> list[Figure]:
    bare = median([bare_python_s() for _ in range(5)])
    with stand() as on:
        on.start()
        on.add_virtual(gpus=2)
        on.wait(on.submit([{"command": "true"}] * asked.finished))
        loop_s, doors_s, next_s = zip(
            *(crash_and_return(on, turn) for turn in range(asked.turns)), strict=True
        )
    return [
        at_most("killed master started to loop ready: median", median(loop_s), "s", 0.3),
        at_most("started to waiting task's first line: median", median(next_s), "s", 0.3),
        at_most("started to doors answering: median", median(doors_s), "s", 1.0),
        Figure("the interpreter alone (-c pass)", bare, "s"),
    ]


if __name__ == "__main__":
    main("restart", __doc__, measure, turns=(5, "crashes"), finished=(100, "tasks that ended before"))

"""Waiting for tasks: through restarts of the master, until Ctrl-C, and with the task's own exit code."""

from __future__ import annotations

from lab_gpu.cli import frame
from lab_gpu.cli.ids import ranges
from lab_gpu.core.errors import LabGpuTimeoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from lab_gpu.client.transport import Api

    Json = dict[str, Any]
LONG_POLL_S = 30.0
INTERRUPTED = 130
FINAL = frozenset(("completed", "failed", "cancelled"))


def wait_for(api: Api, ids: list[int], any_one: bool = False, timeout_s: float | None = None) -> list[Json]:
    """The tasks once all (or one) of them have ended."""
    from time import monotonic

    give_up_at = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left_s = LONG_POLL_S if give_up_at is None else max(min(give_up_at - monotonic(), LONG_POLL_S), 0)
        body = {"ids": ids, "timeout_s": left_s, "for": "any" if any_one else "all"}
        answer = frame.patiently(lambda: api.post("/api/v1/wait", body, timeout_s=LONG_POLL_S + 15))  # noqa: B023
        tasks: list[Json] = answer["tasks"]
        if answer["done"]:
            return tasks
        if give_up_at is not None and monotonic() >= give_up_at:
            raise LabGpuTimeoutError(_too_long(tasks))


def _too_long(tasks: list[Json]) -> str:
    open_ids = [task["id"] for task in tasks if task["state"] not in FINAL]
    noun = "task" if len(open_ids) == 1 else "tasks"
    words = ranges(open_ids)
    return f"cannot wait longer: {noun} {words} had not ended in time; lab-gpu wait {words} goes on"


def exit_code(task: Json) -> int:
    """What a shell would say of it: its own code, 128+N for a signal, 1 for a failure without a code."""
    if task["state"] == "completed":
        return 0
    code = task.get("exit_code")
    if not code:
        return 1
    return 128 - int(code) if code < 0 else min(int(code), 255)


def worst_code(tasks: list[Json]) -> int:
    return max((exit_code(task) for task in tasks if task["state"] in FINAL), default=0)


def epitaph(task: Json) -> str:
    """How it ended, in one line."""
    words = f"task {task['id']} {task['state']}"
    code, reason = task.get("exit_code"), str(task.get("reason") or "")
    if task["state"] != "completed" and code and f"exit code {code}" not in reason:
        words += f" with exit code {code}"
    return f"{words}: {reason}" if reason else words


def summary(tasks: list[Json]) -> list[str]:
    """One task: its end. Several: how many ended how, and each that did not complete."""
    if len(tasks) == 1:
        return [epitaph(tasks[0])]
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task["state"]] = counts.get(task["state"], 0) + 1
    words = ", ".join(f"{count} {state}" for state, count in counts.items())
    bad = [task for task in tasks if task["state"] in ("failed", "cancelled")]
    return [f"{len(tasks)} tasks: {words}", *(f"  {epitaph(task)}" for task in bad)]


def tell(args: argparse.Namespace, ended: list[Json], document: object) -> None:
    """The end as the flags want it: `document` as JSON, the summary, or nothing."""
    if args.json:
        frame.print_json(document)
    elif not args.quiet:
        for line in summary(ended):
            frame.out(line)


def detached(ids: list[int]) -> str:
    words = ranges(ids)
    noun, verb = ("task", "goes") if len(ids) == 1 else ("tasks", "go")
    return f"\n{noun} {words} {verb} on; lab-gpu wait {words} waits again, lab-gpu cancel {words} stops"


def wait_and_tell(
    api: Api, ids: list[int], any_one: bool = False, timeout_s: float | None = None
) -> list[Json] | None:
    """None: the person left by Ctrl-C; the tasks go on, and that has been said."""
    try:
        return wait_for(api, ids, any_one, timeout_s)
    except KeyboardInterrupt:
        frame.say(detached(ids))
        return None

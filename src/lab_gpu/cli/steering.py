"""One wish for several tasks, and what became of it for each: cancel, retry, hold, release, top."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import frame

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

Json = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def act(args: argparse.Namespace, action: str, done: str, **more: Any) -> int:
    """Asks for `action` on the tasks named; `done` says what then holds of each."""
    _, answer = _asked(args, action, more)
    return report(args, answer, done)


def act_and_wait(args: argparse.Namespace, action: str, done: str, **more: Any) -> int:
    """The same, and back only when those tasks have ended."""
    from lab_gpu.cli import waiting

    api, answer = _asked(args, action, more)
    ids = [task["id"] for task in answer["tasks"]]
    ended = waiting.wait_and_tell(api, ids) if ids else []
    if ended is None:
        return waiting.INTERRUPTED
    return report(args, {**answer, "tasks": ended}, done)


def _asked(args: argparse.Namespace, action: str, more: Json) -> tuple[Api, Json]:
    api = frame.master(args)
    body = {"action": action, "ids": frame.task_ids(args.ids, api), **more}
    return api, api.post("/api/v1/tasks/actions", body)


def report(args: argparse.Namespace, answer: Json, done: str) -> int:
    """Per task what happened; 1 where something did not."""
    if args.json:
        frame.print_json(answer)
    else:
        for task in answer["tasks"]:
            frame.out(f"task {task['id']} {words(task, done)}")
    for error in answer["errors"]:
        frame.say(f"lab-gpu: {error['text']}")
    return 1 if answer["errors"] else 0


def words(task: Json, done: str) -> str:
    """What was wished for, unless the task shows that something else came first."""
    if done == "cancelled" and task["state"] == "running":
        return "is being stopped"
    if done == "cancelled" and task["state"] != "cancelled":
        return f"{task['state']} before it could be cancelled"
    reason = f": {task['reason']}" if done == "queued again" and task.get("reason") else ""
    return f"{done}{reason}"

"""`lab-gpu server preempt`: stop a running task step by step and put it behind all that wait."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame
from lab_gpu.core.errors import BY_SLUG
from lab_gpu.core.units import parse_duration_s

SUMMARY = "stop a running task step by step and queue it again behind the others"
EXAMPLES = (
    "lab-gpu server preempt --task-id 1",
    "lab-gpu server preempt --task-id 1 --soft-timeout 300 --term-timeout 30 --wait",
    "lab-gpu server preempt --task-id 4-6 --then hold",
)
LONG_POLL_S = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument(
            "--task-id", required=True, nargs="+", metavar="ID", help="a task, or ranges: 4-6"
        ),
        "task_ids",
    )
    parser.add_argument(
        "--soft-timeout", default="300", metavar="TIME", help="from SIGUSR1 to SIGTERM (default 300 seconds)"
    )
    parser.add_argument(
        "--term-timeout", default="30", metavar="TIME", help="from SIGTERM to SIGKILL (default 30 seconds)"
    )
    parser.add_argument(
        "--then",
        choices=("queue", "hold", "cancel"),
        default="queue",
        help="what becomes of the task (default queue)",
    )
    parser.add_argument("--wait", action="store_true", help="return when the task has stopped")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    body = {
        "action": "preempt",
        "ids": frame.task_ids(args.task_id, api),
        "soft_timeout_s": parse_duration_s(args.soft_timeout),
        "term_timeout_s": parse_duration_s(args.term_timeout),
        "then": args.then,
    }
    newest = api.get("/api/v1/events")["last"] if args.wait else 0
    answer = api.post("/api/v1/tasks/actions", body)
    attempts = {task["id"]: task["attempt"] for task in answer["tasks"]}
    if args.wait:
        answer["tasks"] = [stopped(api, task, newest) for task in answer["tasks"]]
    return report(answer, attempts, args)


def stopped(api: Any, task: dict[str, Any], newest: int) -> dict[str, Any]:
    """The task once the attempt that was asked to stop has ended: woken by its events, never by a clock."""
    attempt = task["attempt"]
    while task["state"] == "running" and task["attempt"] == attempt:
        query = {"task": task["id"], "after": newest, "timeout_s": LONG_POLL_S}
        newest = api.get("/api/v1/events", query=query, timeout_s=LONG_POLL_S + 10)["last"]
        task = api.get(f"/api/v1/tasks/{task['id']}")
    return task


def report(answer: dict[str, Any], attempts: dict[int, int], args: argparse.Namespace) -> int:
    if args.json:
        frame.print_json(answer)
    else:
        for task in answer["tasks"]:
            frame.out(words(task, attempts[task["id"]] if args.wait else None))
    for error in answer["errors"]:
        frame.say(f"lab-gpu: {error['text']}")
    codes = [
        BY_SLUG[error["slug"]].exit_code if error["slug"] in BY_SLUG else 1 for error in answer["errors"]
    ]
    return max(codes, default=0)


def words(task: dict[str, Any], stopped: int | None) -> str:
    if stopped is not None:
        return f"attempt {stopped} of task {task['id']} has stopped; the task is {task['state']}"
    return f"task {task['id']} is asked to stop; `lab-gpu show {task['id']}` says how far it is"

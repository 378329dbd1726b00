"""`lab-gpu list`: tasks, newest first, by whatever one remembers of them."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame, screen
from lab_gpu.cli.ids import my_name, ranges
from lab_gpu.cli.tasks_table import task_lines
from lab_gpu.core.errors import Refused
from lab_gpu.core.nearest import nearest

SUMMARY = "tasks, by state, owner, queue, name, batch or words of their command"
EXAMPLES = (
    "lab-gpu list --state failed",
    "lab-gpu list 3-7 9",
    "lab-gpu list --mine --name sweep --limit 20",
    "lab-gpu list --all --json | jq '.tasks[].id'",
)
# The words that other systems and the first users' own tools say for the states.
STATE_WORDS = {
    "queued": "queued", "pending": "queued", "waiting": "queued", "排队中": "queued",
    "running": "running", "执行中": "running",
    "completed": "completed", "done": "completed", "normal_exit": "completed", "已完成": "completed",
    "failed": "failed", "abnormal_exit": "failed", "失败": "failed",
    "cancelled": "cancelled", "canceled": "cancelled", "已中断": "cancelled",
    "open": "queued,running", "ended": "completed,failed,cancelled",
}  # fmt: skip
USUAL_LIMIT, LARGEST_PAGE = 50, 500
Json = dict[str, Any]


def read_states(text: str) -> str:
    states: dict[str, None] = {}
    for word in text.replace(",", " ").split():
        known = STATE_WORDS.get(word.lower())
        if known is None:
            close = (
                nearest(word.lower(), STATE_WORDS) or "one of queued, running, completed, failed, cancelled"
            )
            raise Refused(f"cannot list state '{word}': there is no such state; did you mean {close}?")
        states.update(dict.fromkeys(known.split(",")))
    if not states:
        raise Refused("cannot list state '': none is named; write it like queued,running")
    return ",".join(states)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser, nargs="*")
    words = "queued, running, completed, failed, cancelled; open, ended"
    parser.add_argument("--state", type=read_states, metavar="STATE,…", help=words)
    parser.add_argument("-u", "--owner", metavar="USER", help="whose")
    parser.add_argument("--mine", action="store_true", help="my own")
    queue = parser.add_argument("-p", "--queue", metavar="NAME", help="of this queue")
    frame.completes(queue, "queues")
    parser.add_argument("-J", "--name", metavar="NAME", help="of this name")
    parser.add_argument("--text", metavar="WORDS", help="whose name or command holds these words")
    parser.add_argument(
        "--batch", type=frame.whole_number("--batch", 1), metavar="N", help="of one submit-batch or array"
    )
    limit = frame.whole_number("--limit", 1)
    parser.add_argument("-n", "--limit", type=limit, metavar="N", help=f"at most N ({USUAL_LIMIT})")
    parser.add_argument("--all", action="store_true", help="without a limit")
    parser.add_argument("--order", choices=("new", "old"), default="new", help="which first (new)")
    frame.add_watch_flag(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    ids = frame.task_ids(args.ids, api) if args.ids else []
    query = {
        "ids": ranges(sorted(ids)) or None,
        "state": args.state,
        "owner": my_name() if args.mine else args.owner,
        "queue": args.queue,
        "name": args.name,
        "text": args.text,
        "batch": args.batch,
        "order": args.order,
    }
    most = None if args.all else args.limit or max(len(ids), USUAL_LIMIT)
    return frame.watch(args, api, lambda: fetch(api, query, most), draw)


def fetch(api: Any, query: Json, most: int | None) -> Json:
    """Page by page until there are enough."""
    tasks: list[Json] = []
    cursor = None
    while True:
        room = LARGEST_PAGE if most is None else min(most - len(tasks), LARGEST_PAGE)
        answer = api.get("/api/v1/tasks", {**query, "limit": room, "cursor": cursor})
        tasks += answer["tasks"]
        cursor = answer.get("next")
        if not cursor or (most is not None and len(tasks) >= most):
            return {"tasks": tasks, "next": cursor}


def draw(document: Json) -> list[str]:
    if not document["tasks"]:
        return ["no task is like that"]
    lines = task_lines(document["tasks"], screen.width())
    more = [screen.colour("there are more: --all shows them", "dim")] if document.get("next") else []
    return lines + more

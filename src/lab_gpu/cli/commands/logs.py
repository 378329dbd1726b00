"""`lab-gpu logs`: what a task printed: all attempts in order, one of them, the last lines, or as it grows."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lab_gpu.cli import frame
from lab_gpu.cli.ids import ranges
from lab_gpu.core.errors import NotFound, Refused

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

SUMMARY = "what a task printed, across its attempts"
EXAMPLES = (
    "lab-gpu logs 12",
    "lab-gpu logs -f @                        # follow my last task to its end",
    "lab-gpu logs 12 -n 50 --attempt last",
    'tail -c 1000 "$(lab-gpu logs --path 12)"',
)
PAGE = 500


def read_attempt(word: str) -> str | int:
    if word in ("all", "last"):
        return word
    return frame.whole_number("--attempt", 1)(word)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    lines = frame.whole_number("-n", 0)
    parser.add_argument("-n", "--lines", type=lines, metavar="N", help="only the last N lines")
    words = "one attempt: its number, or last (all of them)"
    parser.add_argument("--attempt", type=read_attempt, default="all", metavar="N", help=words)
    parser.add_argument(
        "--raw", action="store_true", help="the bytes as they are: progress bars, no headings"
    )
    parser.add_argument("--path", action="store_true", help="print where the log lies, not the log")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    ids = frame.task_ids(args.ids, api)
    if args.path:
        return paths(args, api, ids)
    if args.follow and len(ids) > 1:
        raise Refused(f"cannot follow {len(ids)} logs at once: they would mix; name one task")
    if args.json:
        return documents(args, api, ids)
    for number in ids:
        if len(ids) > 1:
            frame.out(f"==> task {number} <==")
        sys.stdout.flush()
        print_log(args, api, number)
    return 0


def print_log(args: argparse.Namespace, api: Api, number: int) -> None:
    from lab_gpu.client.logs import show_log

    task = api.get(f"/api/v1/tasks/{number}")
    if not task["attempts"]:
        reason = f": {task['reason']}" if task.get("reason") else ""
        frame.say(f"lab-gpu: task {number} is {task['state']} and has not begun{reason}")
    tty = sys.stdout.isatty()
    try:
        show_log(api, number, args.attempt, args.lines, args.follow, raw=args.raw, tty=tty)
    except KeyboardInterrupt:
        if not args.follow:
            raise
        frame.say("")


def paths(args: argparse.Namespace, api: Api, ids: list[int]) -> int:
    """The log file of each task's last attempt, or of the one named, for tools that read files."""
    known = one_attempt(api, ids, args.attempt) if isinstance(args.attempt, int) else last_attempts(api, ids)
    for number in ids:
        if not known.get(number):
            frame.say(f"lab-gpu: task {number} has no such log: that attempt has not started")
    if args.json:
        frame.print_json({"paths": {str(number): known.get(number) for number in ids}})
    else:
        for path in (known[number] for number in ids if known.get(number)):
            frame.out(str(path))
    return 0 if any(known.values()) else NotFound.exit_code


def last_attempts(api: Api, ids: list[int]) -> dict[int, str | None]:
    """A page of tasks at a time: files of thousands are asked about too."""
    found: dict[int, str | None] = {}
    for start in range(0, len(ids), PAGE):
        page = ranges(sorted(ids[start : start + PAGE]))
        tasks = api.get("/api/v1/tasks", {"ids": page, "limit": PAGE})["tasks"]
        found.update({task["id"]: task.get("log_path") for task in tasks})
    return found


def one_attempt(api: Api, ids: list[int], wanted: int) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    for number in ids:
        attempts = api.get(f"/api/v1/tasks/{number}")["attempts"]
        found[number] = next((each["log_path"] for each in attempts if each["number"] == wanted), None)
    return found


def documents(args: argparse.Namespace, api: Api, ids: list[int]) -> int:
    """One JSON document, or while following one line of JSON for each line of the log."""
    from lab_gpu.client.logs import log_lines

    if args.follow:
        for line in log_lines(api, ids[0], args.attempt, follow=True):
            frame.print_json({"id": ids[0], "text": line.rstrip("\n")}, lines=True)
            sys.stdout.flush()
        return 0
    logs = []
    for number in ids:
        lines = list(log_lines(api, number, args.attempt))
        kept = lines if args.lines is None else lines[len(lines) - min(args.lines, len(lines)) :]
        logs.append({"id": number, "text": "".join(kept)})
    frame.print_json({"logs": logs})
    return 0

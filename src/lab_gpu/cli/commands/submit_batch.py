"""`lab-gpu submit-batch`: a file of tasks, all of them in one transaction or none."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import frame, submission
from lab_gpu.cli.batch_file import read_tasks, with_lines
from lab_gpu.cli.ids import ranges
from lab_gpu.cli.task_flags import add_task_flags, given, layered
from lab_gpu.core.errors import Refused

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

SUMMARY = "put a file of tasks into the queue, all or none; flags hold for tasks that do not say otherwise"
EXAMPLES = (
    "lab-gpu submit-batch --file tasks.json",
    "lab-gpu submit-batch tasks.yaml --mem 10G --retries 2 --wait",
    """echo '{"tasks": [{"cmd": "python a.py", "mem": "10G"}]}' | lab-gpu submit-batch -""",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    words = "JSON, JSONL or YAML; - is standard input"
    frame.completes(parser.add_argument("path", nargs="?", metavar="FILE", help=words), "files")
    frame.completes(parser.add_argument("--file", metavar="FILE", help="the same"), "files")
    add_task_flags(parser, submission.field_names("name", "after", "array"))
    parser.add_argument("--dry-run", action="store_true", help="only say where each would start, or why not")
    parser.add_argument(
        "--wait", action="store_true", help="wait for all of them; exit 1 if one did not complete"
    )
    parser.add_argument(
        "-q", "--quiet", "--parsable", action="store_true", help="print the ids and nothing else"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    path = _path(args)
    read, lines = read_tasks(path)
    defaults = layered([given(args), *submission.default_layers()])
    bodies = [layered([body, defaults]) for body in read] if defaults else read
    for body in bodies:
        submission.readable(body["command"])
    api = frame.master(args, start=True)
    try:
        if args.dry_run:
            return submission.preview(args, api, bodies)
        answer = submission.add(api, bodies)
    except Refused as problem:
        sizes = [_size(body) for body in bodies]
        raise with_lines(problem, list(zip(lines, sizes, strict=True)), path) from None
    if not (args.json and args.wait):
        _print(args, answer["tasks"])
    return _wait(args, api, answer["tasks"]) if args.wait else _tell_failed(answer["tasks"])


def _size(body: dict[str, Any]) -> int:
    """How many tasks it becomes."""
    array = body.get("array")
    return len(range(array["first"], array["last"] + 1, array["step"])) if array else 1


def _tell_failed(tasks: list[dict[str, Any]]) -> int:
    """1 where one can never start: what it waits for had failed before."""
    failed = [task for task in tasks if task["state"] == "failed"]
    if failed:
        noun = "task" if len(failed) == 1 else "tasks"
        why = failed[0].get("reason") or "what they wait for has failed"
        frame.say(f"lab-gpu: {noun} {ranges(task['id'] for task in failed)} failed already: {why}")
    return int(bool(failed))


def _path(args: argparse.Namespace) -> str:
    if args.path and args.file:
        raise Refused(
            f"cannot read both {args.path} and {args.file}: one file is taken; submit them one by one"
        )
    if not (args.path or args.file):
        raise Refused("cannot submit a batch: no file is named; write lab-gpu submit-batch --file tasks.json")
    return str(args.path or args.file)


def _print(args: argparse.Namespace, tasks: list[dict[str, Any]]) -> None:
    words = ranges(task["id"] for task in tasks)
    if args.json:
        frame.print_json(tasks)
    elif args.quiet:
        frame.out(words)
    else:
        noun = "task" if len(tasks) == 1 else "tasks"
        frame.out(f"{noun} {words} submitted ({len(tasks)}); lab-gpu list {words}")


def _wait(args: argparse.Namespace, api: Api, tasks: list[dict[str, Any]]) -> int:
    from lab_gpu.cli import waiting

    sys.stdout.flush()
    ended = waiting.wait_and_tell(api, [task["id"] for task in tasks])
    if ended is None:
        return waiting.INTERRUPTED
    waiting.tell(args, ended, ended)
    return 0 if all(task["state"] == "completed" for task in ended) else 1

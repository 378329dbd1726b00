"""`lab-gpu submit`: one task, or an array of them."""

from __future__ import annotations

import argparse
import sys

from lab_gpu.cli import frame, submission
from lab_gpu.cli.ids import ranges
from lab_gpu.cli.task_flags import add_task_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lab_gpu.client.transport import Api

SUMMARY = "put one command, or an array of them, into the queue"
EXAMPLES = (
    'lab-gpu submit --mem 10G --priority high "python train.py"',
    "lab-gpu submit --gpus 2 --gpu-type A100 -- python train.py --lr 0.1",
    "lab-gpu submit train.sh                 # flags may stand in it: #LAB --mem 10G",
    "lab-gpu submit train.sh 0.1 sgd         # words after a script are its arguments",
    "lab-gpu submit --array 0-9%4 'python train.py --seed \"$LAB_GPU_ARRAY_INDEX\"'",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_command(parser)
    add_task_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say where it would start, or why not")
    parser.add_argument("--wait", action="store_true", help="wait for its end, and end with its exit code")
    parser.add_argument(
        "-q", "--quiet", "--parsable", action="store_true", help="print the id and nothing else"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    body = submission.task_of(args)
    api = frame.master(args, start=True)
    if args.dry_run:
        return submission.preview(args, api, [body])
    tasks = submission.add(api, [body])["tasks"]
    if not (args.json and args.wait):
        _print(args, api, tasks, body)
    return _wait(args, api, tasks) if args.wait else int(submission.failed_already(tasks))


def _print(args: argparse.Namespace, api: Api, tasks: list[dict[str, Any]], body: dict[str, Any]) -> None:
    if args.json:
        frame.print_json(tasks[0] if "array" not in body else tasks)
    elif args.quiet:
        frame.out(ranges(task["id"] for task in tasks))
    else:
        frame.out(submission.announce(api, tasks, body))


def _wait(args: argparse.Namespace, api: Api, tasks: list[dict[str, Any]]) -> int:
    from lab_gpu.cli import waiting

    sys.stdout.flush()
    ended = waiting.wait_and_tell(api, [task["id"] for task in tasks])
    if ended is None:
        return waiting.INTERRUPTED
    waiting.tell(args, ended, ended[0] if len(ended) == 1 else ended)
    return waiting.worst_code(ended)

"""`lab-gpu wait`: until tasks have ended; its exit code is theirs."""

from __future__ import annotations

import argparse

from lab_gpu.cli import frame, waiting
from lab_gpu.core.units import parse_duration_s

SUMMARY = "wait until tasks have ended; the exit code is the task's own, of several the worst"
EXAMPLES = ("lab-gpu wait 12", "lab-gpu wait 3-7 9 --timeout 2h", "lab-gpu wait @ @~1 --any")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    parser.add_argument("--any", action="store_true", help="return when the first of them has ended")
    parser.add_argument(
        "--timeout", type=parse_duration_s, metavar="TIME", help="give up after this (exit 124)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    tasks = waiting.wait_and_tell(api, frame.task_ids(args.ids, api), args.any, args.timeout)
    if tasks is None:
        return waiting.INTERRUPTED
    if args.any:
        tasks = [task for task in tasks if task["state"] in waiting.FINAL]
    waiting.tell(args, tasks, {"tasks": tasks})
    return waiting.worst_code(tasks)

"""`lab-gpu top`: moves tasks to the head of the queue; without ids it is the live view."""

from __future__ import annotations

import argparse
import sys

from lab_gpu.cli import frame, steering
from lab_gpu.cli.commands import status

SUMMARY = "move tasks to the head of the queue; without ids the live view"
EXAMPLES = ("lab-gpu top 12", "lab-gpu top 3-7", "lab-gpu top                              # the live view")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser, nargs="*")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.ids:
        return steering.act(args, "top", "is at the head of the queue")
    return live_view(args)


def live_view(args: argparse.Namespace) -> int:
    args.watch = sys.stdout.isatty() and not args.json
    args.limit = status.MOST_TASKS
    return status.run(args)

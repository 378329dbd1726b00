"""`lab-gpu cancel`: takes waiting tasks out of the queue and stops running ones step by step."""

from __future__ import annotations

import argparse

from lab_gpu.cli import steering
from lab_gpu.core.units import parse_duration_s

SUMMARY = "stop running tasks, take waiting ones out of the queue"
EXAMPLES = (
    "lab-gpu cancel 12",
    "lab-gpu cancel 3-7 9 --wait",
    "lab-gpu cancel @ --soft-timeout 0        # without time for a checkpoint",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    steering.add_flags(parser)
    parser.add_argument("--wait", action="store_true", help="return when they have ended")
    for flag, words in (
        ("--soft-timeout", "from SIGUSR1 to SIGTERM"),
        ("--term-timeout", "from SIGTERM to SIGKILL"),
    ):
        parser.add_argument(flag, type=parse_duration_s, metavar="TIME", help=f"{words} (the policy's)")


def run(args: argparse.Namespace) -> int:
    timeouts = {"soft_timeout_s": args.soft_timeout, "term_timeout_s": args.term_timeout}
    said = {name: seconds for name, seconds in timeouts.items() if seconds is not None}
    ask = steering.act_and_wait if args.wait else steering.act
    return ask(args, "cancel", "cancelled", **said)

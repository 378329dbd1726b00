"""`lab-gpu retry`: ended tasks are queued once more, and with them what failed because of them."""

from __future__ import annotations

import argparse

from lab_gpu.cli import steering

SUMMARY = "queue ended tasks again; their history stays"
EXAMPLES = ("lab-gpu retry 12", "lab-gpu retry 3-7 9")


def arguments(parser: argparse.ArgumentParser) -> None:
    steering.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    return steering.act(args, "retry", "queued again")

"""`lab-gpu hold`: waiting tasks stay where they are until `release`."""

from __future__ import annotations

import argparse

from lab_gpu.cli import steering

SUMMARY = "keep waiting tasks from starting until they are released"
EXAMPLES = ("lab-gpu hold 12", "lab-gpu hold 3-7 9")


def arguments(parser: argparse.ArgumentParser) -> None:
    steering.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    return steering.act(args, "hold", "held")

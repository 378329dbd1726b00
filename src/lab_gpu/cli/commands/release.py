"""`lab-gpu release`: held tasks may start again."""

from __future__ import annotations

import argparse

from lab_gpu.cli import steering

SUMMARY = "let held tasks start again"
EXAMPLES = ("lab-gpu release 12", "lab-gpu release 3-7 9")


def arguments(parser: argparse.ArgumentParser) -> None:
    steering.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    return steering.act(args, "release", "released")

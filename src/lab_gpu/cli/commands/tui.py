"""`lab-gpu tui`: the live view of `status --watch` on the whole terminal; printed once where there is none."""

from __future__ import annotations

import argparse

from lab_gpu.cli import frame
from lab_gpu.cli.commands import top

SUMMARY = (
    "GPUs and open tasks, drawn again whenever something happens, until Ctrl-C; printed once into a pipe"
)
EXAMPLES = ("lab-gpu tui",)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    return top.live_view(args)

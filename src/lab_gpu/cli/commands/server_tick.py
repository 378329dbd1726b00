"""`lab-gpu server tick`: one pass of the planner now, and what it decided and why."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame

SUMMARY = "plan once now, and print what was decided and why"
EXAMPLES = ("lab-gpu server tick", "lab-gpu server tick --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    frame.show(args, frame.master(args).post("/api/v1/server/tick"), lines)
    return 0


def lines(answer: dict[str, Any]) -> list[str]:
    started = [f"task {each['id']}: started on {place(each)}" for each in answer["started"]]
    waiting = [f"task {each['id']}: waits: {each['text']}" for each in answer["waiting"]]
    return started + waiting or ["nothing is queued"]


def place(start: dict[str, Any]) -> str:
    indices = ",".join(str(gpu["index"]) for gpu in start["gpus"])
    return f"{start['node']} GPU {indices}" if indices else f"{start['node']}, no GPU"

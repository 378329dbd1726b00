"""`lab-gpu why`: what a task waits for, on which GPU, for how long, and what would let it start now."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame, screen

SUMMARY = "what a task waits for, and what would let it start"
EXAMPLES = ("lab-gpu why 12", "lab-gpu why @", "lab-gpu why 3-7 --json")
Json = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    frame.add_watch_flag(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    return frame.watch_tasks(args, "/why", draw)


def draw(document: Json | list[Json]) -> list[str]:
    answers = document if isinstance(document, list) else [document]
    return [line for answer in answers for line in lines(answer)]


def lines(answer: Json) -> list[str]:
    state, style = screen.state_cell(answer["state"])
    found = [f"task {answer['id']} {screen.colour(state, style)}: {answer['text']}"]
    for gpu in answer.get("gpus") or ():
        place = f"{gpu['node']}:{gpu['index']}" if gpu.get("index") is not None else str(gpu["node"])
        found.append(f"  {place}  {gpu['text']}")
    if answer.get("position"):
        behind = f", behind task {answer['behind']}" if answer.get("behind") else ""
        found.append(f"  number {answer['position']} of {answer['of']} that wait{behind}")
    if answer.get("earliest_start"):
        found.append(f"  earliest start {screen.ago(answer['earliest_start'])}")
    return found + [f"  {advice}" for advice in answer.get("advice") or ()]

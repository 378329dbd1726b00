"""`lab-gpu server status`: whether a master runs, where, since when; exit 3 where none does."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame, screen

SUMMARY = "say whether a master runs, and where"
EXAMPLES = ("lab-gpu server status", "lab-gpu server status --json")
HEADINGS = (
    ("url", "address"),
    ("socket", "socket"),
    ("log", "log"),
    ("home", "home"),
    ("policy_path", "policy"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    answer = frame.master(args).get("/api/v1/server")
    if args.json:
        frame.print_json(answer)
        return 0
    for line in lines(answer):
        frame.out(line)
    for warning in answer.get("warnings") or ():
        frame.say(warning)
    return 0


def lines(answer: dict[str, Any]) -> list[str]:
    since = screen.ago(answer["started_at"])
    head = f"master {answer['version']} runs as pid {answer['pid']} on {answer['host']}, started {since}"
    rest = [f"  {heading:8} {answer[name]}" for name, heading in HEADINGS if answer.get(name)]
    if answer.get("manual_tick"):
        rest.append("  plans only at `lab-gpu server tick`")
    return [head, *rest]

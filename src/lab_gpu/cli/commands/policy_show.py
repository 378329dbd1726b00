"""`lab-gpu policy show`: the policy in force, as a file that could be loaded again."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame

SUMMARY = "the policy in force"
EXAMPLES = ("lab-gpu policy show", "lab-gpu policy show > policy.yaml", "lab-gpu policy show --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    frame.show(args, frame.master(args).get("/api/v1/policy"), lines)
    return 0


def lines(answer: dict[str, Any]) -> list[str]:
    import yaml

    origin = f"from {answer['path']}" if answer.get("path") else "the defaults: no policy file was given"
    half = "night" if answer.get("night") else "day"
    text = yaml.safe_dump(answer["policy"], sort_keys=False, allow_unicode=True)
    return [f"# {origin}; by this policy it is {half} now", *text.splitlines()]

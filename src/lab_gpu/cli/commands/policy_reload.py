"""`lab-gpu policy reload`: takes a policy file into force, never one with a mistake in it."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lab_gpu.cli import frame, policy_file

SUMMARY = "take the policy file, or another one, into force"
EXAMPLES = ("lab-gpu policy reload", "lab-gpu policy reload policy.yaml")


def arguments(parser: argparse.ArgumentParser) -> None:
    words = "a policy file in YAML; without one the file in force is read again"
    frame.completes(parser.add_argument("file", nargs="?", metavar="FILE", help=words), "files")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    path = None
    if args.file:
        path = os.path.abspath(args.file)
        policy_file.checked(path)
    answer = frame.master(args).post("/api/v1/policy/reload", {"path": path})
    if args.json:
        frame.print_json(answer)
    else:
        frame.out(words(answer))
    return 0


def words(answer: dict[str, Any]) -> str:
    origin = answer.get("path") or "the defaults"
    if not answer["changed"]:
        return f"{origin}: nothing is different"
    return f"{origin} is in force; changed: {', '.join(answer['changed'])}"

"""`lab-gpu policy check`: every mistake of a policy file, with its line. Needs no master."""

from __future__ import annotations

import argparse

from lab_gpu.cli import frame, policy_file
from lab_gpu.core.policy import Policy, changed, policy_to_doc

SUMMARY = "check a policy file without loading it"
EXAMPLES = ("lab-gpu policy check policy.yaml",)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(parser.add_argument("file", metavar="FILE", help="a policy file in YAML"), "files")
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    policy = policy_file.checked(args.file)
    other = changed(Policy(), policy)
    if args.json:
        frame.print_json({"ok": True, "policy": policy_to_doc(policy), "changed": other})
        return 0
    said = f"not the default: {', '.join(other)}" if other else "all values are the defaults"
    frame.out(f"{args.file} is a good policy; {said}")
    return 0

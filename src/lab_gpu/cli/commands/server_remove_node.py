"""`lab-gpu server remove-node`: forget a declared node. Tasks that wait for it stay queued, with that reason."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame

SUMMARY = "forget a declared node"
EXAMPLES = ("lab-gpu server remove-node node-1",)


def arguments(parser: argparse.ArgumentParser) -> None:
    node = parser.add_argument("node", metavar="NODE", help="its name, as `lab-gpu status` shows it")
    node.complete = "nodes"  # type: ignore[attr-defined]
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    answer = frame.master(args).delete(f"/api/v1/nodes/{quote(args.node, safe='')}")
    if args.json:
        frame.print_json(answer)
    else:
        frame.out((answer or {}).get("text") or f"node {args.node} is forgotten")
    return 0

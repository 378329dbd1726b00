"""`lab-gpu server remove-node`: forgets a declared node. Tasks that wait for it stay queued and say so."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame

SUMMARY = "forget a declared node"
EXAMPLES = ("lab-gpu server remove-node node-1",)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument("node", metavar="NODE", help="its name, as `lab-gpu status` shows it"), "nodes"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    answer = frame.master(args).delete(f"/api/v1/nodes/{quote(args.node, safe='')}")
    if args.json:
        frame.print_json(answer)
    else:
        frame.out((answer or {}).get("text") or f"node {args.node} is forgotten")
    return 0

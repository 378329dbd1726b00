"""`lab-gpu server remove-node`: forgets a declared node. Tasks that wait for it stay queued and say so."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame
from lab_gpu.core.errors import Refused

SUMMARY = "forget a declared node"
EXAMPLES = ("lab-gpu server remove-node node-1",)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument("node", nargs="?", metavar="NODE", help="its name, as `lab-gpu status` shows it"),
        "nodes",
    )
    frame.completes(
        parser.add_argument("--name", metavar="NODE", help="the same, as add-node takes it"), "nodes"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    name = args.node or args.name
    if not name or (args.node and args.name):
        raise Refused("cannot remove a node: name one, once: lab-gpu server remove-node NODE")
    answer = frame.master(args).delete(f"/api/v1/nodes/{quote(name, safe='')}")
    if args.json:
        frame.print_json(answer)
    else:
        frame.out((answer or {}).get("text") or f"node {name} is forgotten")
    return 0

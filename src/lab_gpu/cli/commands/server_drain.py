"""`lab-gpu server drain`: start nothing more on a node or one of its GPUs. What runs there runs on."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame

SUMMARY = "start nothing more on a node, or on one of its GPUs"
EXAMPLES = (
    "lab-gpu server drain node-1",
    "lab-gpu server drain node-1 --gpu 3 --reason 'fan is loud'",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument("node", metavar="NODE", help="its name, as `lab-gpu status` shows it"), "nodes"
    )
    parser.add_argument(
        "--gpu", type=frame.whole_number("--gpu"), metavar="I", help="only this GPU, by its index"
    )
    parser.add_argument("--reason", metavar="TEXT", help="shown to those whose tasks wait for it")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    path = f"/api/v1/nodes/{quote(args.node, safe='')}/drain"
    answer = frame.master(args).post(path, {"gpu": args.gpu, "reason": args.reason})
    if args.json:
        frame.print_json(answer)
    else:
        frame.out(f"{place(args.node, args.gpu)} is drained: what runs there runs on, nothing more starts")
    return 0


def place(node: str, gpu: int | None) -> str:
    return f"node {node}" if gpu is None else f"GPU {gpu} of node {node}"

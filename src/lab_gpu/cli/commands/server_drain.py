"""`lab-gpu server drain`: start nothing more on a node or one of its GPUs. What runs there runs on."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame
from lab_gpu.core.errors import Refused

SUMMARY = "start nothing more on a node, or on one of its GPUs"
EXAMPLES = (
    "lab-gpu server drain node-1",
    "lab-gpu server drain node-1:3 --reason 'fan is loud'",
    "lab-gpu server drain node-1 --gpu 3 --reason 'fan is loud'",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument("node", metavar="NODE[:GPU]", help="as `lab-gpu status` shows it"), "nodes"
    )
    parser.add_argument(
        "--gpu", type=frame.whole_number("--gpu"), metavar="I", help="only this GPU, by its index"
    )
    parser.add_argument("--reason", metavar="TEXT", help="shown to those whose tasks wait for it")
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    node, gpu = named(args)
    path = f"/api/v1/nodes/{quote(node, safe='')}/drain"
    answer = frame.master(args).post(path, {"gpu": gpu, "reason": args.reason})
    if args.json:
        frame.print_json(answer)
    else:
        frame.out(f"{place(node, gpu)} is drained: what runs there runs on, nothing more starts")
    return 0


def named(args: argparse.Namespace) -> tuple[str, int | None]:
    """The node and its GPU, also where both are written as screens show them: node-1:0."""
    node, _, index = args.node.rpartition(":")
    if not (node and index.isascii() and index.isdigit()):
        return args.node, args.gpu
    if args.gpu not in (None, int(index)):
        raise Refused(f"cannot take both {args.node} and --gpu {args.gpu}: name one GPU at a time")
    return node, int(index)


def place(node: str, gpu: int | None) -> str:
    return f"node {node}" if gpu is None else f"GPU {gpu} of node {node}"

"""`lab-gpu server add-node`: name and limit this host's own GPUs, or declare a virtual node."""

from __future__ import annotations

import argparse
import re

from lab_gpu.cli import frame
from lab_gpu.core.errors import Refused
from lab_gpu.core.ids import NODE_NAME_PATTERN, NODE_NAME_WORDS
from lab_gpu.core.units import parse_size_mib

SUMMARY = "name and limit this machine's GPUs, or declare a virtual node"
EXAMPLES = (
    'lab-gpu server add-node --name node-1 --gpus 2 --vram 24 --gpu-type "RTX 3090"',
    "lab-gpu server add-node --name pretend --virtual --gpus 4 --vram 80 --gpu-type A100",
)
ONE_MACHINE = (
    "cannot add a node at {address}: this release runs tasks on the master's machine; leave --address away"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="NAME", help="what to call the node")
    parser.add_argument(
        "--gpus",
        type=frame.whole_number("--gpus", 1),
        metavar="N",
        help="how many GPUs (the first N of a real machine)",
    )
    parser.add_argument("--vram", metavar="SIZE", help="memory of each GPU: 24 and 24G are 24 GiB")
    parser.add_argument("--gpu-type", metavar="TYPE", help='such as "RTX 3090"')
    parser.add_argument(
        "--virtual", action="store_true", help="declare a node without GPUs of its own, beside real ones"
    )
    parser.add_argument(
        "--address", metavar="HOST", help="refused: nodes on other machines are not in this release"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.address:
        raise Refused(ONE_MACHINE.format(address=args.address))
    if not re.fullmatch(NODE_NAME_PATTERN.rstrip("$"), args.name):
        raise Refused(f"cannot add node '{args.name}': its name {NODE_NAME_WORDS}")
    body = {
        "name": args.name,
        "gpus": args.gpus,
        "vram_mib": None if args.vram is None else parse_size_mib(args.vram),
        "gpu_type": args.gpu_type,
        "virtual": args.virtual,
    }
    answer = frame.master(args, start=True).post("/api/v1/nodes", body)
    if args.json:
        frame.print_json(answer)
    else:
        frame.out(answer["text"])
    return 0

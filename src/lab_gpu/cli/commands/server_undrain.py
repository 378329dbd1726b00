"""`lab-gpu server undrain`: let tasks start again on a node or GPU that was drained or set aside."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from lab_gpu.cli import frame
from lab_gpu.cli.commands.server_drain import named, place

SUMMARY = "let tasks start again on a drained node or GPU"
EXAMPLES = ("lab-gpu server undrain node-1", "lab-gpu server undrain node-1:3")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.completes(
        parser.add_argument("node", metavar="NODE[:GPU]", help="as `lab-gpu status` shows it"), "nodes"
    )
    parser.add_argument(
        "--gpu", type=frame.whole_number("--gpu"), metavar="I", help="only this GPU, by its index"
    )
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    node, gpu = named(args)
    path = f"/api/v1/nodes/{quote(node, safe='')}/undrain"
    answer = frame.master(args).post(path, {"gpu": gpu})
    if args.json:
        frame.print_json(answer)
    else:
        frame.out(f"{place(node, gpu)} takes tasks again")
    return 0

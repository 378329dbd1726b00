"""`lab-gpu service uninstall`: takes the unit away. The master and its tasks run on."""

from __future__ import annotations

import argparse
import os

from lab_gpu.cli import frame, systemd
from lab_gpu.cli.unit_file import UNIT_NAME, is_ours, unit_path
from lab_gpu.core.errors import NotFound, Refused

SUMMARY = "take the systemd unit away"
EXAMPLES = ("lab-gpu service uninstall", "sudo lab-gpu service uninstall --system")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", action="store_true", help="the unit of the machine, not yours")
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    path = unit_path(args.system, os.environ, os.path.expanduser("~"))
    check(path)
    answers = systemd.answers(args.system)
    if answers:
        systemd.ask(systemd.words(args.system, "disable", UNIT_NAME))
    try:
        os.unlink(path)
    except OSError as error:
        raise Refused(f"cannot remove {path}: {error.strerror}; run it with sudo") from None
    if answers:
        systemd.ask(systemd.words(args.system, "daemon-reload"))
    if args.json:
        frame.print_json({"path": path, "removed": True})
    else:
        frame.say(f"lab-gpu: removed {path}; a master that runs stays until `lab-gpu server stop`")
    return 0


def check(path: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if not is_ours(file.read()):
                raise Refused(
                    f"cannot remove {path}: `lab-gpu service install` did not write it; remove it by hand"
                )
    except OSError as error:
        raise NotFound(f"cannot remove {path}: {error.strerror}; nothing is installed there") from None

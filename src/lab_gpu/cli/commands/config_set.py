"""`lab-gpu config set`: changes one setting in your own file; comments and everything else there stay."""

from __future__ import annotations

import argparse

from lab_gpu.cli import config, frame
from lab_gpu.cli.task_flags import BY_NAME
from lab_gpu.core.errors import Refused

SUMMARY = "change a setting of yours"
EXAMPLES = (
    "lab-gpu config set host gpubox:1895",
    "lab-gpu config set submit.mem 10G",
    "lab-gpu config set submit.mem --unset",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    words = "host, log_root, color, or submit. and the name of a flag of submit"
    parser.add_argument("key", metavar="KEY", help=words)
    parser.add_argument("value", metavar="VALUE", nargs="?", help="read as the flag of that name reads it")
    parser.add_argument("--unset", action="store_true", help="take the setting away")
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    key = args.key.replace("-", "_")
    config.check_key(key, f"'{args.key}'")
    if (args.value is None) != args.unset:
        raise Refused(f"cannot set {key}: write a value after it, or --unset to take it away")
    if args.value is not None:
        check_value(key, args.value)
    config.change_file(config.user_file(), key, args.value)
    path = config.user_file()
    if args.json:
        frame.print_json({"key": key, "value": args.value, "path": path})
    else:
        frame.say(f"{key} {'is no longer set' if args.unset else 'is set'} in {path}")
    return 0


def check_value(key: str, value: str) -> None:
    """A setting that no command could read is refused now, not at the next submit."""
    if not value.strip() or "\n" in value:
        raise Refused(
            f"cannot set {key} to '{value.strip()}': it must be one line with something on it; correct it"
        )
    section, _, name = key.rpartition(".")
    if section:
        BY_NAME[name].read(value)
    else:
        config.checked(key, value, "the command line")

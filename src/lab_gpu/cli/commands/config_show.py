"""`lab-gpu config show`: the settings of this command line, and with --origin where each comes from."""

from __future__ import annotations

import argparse

from lab_gpu.cli import config, frame
from lab_gpu.cli.screen import table, width
from lab_gpu.cli.submission import default_layers

SUMMARY = "the settings of this command line and where they come from"
EXAMPLES = ("lab-gpu config show", "lab-gpu config show --origin", "lab-gpu config show --json")
DEFAULTS = {
    "host": "this user's own master",
    "log_root": "/nas/logs, or logs in the master's home",
    "color": "auto",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--origin", action="store_true", help="also say which file or variable decides")
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    default_layers()  # says what cannot be read before anything is shown as if it held
    found = in_force()
    if args.json:
        frame.print_json({key: {"value": value, "origin": origin} for key, (value, origin) in found.items()})
        return 0
    rows = [[key, value, origin if args.origin else ""] for key, (value, origin) in found.items()]
    for line in table(rows, ("SETTING", "VALUE", "ORIGIN"), width()):
        frame.out(line)
    return 0


def in_force() -> dict[str, tuple[str, str]]:
    """Setting -> (value, where from): defaults first, then what is set."""
    found = {key: (words, "default") for key, words in DEFAULTS.items()}
    for origin, values in reversed(config.layers()):
        for key, value in values.items():
            found[key.replace("-", "_")] = (_text(key, value, origin), origin)
    return found


def _text(key: str, value: object, origin: str) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    return config.checked(key, value, origin)

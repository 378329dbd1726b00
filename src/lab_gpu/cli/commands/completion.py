"""`lab-gpu completion`: prints the completion script of a shell, and answers what those scripts ask later."""

from __future__ import annotations

import argparse
import os

from lab_gpu.cli import frame
from lab_gpu.cli.completions import LIVE_KINDS, SHELLS, live_words, script
from lab_gpu.core.errors import LabGpuError, Refused

SUMMARY = "print the completion script of a shell"
EXAMPLES = (
    "source <(lab-gpu completion bash)        # in ~/.bashrc",
    "source <(lab-gpu completion zsh)         # in ~/.zshrc, after compinit",
    "lab-gpu completion fish > ~/.config/fish/completions/lab-gpu.fish",
)
ANSWER_LIMIT_S = 2.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, help="the shell; without one that of $SHELL")
    parser.add_argument("--live", choices=LIVE_KINDS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.live:
        return offer(args)
    from lab_gpu.cli.main import build_parser

    frame.out(script(args.shell or own_shell(), build_parser()))
    return 0


def own_shell() -> str:
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise Refused(f"cannot tell your shell from SHELL={name!r}; name it: lab-gpu completion bash")
    return name


def offer(args: argparse.Namespace) -> int:
    """Words between two key presses are no place for an error: without a master there is nothing to offer."""
    try:
        status = frame.master(args).get("/api/v1/status", timeout_s=ANSWER_LIMIT_S)
    except LabGpuError:
        return 0
    for word in live_words(args.live, status):
        frame.out(word)
    return 0

"""Completion scripts, made from the very parsers that read the command line, so that they cannot differ from it.

What lives (task ids, nodes, queues) is asked for at the moment of the key press, by the hidden command `_complete`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping

import shtab

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "lab-gpu"
LIVE_KINDS = ("task_ids", "nodes", "queues")
Arguments = Callable[[argparse.ArgumentParser], None]


def script(shell: str, commands: Mapping[str, tuple[str, Arguments]], settle: Arguments | None = None) -> str:
    """`commands`: name ("server start") -> (summary, arguments). `settle` adds what every command line takes."""
    made: str = shtab.complete(whole_parser(commands, settle), shell, preamble=_preamble(shell))
    return _aimed(made) if shell == "bash" else made


def whole_parser(
    commands: Mapping[str, tuple[str, Arguments]], settle: Arguments | None = None
) -> argparse.ArgumentParser:
    """The tree of all commands: what the program itself never builds, because a cold start reads one command only."""
    root = argparse.ArgumentParser(PROGRAM)
    if settle:
        settle(root)
    branches = {"": root.add_subparsers(metavar="COMMAND")}
    for name, (summary, arguments) in commands.items():
        group, _, word = name.rpartition(" ")
        if group not in branches:
            branches[group] = branches[""].add_parser(group, help=f"the {group} commands").add_subparsers()
        parser = branches[group].add_parser(word, help=_plain(summary), description=_plain(summary))
        arguments(parser)
        for action in parser._actions:
            _translate(action)
    return root


def _plain(text: str) -> str:
    """What neither argparse's formatting nor a shell's quoting could trip over."""
    return re.sub(r"[%\[\]`\"':$\\]", "", text)


def _translate(action: argparse.Action) -> None:
    """From the words our commands use to those of shtab."""
    if action.help and action.help != argparse.SUPPRESS:
        action.help = _plain(action.help)
    kind = getattr(action, "complete", None)
    if kind == "files":
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif kind == "dirs":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif kind in LIVE_KINDS:
        action.complete = _live(kind)  # type: ignore[attr-defined]


def _live(kind: str) -> dict[str, str]:
    return {
        "bash": f"_lab_gpu_{kind}",
        "zsh": f"_lab_gpu_{kind}",
        "fish": f"({PROGRAM} _complete {kind} 2>/dev/null)",
    }


def _preamble(shell: str) -> str:
    """One function for each living kind. In bash the program typed is the one asked, so a path to it works too."""
    if shell == "bash":
        body = 'compgen -W "$("${COMP_WORDS[0]}" _complete %s 2>/dev/null)" -- "$1"'
    elif shell == "zsh":
        body = f'compadd -- ${{(f)"$({PROGRAM} _complete %s 2>/dev/null)"}}'
    else:
        return ""
    return "\n".join(f"_lab_gpu_{kind}() {{\n  {body % kind}\n}}" for kind in LIVE_KINDS)


def _aimed(text: str) -> str:
    """shtab's own bash functions have names that another program's completion made by it may define anew."""
    for name in ("_set_parser_defaults", "_set_new_action"):
        text = re.sub(rf"\b{name}\b", f"_lab_gpu{name}", text)
    return text

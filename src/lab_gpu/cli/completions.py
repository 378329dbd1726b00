"""Completion scripts, made from the very parser that reads the command line, so that the two cannot differ.

What lives (task ids, nodes, queues) is asked for when the key is pressed: `lab-gpu completion --live KIND`.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import shtab

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "lab-gpu"
LIVE_KINDS = ("task_ids", "nodes", "queues")
ASK = "completion --live"


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """`parser` is the whole command line; it is changed and of no other use afterwards."""
    _translate(parser)
    made: str = shtab.complete(parser, shell, preamble=_preamble(shell))
    return _apart(made) if shell == "bash" else made


def live_words(kind: str, status: dict[str, Any]) -> list[str]:
    """`status` is the answer of /api/v1/status: open tasks and those that ended last."""
    if kind == "nodes":
        return [str(node["name"]) for node in status["nodes"]]
    if kind == "queues":
        return sorted({str(task["queue"]) for task in status["tasks"] if task.get("queue")})
    return [str(task["id"]) for task in status["tasks"]]


def _translate(parser: argparse.ArgumentParser) -> None:
    """From the words our commands use to those of shtab, through all branches."""
    parser.description = _plain(parser.description or "")
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            action.help = _plain(action.help)
        _offer(action)
        if isinstance(action, argparse._SubParsersAction):
            for named in action._choices_actions:
                named.help = _plain(named.help or "")
            for branch in action.choices.values():
                _translate(branch)


def _plain(text: str) -> str:
    """Without what argparse's formatting or a shell's quoting could trip over."""
    return re.sub(r"[%\[\]`\"':$\\]", "", text)


def _offer(action: argparse.Action) -> None:
    marks = vars(action)
    kind = marks.get("complete")
    if kind == "files":
        marks["complete"] = shtab.FILE
    elif kind == "dirs":
        marks["complete"] = shtab.DIRECTORY
    elif kind in LIVE_KINDS:
        own = f"_lab_gpu_{kind}"
        marks["complete"] = {"bash": own, "zsh": own, "fish": f"({PROGRAM} {ASK} {kind} 2>/dev/null)"}


def _preamble(shell: str) -> str:
    """A function for each living kind. In bash the program as typed is asked: it need not be on PATH."""
    if shell == "bash":
        body = f'compgen -W "$("${{COMP_WORDS[0]}}" {ASK} %s 2>/dev/null)" -- "$1"'
    elif shell == "zsh":
        body = f'compadd -- ${{(f)"$({PROGRAM} {ASK} %s 2>/dev/null)"}}'
    else:
        return ""
    return "\n".join(f"_lab_gpu_{kind}() {{\n  {body % kind}\n}}" for kind in LIVE_KINDS)


def _apart(text: str) -> str:
    """shtab's bash functions are called the same for every program: ours must not replace another's."""
    for name in ("_set_parser_defaults", "_set_new_action"):
        text = re.sub(rf"\b{name}\b", f"_lab_gpu{name}", text)
    return re.sub(r"\b_shtab_(compgen_files|compgen_dirs|replace_nonword)\b", r"_lab_gpu_\1", text)

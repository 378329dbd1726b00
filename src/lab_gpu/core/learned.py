"""What finished tasks teach: which runs are alike, and how long the next one should take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

BETWEEN_COMMANDS = {"&&", "||", ";", "|", "&", "\n"}
WRAPPERS = {"env", "exec", "nohup", "time"}
RUNS_TO_AVERAGE = 2

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_SETTING = re.compile(r"[A-Za-z+~][\w.+~/-]*=")
_SCRIPT = re.compile(r".*\.(py|sh|bash|zsh|pl|rb|jl|R|r|lua|js|mjs|ipynb|m)")


def signature(owner: str, command: str) -> str | None:
    """Owner, programs, scripts and names of flags, without values; None where a command tells nothing.

    `python -u train.py --lr 0.1 --epochs=5` of alice is `alice|python|train.py|--epochs,--lr,-u`.
    """
    try:
        commands = _split(command)
    except ValueError:
        return None
    parts = [_part(words) for words in commands if words and words[0] != "cd"]
    if not parts or None in parts:
        return None
    return "|".join([owner, ";".join(part for part in parts if part)])


def expected_run_s(recent: Sequence[float]) -> float | None:
    """The mean of the last two runs (`recent` is newest first): two are enough to forget an old program."""
    last = recent[:RUNS_TO_AVERAGE]
    return sum(last) / len(last) if last else None


def _split(command: str) -> Iterable[list[str]]:
    """The simple commands of a shell line or script."""
    lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in BETWEEN_COMMANDS or not word.strip(";&|"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [_without_wrappers(words) for words in commands]


def _without_wrappers(words: list[str]) -> list[str]:
    start = 0
    while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] in WRAPPERS):
        start += 1
    return words[start:]


def _part(words: list[str]) -> str | None:
    """program|script|flags of one simple command. Code given as an argument (`-c`) has no name."""
    program, *arguments = words
    if "-c" in arguments and not any(_SCRIPT.fullmatch(word) for word in arguments):
        return None
    return "|".join([_file_name(program), _script(arguments), ",".join(sorted(_flags(arguments)))])


def _script(arguments: list[str]) -> str:
    for before, word in zip(["", *arguments], arguments, strict=False):
        if _SCRIPT.fullmatch(word) or before in ("-m", "--module"):
            return _file_name(word)
    return ""


def _flags(arguments: list[str]) -> set[str]:
    """--name of `--name=5`, -n of `-n5`, and `lr=` of `lr=0.1`; -0.5 is a value."""
    names = set()
    for word in arguments:
        flag = _FLAG.match(word)
        setting = _SETTING.match(word)
        if flag:
            name = flag[0]
            names.add(name if name.startswith("--") else name[0:1] + name[1:].rstrip("0123456789.-"))
        elif setting:
            names.add(setting[0])
    return names


def _file_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path

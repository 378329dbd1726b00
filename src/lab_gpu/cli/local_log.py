"""The log file of a command that runs here: its folder and a name that nobody has."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from typing import Any

from lab_gpu.core.errors import Refused

LAB_ROOT = "/nas/logs"
MARK = ".lab-gpu"  # names the master that first used a root


def prepared_root(wanted: str | None, home: str, offered: str | None = None) -> str:
    """The wanted folder or none. Else the first that can be used: the master's, the lab's, the home's."""
    if wanted:
        return _made(os.path.abspath(os.path.expanduser(wanted)))
    # The lab's folder is used where it is there, never made: on most machines it means nothing.
    for root in (offered, LAB_ROOT if os.path.isdir(LAB_ROOT) else None):
        if root:
            try:
                return _made(root)
            except Refused:
                continue
    return _made(f"{home}/logs")


def _made(root: str) -> str:
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as error:
        raise _unusable(root, error.strerror or str(error)) from None
    if not os.path.isdir(root):
        raise _unusable(root, "it is no folder")
    if not os.access(root, os.W_OK | os.X_OK):
        raise _unusable(root, "Permission denied")
    return root


def _unusable(root: str, why: str) -> Refused:
    return Refused(f"cannot write a log in {root}: {why}; name another folder with --log-root")


def opened(root: str, stem: str, attempt: Mapping[str, Any]) -> tuple[str, int]:
    """The path and an appending descriptor of a new file; `attempt` is what the master says of it, or empty."""
    for candidate in _names(stem, attempt):
        path = os.path.join(root, candidate)
        try:
            return path, os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except FileExistsError:
            continue
        except OSError as error:
            raise _unusable(root, error.strerror or str(error)) from None
    raise AssertionError("the names never end")


def stem_of(task: int, root: str, home: str) -> str:
    """The task's number; in a root that another master has marked, with who we are: numbers repeat."""
    host = os.uname().nodename
    try:
        with open(f"{root}/{MARK}", encoding="utf-8", errors="replace") as mark:
            ours = mark.read(4096) == f"{host}:{home}\n"
    except OSError:
        ours = True
    return str(task) if ours else f"{task}-{getpass.getuser()}@{host}"


def _names(stem: str, attempt: Mapping[str, Any]) -> Iterator[str]:
    """The master knows whose the plain name is; without it that is left to whoever has it."""
    if attempt:
        yield os.path.basename(attempt["log_name"])
        yield f"{stem}.{attempt['number']}.log"
    yield f"{stem}.log"
    number = 2
    while True:
        yield f"{stem}.{number}.log"
        number += 1

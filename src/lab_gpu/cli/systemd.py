"""Asks systemd, where one answers: a program that is installed proves nothing, only an answer does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

LIMIT_S = 20.0


def words(system: bool, *rest: str) -> list[str]:
    return ["systemctl", *([] if system else ["--user"]), *rest]


def answers(system: bool) -> bool:
    return ask(words(system, "show", "--property=Version"))[0] == 0


def ask(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and what was said; 127 where there is no such program or it hangs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip()


def unit_of_process(pid: int, unit: str) -> bool | None:
    """Whose `unit` has `pid` as its main process: True the machine's, False the user's, None nobody's."""
    for system in (True, False):
        status, text = ask(words(system, "show", "--property=MainPID", "--value", unit))
        if status == 0 and text == str(pid):
            return system
    return None


def lingers(user: str) -> bool:
    return os.path.exists(f"/var/lib/systemd/linger/{user}")

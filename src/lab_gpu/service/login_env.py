"""The environment of a task that came without one: its owner's login shell's, read once."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Mapping

LIMIT_S = 10.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MARK = b"\0lab-gpu environment\0"
_NOT_ITS_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "LAB_GPU_TOKEN"})


class LoginEnvironment:
    """Asked from one worker thread at a time; the shell runs at the first question only."""

    def __init__(self, uid: int, limit_s: float = LIMIT_S) -> None:
        self._uid = uid
        self._limit_s = limit_s
        self._kept: dict[str, str] | None = None

    def __call__(self) -> Mapping[str, str]:
        if self._kept is None:
            self._kept = read(self._uid, self._limit_s)
        return self._kept


def home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return os.path.expanduser("~")


def minimal(uid: int) -> dict[str, str]:
    """What a login gives before any start-up file has run."""
    try:
        user = pwd.getpwuid(uid)
        name, home, shell = user.pw_name, user.pw_dir, user.pw_shell
    except KeyError:
        name, home, shell = str(uid), os.path.expanduser("~"), ""
    return {
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": shell or "/bin/sh",
        "PATH": _PATH,
        "LANG": "C.UTF-8",
    }


def read(uid: int, limit_s: float) -> dict[str, str]:
    """A start-up file that hangs or fails costs its additions, not the task."""
    start = minimal(uid)
    output = _ask(start, limit_s)
    _, mark, body = output.partition(_MARK)
    if not mark:
        return start
    lines = (piece.decode("utf-8", "surrogateescape").partition("=") for piece in body.split(b"\0"))
    found = {name: value for name, equals, value in lines if equals and name not in _NOT_ITS_OWN}
    return found or start


def _ask(start: Mapping[str, str], limit_s: float) -> bytes:
    # The mark divides the environment from whatever the start-up files print.
    ask = "printf '\\0lab-gpu environment\\0'; exec /usr/bin/env -0"
    home = start["HOME"] if os.path.isdir(start["HOME"]) else "/"
    # A file, because something the start-up files leave behind could keep a pipe open for ever.
    with tempfile.TemporaryFile() as output:
        try:
            shell = subprocess.Popen(
                [start["SHELL"], "-l", "-c", ask],
                env=dict(start),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return b""
        try:
            shell.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        output.seek(0)
        return output.read()

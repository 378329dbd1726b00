"""A master as a unit of systemd's user instance: seen, limited and named like any other service of this user.

Tried rather than looked for: systemd-run is often there without a bus. Used only where a unit lives as long
as a process of the session would: at a logout without lingering the user instance ends with all it holds.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

TRY_LIMIT_S = 10.0
ASK_LIMIT_S = 5.0
PROPERTIES = ("Type=exec", "KillMode=process", "OOMPolicy=continue", "Delegate=yes", "TasksMax=infinity")
# A unit starts with the user instance's environment; of ours it needs what a master or its Python reads.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD")
KEPT_PREFIXES = ("LAB_GPU_", "LC_", "PYTHON", "XDG_", "CONDA_", "VIRTUAL_ENV", "NVML_")
_INTO_PIPE = 'pipe=$0 log=$1; shift; exec "$@" 3<>"$pipe" >>"$log" 2>&1'


def preferred() -> bool:
    """No where a logout would end the unit but not a detached process."""
    return lingers() is not False or kills_at_logout() is not False


def lingers() -> bool | None:
    """None: there is no login service to say so."""
    return _login_property("Linger", str(os.getuid()))


def kills_at_logout() -> bool | None:
    return _login_property("KillUserProcesses")


def warn_of_logout(home: str, say: Callable[[str], object]) -> None:
    """Said once for each home: where a logout ends the master and its tasks, and what keeps them."""
    told = f"{home}/logout-told"
    if os.path.exists(told) or lingers() is not False or kills_at_logout() is not True:
        return
    say("lab-gpu: a logout ends the master and its tasks on this host; `loginctl enable-linger` keeps them")
    with open(told, "w", encoding="utf-8"):
        pass


def start(
    words: Sequence[str],
    environment: Mapping[str, str],
    home: str,
    log: str,
    line_from: Callable[[int], bytes],
) -> bytes | None:
    """The line in which the master says that it is ready. None: units cannot be started here."""
    with tempfile.TemporaryDirectory(prefix="start-", dir=home) as folder:
        pipe = f"{folder}/ready"
        os.mkfifo(pipe, 0o600)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not _tried(_run_words(words, environment, home, pipe, log), environment):
                return None
            return line_from(reading)
        finally:
            os.close(reading)


def _run_words(
    words: Sequence[str], environment: Mapping[str, str], home: str, pipe: str, log: str
) -> list[str]:
    # A name of its own for each start: what a stopped unit left running keeps its old name in use.
    name = f"lab-gpu-{os.getpid()}-{time.time_ns() // 1_000_000}"
    return [
        *("systemd-run", "--user", "--quiet", "--collect", f"--unit={name}"),
        f"--description=Lab-GPU master of {home}",
        *(f"--property={each}" for each in PROPERTIES),
        *(f"--setenv={key}" for key in environment if _is_kept(key)),  # its value stays off the command line
        *("/bin/sh", "-c", _INTO_PIPE, pipe, log, *words, "--ready-fd", "3"),
    ]


def _is_kept(name: str) -> bool:
    return name in KEPT or name.startswith(KEPT_PREFIXES)


def _tried(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            timeout=TRY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _login_property(name: str, *user: str) -> bool | None:
    try:
        done = subprocess.run(
            ["loginctl", "show-user", *user, f"--property={name}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    value = done.stdout.decode("utf-8", "replace").strip().partition("=")[2]
    return {"yes": True, "no": False}.get(value) if done.returncode == 0 else None

"""Starts, stops and replaces this user's master: in a user unit where that outlives a logout, else detached.

Whoever starts waits for the one line in which the new master says that it is ready, or why it cannot be.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import loads
from typing import Any

from lab_gpu.client import unit
from lab_gpu.client.transport import find_master
from lab_gpu.client.whereabouts import is_alive, is_outdated, running_note
from lab_gpu.core import places
from lab_gpu.core.attempts import ATTEMPT_VARIABLES
from lab_gpu.core.errors import BY_SLUG, Broken, LabGpuError, NoMaster, Refused

Say = Callable[[str], object]

MASTER_COMMAND: Sequence[str] = (sys.executable, "-m", "lab_gpu.daemon")
READY_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
# Run between us and the master, so that it is nobody's child and nobody has to collect it.
_STEP_AWAY = "import os, sys\nif os.fork():\n    os._exit(0)\nos.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True)
class StartOptions:
    """What a master is started with; None leaves it to the master."""

    home: str
    host: str | None = None
    port: int | None = None
    tcp: bool | None = None
    policy: str | None = None
    manual_tick: bool = False
    autostarted: bool = False


def master_words(options: StartOptions) -> list[str]:
    """The command line of the master, as `--foreground` executes it too."""
    words = [*MASTER_COMMAND, "--home", options.home]
    for flag, value in (("--host", options.host), ("--port", options.port), ("--policy", options.policy)):
        if value is not None:
            words += [flag, str(value)]
    if options.tcp is not None:
        words.append("--tcp" if options.tcp else "--no-tcp")
    if options.manual_tick:
        words.append("--manual-tick")
    if options.autostarted:
        words.append("--autostarted")
    return words


def start_private(home: str, say: Say | None = None) -> dict[str, Any]:
    """A master for this user alone, started because somebody needs one; two who ask at once get the same."""
    with _one_at_a_time(home):
        if _answers(home, patience_s=0):
            return {"running": running_note(home) or {}, "same": True}
        ready = _launched(_private(home), say)
        if "running" in ready:  # somebody else's start was quicker, and may not listen yet
            _answers(home, READY_LIMIT_S)
            return ready
    if say is not None:
        say(f"lab-gpu: no master was running, so one was started (log: {ready.get('log')})")
    return ready


def start_master(options: StartOptions, say: Say | None = None) -> dict[str, Any]:
    """Start a master in the background and give what it says of itself.

    Where one with the same settings runs already it is given as `running`; with others this is refused.
    """
    ready = _launched(options, say)
    if "running" in ready and not ready.get("same"):
        raise Refused(
            str(ready.get("error") or "cannot start a master: one runs; use `lab-gpu server restart`")
        )
    return ready


def _launched(options: StartOptions, say: Say | None) -> dict[str, Any]:
    os.makedirs(options.home, mode=0o700, exist_ok=True)
    words, environment = master_words(options), _environment(os.environ)
    log = places.log_path(options.home)
    log_begin = os.path.getsize(log) if os.path.exists(log) else 0
    line = None
    if unit.preferred():
        line = unit.start(words, environment, options.home, log, _line_from)
    if line is None:
        line = _start_detached(words, environment, log)
    ready = _understood(line, log, log_begin)
    if say is not None and "running" not in ready:
        unit.warn_of_logout(options.home, say)
        for note in ready.get("notes") or ():
            say(f"lab-gpu: {note}")
    return ready


def stop(home: str) -> bool:
    """Stop the master of this home and wait until it is gone; running tasks run on. False where none ran."""
    note = running_note(home)
    try:
        api = find_master(None, _only(home))
    except NoMaster:
        return False
    if not api.place.own:
        return False
    try:
        pid = api.get("/api/v1/server")["pid"]
        api.post("/api/v1/server/stop")
    except (NoMaster, Broken):  # it went away in mid-answer, which is what was wanted; or is seen to below
        pid = (note or {}).get("pid")
    if not _gone(pid, STOP_LIMIT_S):
        raise Broken(
            f"cannot stop the master: process {pid} is still there after {STOP_LIMIT_S:g} s; see its log"
        )
    return True


def restart(
    home: str, say: Say | None = None, options: StartOptions | None = None, before: StartOptions | None = None
) -> dict[str, Any]:
    """Stop and start with the settings of before; a master found replaced meanwhile is left as it is.

    Where the new one cannot be, one as `before` takes its place again.
    """
    with _one_at_a_time(home):
        if options is None and not is_outdated(home):
            return running_note(home) or {}
        version = (running_note(home) or {}).get("version")
        ran = stop(home)
        try:
            ready = start_master(options or _private(home), say)
        except LabGpuError:
            if ran and before is not None:
                _go_back(before, say)
            raise
    if say is not None and options is None:
        say(f"lab-gpu: the master was of version {version}: it was replaced by this one's; tasks run on")
    return ready


def _go_back(before: StartOptions, say: Say | None) -> None:
    """The error that brought us here is told in any case."""
    try:
        start_master(before)
    except LabGpuError:
        return
    if say is not None:
        say("lab-gpu: the master runs again with the settings of before")


def _private(home: str) -> StartOptions:
    """Nobody asked for it to be reached from elsewhere."""
    return StartOptions(home, tcp=False, autostarted=True)


def _only(home: str) -> dict[str, str]:
    return {"LAB_GPU_HOME": home}


def _answers(home: str, patience_s: float) -> bool:
    """Whether a master of this home, or the machine's, listens."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            find_master(None, _only(home)).close()
            return True
        except NoMaster:
            if time.monotonic() >= give_up_at:
                return False
        time.sleep(0.02)


@contextmanager
def _one_at_a_time(home: str) -> Iterator[None]:
    """Saves a start that would only meet the other's lock; where files cannot be locked, that one decides."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    lock = os.open(f"{home}/start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(lock)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in environ.items() if name not in ATTEMPT_VARIABLES}
    if environment.get("PYTHONPATH"):  # the master's working directory is another one
        folders = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)
    return environment


def _start_detached(words: Sequence[str], environment: Mapping[str, str], log: str) -> bytes:
    import subprocess

    if not sys.executable:
        raise Refused(
            "cannot start a master: this Python does not know its own path; run `lab-gpu server start`"
        )
    reading, writing = os.pipe()
    try:
        with open(log, "ab") as log_file:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _STEP_AWAY, *words, "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                env=dict(environment),
                pass_fds=(writing,),
                start_new_session=True,
                check=True,
            )
        os.close(writing)
        writing = -1
        return _line_from(reading)
    finally:
        for end in (reading, writing):
            if end >= 0:
                os.close(end)


def _line_from(reading: int) -> bytes:
    """The first line, or what came before the end; raises where nothing comes in time."""
    content, give_up_at = b"", time.monotonic() + READY_LIMIT_S
    ears = select.poll()
    ears.register(reading, select.POLLIN)
    while b"\n" not in content:
        left_s = give_up_at - time.monotonic()
        if left_s <= 0 or not ears.poll(left_s * 1000):
            raise Broken(f"cannot start a master: it was not ready within {READY_LIMIT_S:g} s; see its log")
        more = os.read(reading, 1 << 16)
        if not more:
            break
        content += more
    return content.partition(b"\n")[0]


def _understood(line: bytes, log: str, log_begin: int) -> dict[str, Any]:
    try:
        ready = loads(line)
    except ValueError:
        raise Broken(f"cannot start a master: {_last_words(log, log_begin)}; see {log}") from None
    if not isinstance(ready, dict):
        raise Broken(f"cannot start a master: it said {line[:80]!r}; see {log}")
    if ready.get("error") and "running" not in ready:
        raise _error_of(ready)
    return ready


def _error_of(ready: Mapping[str, Any]) -> LabGpuError:
    """The daemon names the exit code it would end with: the error is of the class that has it."""
    code = ready.get("exit")
    kinds = [kind for kind in BY_SLUG.values() if kind.exit_code == code]
    return (kinds[0] if kinds else LabGpuError)(str(ready["error"]))


def _last_words(log: str, begin: int) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(begin, os.path.getsize(log) - 4096))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"it ended at once: {lines[-1].strip()}" if lines else "it ended at once and said nothing"


def _gone(pid: object, limit_s: float) -> bool:
    """Wait for a process that need not be a child of ours."""
    if not isinstance(pid, int):
        return True
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel before 5.3
        return _gone_by_looking(pid, limit_s)
    try:
        ears = select.poll()
        ears.register(handle, select.POLLIN)
        return bool(ears.poll(limit_s * 1000))
    finally:
        os.close(handle)


def _gone_by_looking(pid: int, limit_s: float) -> bool:
    give_up_at = time.monotonic() + limit_s
    while is_alive(pid):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.02)
    return True

"""What /proc tells of a process. One that vanishes or may not be read is no error: the answer is None."""

from __future__ import annotations

import os
import re
import signal as signals
from dataclasses import dataclass

from lab_gpu.core.model import ProcessName

_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError, IsADirectoryError)
_SHELLS = frozenset(("bash", "sh", "rbash"))
SCRIPT_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    name: ProcessName
    state: str
    parent: int
    session: int
    layout: tuple[bytes, bytes]  # where code and stack begin: a fork has its parent's, a new program its own

    @property
    def dead(self) -> bool:
        return self.state in "ZX"


def content(path: str, limit: int = 65536) -> bytes | None:
    try:
        # A task may have put a pipe in the place of a file of its own: it must not keep us waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except _GONE:
        return None
    try:
        return _all_of(fd, limit)
    except (*_GONE, BlockingIOError):
        return None
    finally:
        os.close(fd)


def _all_of(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def boot_id() -> str:
    return (content("/proc/sys/kernel/random/boot_id") or b"unknown").decode().strip()


def stat(pid: int) -> Stat | None:
    text = content(f"/proc/{pid}/stat", 4096)
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    return Stat(
        ProcessName(pid, int(fields[19])),
        fields[0].decode(),
        int(fields[1]),
        int(fields[3]),
        (fields[23], fields[25]),
    )


def stat_of(process: ProcessName) -> Stat | None:
    """None too where the pid now belongs to another process."""
    now = stat(process.pid)
    return now if now is not None and now.name == process else None


def alive(process: ProcessName) -> bool:
    now = stat_of(process)
    return now is not None and not now.dead


def catches(pid: int, signal: int) -> bool:
    return bool(caught_mask(pid) >> (signal - 1) & 1)


def caught_mask(pid: int) -> int:
    found = re.search(rb"^SigCgt:\s*([0-9a-f]+)", content(f"/proc/{pid}/status") or b"", re.MULTILINE)
    return int(found[1], 16) if found else 0


def environment_value(pid: int, name: str) -> str | None:
    """From the environment it was started with."""
    text = content(f"/proc/{pid}/environ", 1 << 22)
    key = name.encode() + b"="
    for entry in (text or b"").split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode("utf-8", "replace")
    return None


def command_line(pid: int) -> tuple[str, ...]:
    text = content(f"/proc/{pid}/cmdline", 1 << 20) or b""
    return tuple(part.decode("utf-8", "replace") for part in text.split(b"\0")[:-1])


def program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except (OSError, ValueError):
        return None


def forked_from(child: Stat, ancestor: Stat) -> bool:
    """The same program in the same place in memory: it forked and started nothing of its own."""
    return child.layout == ancestor.layout and program(child.name.pid) == program(ancestor.name.pid)


def only_cleans_up(pid: int, signal: int) -> bool:
    """A bash with an EXIT trap catches every deadly signal, and dies of those it has no own trap for."""
    deadly = (signals.SIGHUP, signals.SIGUSR1, signals.SIGUSR2, signals.SIGXCPU, signals.SIGVTALRM)
    if os.path.basename(program(pid) or "") not in _SHELLS:
        return False
    if not all(catches(pid, each) for each in deadly):
        return False
    name = signals.Signals(signal).name.removeprefix("SIG")
    return re.search(rf"{name}|trap[^\n]*\s{signal}\b".encode(), _script_of(pid)) is None


def _script_of(pid: int) -> bytes:
    arguments = command_line(pid)
    if "-c" in arguments:
        return "\0".join(arguments).encode("utf-8", "replace")
    script = next((word for word in arguments[1:] if not word.startswith("-")), None)
    if script is None:
        return b""
    return content(os.path.join(f"/proc/{pid}/cwd", script), SCRIPT_LIMIT_BYTES) or b""

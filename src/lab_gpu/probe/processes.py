"""What /proc tells of the pids a driver names. A pid with no process behind it is not believed.

What cannot change in a process's life is read once for each (pid, start time), so that a reading costs one
small file for each process it has met before.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

UNI_ID = b"LAB_GPU_UNI_ID="
COMMAND_LIMIT = 200
ENVIRONMENT_LIMIT_BYTES = 4 * 1024 * 1024
ANCESTORS_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/<pid>/stat, as far as we need it. `uid` owns the process (root where it is not dumpable)."""

    name: bytes
    ended: bool  # a zombie: only its parent's interest keeps it in the list
    parent: int
    started: int
    uid: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process that exists. `started` 0: this host hides other users' processes, and it is one of them."""

    started: int
    owner: str | None = None
    command: str | None = None
    uni_id: str | None = None
    ancestors: tuple[tuple[int, int], ...] = ()


def read_stat(pid: int) -> Stat | None:
    """None where there is no such process, or where we may not see it."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line, uid = os.read(fd, 4096), os.fstat(fd).st_uid
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name stands in parentheses and may hold spaces and parentheses itself: count from the last one.
    opened, closed = line.find(b"("), line.rfind(b")")
    fields = line[closed + 2 :].split(None, 20)
    if opened < 0 or len(fields) < 20:
        return None
    return Stat(line[opened + 1 : closed], fields[0] in b"ZX", int(fields[1]), int(fields[19]), uid)


def exists_hidden(pid: int) -> bool:
    """Where /proc hides other users' processes (hidepid), only the kernel's refusal shows one."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def printable(text: str, limit: int = COMMAND_LIMIT) -> str:
    """Other people's words may hold anything; what we print must not steer a terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class UserNames:
    """Names of users, each looked up once: a directory service may take long to answer."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, uid: int) -> str:
        name = self._known.get(uid)
        if name is None:
            name = self._known[uid] = _user_name(uid)
        return name

    def remembered(self, uid: int) -> str:
        """Without asking anybody, for where nobody may be kept waiting."""
        return self._known.get(uid) or str(uid)


class ProcessTable:
    """All processes met on GPUs. `begin()` opens a reading and forgets whoever the last one did not meet."""

    def __init__(self) -> None:
        self._names = UserNames()
        self._known: dict[int, tuple[bytes, ProcessFacts, bool]] = {}
        self._met: dict[int, ProcessFacts | None] = {}

    def begin(self) -> None:
        self._known = {pid: known for pid, known in self._known.items() if self._met.get(pid) is not None}
        self._met = {}

    def look(self, pid: int) -> ProcessFacts | None:
        if pid not in self._met:
            self._met[pid] = self._look(pid)
        return self._met[pid]

    def _look(self, pid: int) -> ProcessFacts | None:
        stat = read_stat(pid)
        if stat is None:
            return ProcessFacts(started=0) if pid > 1 and exists_hidden(pid) else None
        name, facts, settled = self._known.get(pid, (b"", None, False))
        if facts is not None and settled and facts.started == stat.started and name == stat.name:
            return facts
        environment = _read(f"/proc/{pid}/environ", ENVIRONMENT_LIMIT_BYTES)
        facts = ProcessFacts(
            started=stat.started,
            owner=self._names.of(real_uid(pid, stat.uid)),
            command=_command(pid, stat.name),
            uni_id=_uni_id(environment or b""),
            ancestors=_ancestors(stat.parent),
        )
        # An empty environment is a process in the middle of exec; None is one we may never read.
        self._known[pid] = (stat.name, facts, environment != b"")
        return facts


def _read(path: str, limit_bytes: int) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            read = b""
            while len(read) < limit_bytes and (more := file.read(min(65536, limit_bytes - len(read)))):
                read += more
            return read
    except OSError:
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)


def real_uid(pid: int, otherwise: int) -> int:
    for line in (_read(f"/proc/{pid}/status", 4096) or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return otherwise


def _command(pid: int, name: bytes) -> str:
    words = (_read(f"/proc/{pid}/cmdline", 4096) or b"").rstrip(b"\0").replace(b"\0", b" ")
    return printable((words or b"[" + name + b"]").decode("utf-8", "replace"))


def _uni_id(environment: bytes) -> str | None:
    for entry in environment.split(b"\0"):
        if entry.startswith(UNI_ID):
            return entry[len(UNI_ID) :].decode("utf-8", "replace")
    return None


def _ancestors(parent: int) -> tuple[tuple[int, int], ...]:
    """Taken when the process is first met: later its parents may be gone, and their pids somebody else's."""
    line: list[tuple[int, int]] = []
    while parent > 1 and len(line) < ANCESTORS_LIMIT:
        stat = read_stat(parent)
        if stat is None:
            break
        line.append((parent, stat.started))
        parent = stat.parent
    return tuple(line)

"""One master's file in the claims directory: how it is named, written, and read without trusting its writer.

A file is believed only when it is a plain file that belongs to the user its name states, and that nobody else
may write. Whatever else lies there is passed over; opening it neither waits nor follows links.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

from lab_gpu.core.claims import Claim
from lab_gpu.core.ids import GpuUuid
from lab_gpu.probe.processes import exists_hidden, read_stat, real_uid

SIZE_LIMIT_BYTES = 1024 * 1024
CLAIMS_LIMIT = 4096
MIB_LIMIT = 1 << 32
UUID_LETTERS = 96
NAME = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})(?:-[0-9a-f]{8})?\.json")
TEMPORARY = re.compile(r"\.(\d{1,10})-(\d{1,10})-(\d{1,20})(?:-[0-9a-f]{8})?\.json\.[0-9a-f]{8}")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Master:
    """Whose file it is: a user, and the process that wrote it."""

    uid: int
    pid: int
    started: int

    @property
    def file_name(self) -> str:
        return f"{self.uid}-{self.pid}-{self.started}.json"

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.started, self.uid)


@dataclass(frozen=True, slots=True)
class Told:
    """What a file says. Claims of an earlier boot are of processes that are gone."""

    boot_id: str
    claims: tuple[Claim, ...]


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def master_of(name: str, pattern: re.Pattern[str] = NAME) -> Master | None:
    parts = pattern.fullmatch(name)
    return Master(*map(int, parts.groups())) if parts else None


def is_alive(pid: int, started: int, uid: int) -> bool:
    """Whether that very process still runs, and is one its claimant may speak for: root for anybody's."""
    seen = read_stat(pid)
    if seen is None:
        return exists_hidden(pid)
    if seen.started != started or seen.ended:
        return False
    # /proc shows a process that is not dumpable as root's: ask further before it is called somebody else's.
    return uid in (0, seen.uid) or (seen.uid == 0 and real_uid(pid, 0) == uid)


def read_believed(path: str, uid: int) -> bytes | None:
    """The file's content where it is what its name says it is."""
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and not found.st_mode & 0o022
        if not plain or found.st_uid != uid or found.st_size > SIZE_LIMIT_BYTES:
            return None
        content = os.read(fd, SIZE_LIMIT_BYTES + 1)
        return content if len(content) <= SIZE_LIMIT_BYTES else None
    except OSError:
        return None
    finally:
        os.close(fd)


def parse(content: bytes) -> Told | None:
    """None for anything but a whole and sensible document: half a claim is no claim."""
    try:
        document = loads(content)
        entries, boot = document["claims"], document["boot"]
        if not isinstance(boot, str) or not isinstance(entries, list) or len(entries) > CLAIMS_LIMIT:
            return None
        return Told(boot, tuple(_claim(entry) for entry in entries))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def document_of(boot: str, claims: Sequence[Claim]) -> bytes:
    entries = [{"gpu": c.gpu, "mib": c.mib, "pid": c.pid, "started": c.started} for c in claims]
    return dumps({"boot": boot, "claims": entries}).encode()


def write_new(path: str, content: bytes) -> None:
    """All or nothing, under a name nobody could foresee and block. Raises OSError, leaving nothing behind."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        if os.write(fd, content) != len(content):
            raise OSError(28, "No space left on device")
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _claim(entry: dict[str, Any]) -> Claim:
    gpu, mib, pid, started = entry["gpu"], entry["mib"], entry["pid"], entry["started"]
    if not isinstance(gpu, str) or not 0 < len(gpu) <= UUID_LETTERS:
        raise ValueError("gpu")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (mib, pid, started)):
        raise ValueError("number")
    if mib > MIB_LIMIT or pid < 1:
        raise ValueError("range")
    return Claim(GpuUuid(gpu), mib, pid, started)

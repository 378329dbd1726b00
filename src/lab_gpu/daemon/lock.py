"""One master per state directory: a lock that names host and boot. Another host's is never broken."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from lab_gpu.core.errors import Refused


class HomeTaken(Exception):
    """Another master has this home; `holder` is what its lock says of it."""

    def __init__(self, holder: dict[str, Any]) -> None:
        super().__init__("the home has a master")
        self.holder = holder


class HomeLock:
    def __init__(self, home: str, host: str, boot_id: str) -> None:
        self.path = os.path.join(home, "master.lock")
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read()
            os.close(self._fd)
            raise HomeTaken(holder) from None
        self._refuse_stranger(home, host)
        self._write({"host": host, "boot_id": boot_id, "pid": os.getpid()})

    def _refuse_stranger(self, home: str, host: str) -> None:
        """A file system may keep locks to each host: then only what is written here tells of another one's master."""
        holder = self._read()
        if holder.get("host") not in (None, host):
            os.close(self._fd)
            raise Refused(
                f"cannot start in {home}: the master of host {holder['host']} has it; stop it there,"
                f" or remove {self.path} if that host is gone for good"
            )

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(os.pread(self._fd, 4096, 0) or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, doc: dict[str, Any]) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(doc).encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

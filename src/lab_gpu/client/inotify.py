"""The kernel's word that a file has grown, by ctypes: no polling, nothing loaded while nobody follows."""

from __future__ import annotations

import ctypes
import os

IN_MODIFY = 0x2


class Watch:
    """`fileno()` gets readable when the open file was written to. OSError where the kernel gives no watch."""

    def __init__(self, file: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _last_error()
        # By descriptor, not by name: an older attempt's log is renamed while somebody may follow it.
        path = f"/proc/self/fd/{file}".encode()
        if self._libc.inotify_add_watch(self._fd, path, IN_MODIFY) < 0:
            error = _last_error()
            os.close(self._fd)
            raise error

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Forget what was told so far; to be called before the file is read."""
        try:
            while os.read(self._fd, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._fd)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))

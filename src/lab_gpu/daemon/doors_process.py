"""The doors as the loop holds them: a child process, one end of a socket pair, and a new child when it dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from lab_gpu.daemon.frames import BadFrame, Decoder, encode

READ_BYTES = 1 << 20
MOST_UNSENT_BYTES = 64 << 20
QUICK_DEATH_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0


class DoorsProcess:
    """Sockets that people connect to belong to the loop: while doors are being started, callers wait in line."""

    def __init__(self, listening: Sequence[socket.socket], settings: Callable[[], dict[str, Any]]) -> None:
        self._listening, self._settings = listening, settings
        self._link: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._decoder = Decoder()
        self._unsent = bytearray()
        self._born_at = 0.0
        self._pause_s = 0.0
        self.pidfd = -1

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    def start(self) -> None:
        mine, theirs = socket.socketpair()
        for end in (mine, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, READ_BYTES)
        fds = [each.fileno() for each in self._listening]
        command = [sys.executable, "-m", "lab_gpu.daemon.doors", "--link-fd", str(theirs.fileno())]
        for fd in fds:
            command += ["--listen-fd", str(fd)]
        self._child = subprocess.Popen(command, pass_fds=(theirs.fileno(), *fds), stdin=subprocess.DEVNULL)
        theirs.close()
        mine.setblocking(False)
        self._link, self._decoder, self._unsent = mine, Decoder(), bytearray()
        self.pidfd = os.pidfd_open(self._child.pid)
        self._born_at = time.monotonic()
        self.send({"settings": self._settings()})

    def died(self) -> float:
        """Doors that die right after their start are not started again in a tight circle."""
        quick = time.monotonic() - self._born_at < QUICK_DEATH_S
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * 2)) if quick else 0.0
        print(f"the doors process {self.pid} died; starting another one", file=sys.stderr, flush=True)
        self.close()
        return self._pause_s

    def close(self) -> None:
        if self._link:
            self._link.close()
            self._link = None
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self._child:
            self._end(self._child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """With their link gone they end by themselves; they are not waited for longer than a moment."""
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def fileno(self) -> int:
        return self._link.fileno() if self._link else -1

    def receive(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self._link is None:
            return found
        try:
            while more := self._link.recv(READ_BYTES):
                found += self._decoder.feed(more)
                if len(more) < READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except (ConnectionError, BadFrame):
            self._give_up()
        return found

    def _give_up(self) -> None:
        """A link that is of no more use ends its doors; their death is then seen like any other."""
        if self._child and self._child.poll() is None:
            self._child.kill()

    def send(self, frame: dict[str, Any]) -> None:
        if self._link is None:
            return  # nobody is there to hear it; new doors ask for what they need
        self._unsent += encode(frame)
        self.flush()
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self._give_up()

    def flush(self) -> None:
        """Sends what the doors can take now."""
        if self._link is None:
            return
        try:
            while self._unsent:
                sent = self._link.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, ConnectionError):
            pass

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

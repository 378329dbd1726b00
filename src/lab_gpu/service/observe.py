"""The one background reader of GPU facts. It sleeps until somebody wants a reading, and wakes the loop when it has one."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from lab_gpu.core.claims import OthersClaim
from lab_gpu.core.snapshot import HostFacts
from lab_gpu.service.ports import Claims, Probe

SAMPLE_S = 1.0
STUCK_S = 10.0
FRESH_S = 0.5  # a start on a real GPU wants a reading no older than this


class Observer:
    def __init__(self, probe: Probe, claims: Claims, wake: Callable[[], None]) -> None:
        self._probe, self._claims, self._wake = probe, claims, wake
        self._wanted = threading.Condition()
        self._asked = False
        self._closing = False
        self._reading_since: float | None = None
        self._reading: tuple[HostFacts, tuple[OthersClaim, ...]] | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        """Ask for a reading; the loop is woken when it is there. Asking twice before it is makes one reading."""
        with self._wanted:
            self._asked = True
            self._wanted.notify()

    def take(self) -> tuple[HostFacts, tuple[OthersClaim, ...]] | None:
        """The reading made since the last call, if any."""
        with self._wanted:
            reading, self._reading = self._reading, None
            return reading

    def read_now(self) -> tuple[HostFacts, tuple[OthersClaim, ...]]:
        """In the caller's own thread: for the start, before the reader runs."""
        return self._read()

    def close(self) -> None:
        with self._wanted:
            self._closing = True
            self._wanted.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        self._probe.close()

    def _run(self) -> None:
        while self._wait():
            self._reading_since = time.monotonic()
            reading = self._read()
            self._reading_since = None
            with self._wanted:
                self._reading = reading
            self._wake()

    def _read(self) -> tuple[HostFacts, tuple[OthersClaim, ...]]:
        """Whatever goes wrong in a driver is a problem to show, never the end of reading."""
        try:
            return self._probe.read(), self._claims.others()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            problem = f"cannot read the GPUs: {error or type(error).__name__}; look at `nvidia-smi`"
            return HostFacts(time.time(), "none", problem=problem), ()

    def stuck_s(self) -> float:
        """How long a reading has been under way, where it takes longer than any healthy driver."""
        since = self._reading_since
        took = time.monotonic() - since if since is not None else 0.0
        return took if took > STUCK_S else 0.0

    def _wait(self) -> bool:
        with self._wanted:
            while not self._asked and not self._closing:
                self._wanted.wait()
            self._asked = False
            return not self._closing

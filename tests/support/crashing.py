"""A master that dies by SIGKILL the n-th time it reaches a labelled point: CRASH_AT=label:n."""

from __future__ import annotations

import os
import signal
import sys

from lab_gpu.service import points

LABEL, _, COUNT = os.environ["CRASH_AT"].partition(":")
LEFT = [int(COUNT or 1)]


def reached(label: str) -> None:
    if label == LABEL:
        LEFT[0] -= 1
        if LEFT[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


points.reached = reached

if __name__ == "__main__":
    from lab_gpu.daemon.main import main

    sys.exit(main())

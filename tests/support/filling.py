"""A master whose disk is full from the n-th time on that it reaches a labelled point: FILL_AT=label:n, FILLER=path."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from lab_gpu.daemon.main import main
from lab_gpu.service import points


def fill(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def fill_at(wanted: str, count: int, path: str) -> Callable[[str], None]:
    left = [count]

    def reached(label: str) -> None:
        if label == wanted:
            left[0] -= 1
            if left[0] == 0:
                fill(path)

    return reached


if __name__ == "__main__":
    label, _, count = os.environ["FILL_AT"].partition(":")
    points.reached = fill_at(label, int(count or 1), os.environ["FILLER"])
    sys.exit(main())

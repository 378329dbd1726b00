"""What every test may count on."""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Iterator

import pytest

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def orphans_do_not_come_to_us() -> Iterator[None]:
    """An engine makes its process the reaper of orphans; the next test shall not inherit that."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def pytest_sessionfinish() -> None:
    """A master that a test killed leaves the empty cgroups of its attempts to the next one; here none follows."""
    for path in glob.glob("/sys/fs/cgroup/**/lab-gpu-*", recursive=True):
        try:
            os.rmdir(path)
        except OSError:
            pass  # something lives in it: it is not ours

"""What every test may count on."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def orphans_do_not_come_to_us() -> Iterator[None]:
    """An engine makes its process the reaper of orphans; the next test shall not inherit that."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

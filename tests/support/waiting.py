"""The one way a test waits for the world outside it: for a condition, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0


def wait_until(
    condition: Callable[[], Any], what: str = "it did not come to that", patience_s: float = PATIENCE_S
) -> Any:
    """What `condition` answers once it is true."""
    end = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.005)

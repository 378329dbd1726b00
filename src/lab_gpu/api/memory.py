"""Gives the memory of a large request back, so that a quiet master is a small one again."""

from __future__ import annotations

import asyncio
import gc

_QUIET_S = 1.0
_due: asyncio.TimerHandle | None = None


def give_back_soon() -> None:
    """Once, when no large request has come for a moment."""
    global _due
    if _due is not None:
        _due.cancel()
    _due = asyncio.get_running_loop().call_later(_QUIET_S, _give_back)


def _give_back() -> None:
    # Loaded here because most masters never see a large request.
    import ctypes

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not and needs none
    if trim is not None:
        trim(0)

"""Somebody set this host's clock: what waits for a moment waits as long as before, not an hour more or less."""

from __future__ import annotations

import time
from dataclasses import replace

from lab_gpu.core.stop_steps import Sent
from lab_gpu.service.gpu_book import Holder
from lab_gpu.service.house import House, Live

SMALLEST_STEP_S = 2.0  # less is a clock being kept right


class ClockWatch:
    """Tells a step by the clock that nobody can set."""

    def __init__(self) -> None:
        self._gap_s = time.time() - time.monotonic()

    def step_s(self) -> float:
        """By how much the clock was set since the last call; 0 where it was not."""
        gap_s = time.time() - time.monotonic()
        step_s, self._gap_s = gap_s - self._gap_s, gap_s
        return step_s if abs(step_s) >= SMALLEST_STEP_S else 0.0


def shift(house: House, step_s: float) -> None:
    """Moves every deadline that only memory holds. What people named by the clock, as `--begin`, stays."""
    for live in house.live.values():
        _shift_attempt(live, step_s)
    for holder in house.book.holders.values():
        _shift_holder(holder, step_s)
    for ident, lease in house.leases.items():
        if lease.expires_at is not None:
            house.leases[ident] = replace(lease, expires_at=lease.expires_at + step_s)
    house.book.shift(step_s)
    house.planned_at += step_s
    house.changed = True


def _shift_attempt(live: Live, step_s: float) -> None:
    live.limit_at = moved(live.limit_at, step_s)
    live.stop_began_at = moved(live.stop_began_at, step_s)
    live.stop_due = moved(live.stop_due, step_s)
    live.sweep_began_at = moved(live.sweep_began_at, step_s)
    live.sent, live.swept = _shift_sent(live.sent, step_s), _shift_sent(live.swept, step_s)


def _shift_holder(holder: Holder, step_s: float) -> None:
    holder.ends_at = moved(holder.ends_at, step_s)
    holder.limit_at = moved(holder.limit_at, step_s)


def _shift_sent(sent: Sent, step_s: float) -> Sent:
    return Sent(moved(sent.soft_at, step_s), moved(sent.term_at, step_s), moved(sent.kill_at, step_s))


def moved(at: float | None, step_s: float) -> float | None:
    return None if at is None else at + step_s

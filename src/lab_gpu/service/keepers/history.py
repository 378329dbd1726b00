"""Forgets what ended long ago, where the policy says so, and the answers kept for repeated requests."""

from __future__ import annotations

from collections.abc import Callable

from lab_gpu.store.ledger import Ledger

DAY_S = 86400.0
ANSWERS_KEPT_S = 7 * DAY_S
AT_ONCE = 200
MORE_SOON_S = 1.0
LOOK_AGAIN_S = 3600.0


class HistoryKeeper:
    """`remove` takes away an attempt's log and folder before its row goes."""

    def __init__(
        self,
        ledger: Ledger,
        keep_days: Callable[[], float | None],
        remove: Callable[[str, str], None],
    ) -> None:
        self._ledger, self._keep_days, self._remove = ledger, keep_days, remove

    def run_once(self, now: float) -> float | None:
        """Inside the open transaction."""
        self._ledger.forget_answers(now - ANSWERS_KEPT_S)
        days = self._keep_days()
        if days is None:
            return now + LOOK_AGAIN_S
        old = self._ledger.ended_before(now - days * DAY_S, AT_ONCE)
        for task in old:
            for log_path, directory in self._ledger.attempts.files_of(task):
                self._remove(log_path, directory)
            self._ledger.forget_task(task)
        return now + (MORE_SOON_S if len(old) == AT_ONCE else LOOK_AGAIN_S)

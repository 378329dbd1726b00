"""What becomes due by time alone, and when to wake for it: nothing wakes without a reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from lab_gpu.service import declare, leasing
from lab_gpu.service.clock_steps import moved
from lab_gpu.service.house import House, Live
from lab_gpu.service.observe import SAMPLE_S
from lab_gpu.service.ports import Keeper
from lab_gpu.service.settle import look_again
from lab_gpu.service.stop import begin_stop, go_on

FIRST_LOG_LOOK_S = 5.0
FIRST_CLEANING_S = 60.0


class Timers:
    def __init__(self, house: House, log_keeper: Keeper, cleaners: Sequence[Keeper]) -> None:
        """`cleaners` look after what has ended."""
        self._house = house
        self._log_keeper = log_keeper
        self._logs_due: float | None = None
        self._cleaning_due: dict[Keeper, float | None] = dict.fromkeys(cleaners, house.now + FIRST_CLEANING_S)
        self._sampled_at = 0.0
        self._quiet_since: float | None = None

    def shift(self, step_s: float) -> None:
        self._logs_due = moved(self._logs_due, step_s)
        self._cleaning_due = {each: moved(due, step_s) for each, due in self._cleaning_due.items()}
        self._quiet_since = moved(self._quiet_since, step_s)
        self._sampled_at += step_s

    def is_due(self) -> bool:
        due = self.next_due()
        return due is not None and due <= self._house.now

    def next_due(self) -> float | None:
        house = self._house
        dues = [
            house.projection.next_due(),
            None if house.standing.manual_tick else house.plan.due_at,  # no pass would follow
            self._reservation_due(),
            self._sample_due(),
            self._idle_due(),
            min((lease.expires_at for lease in house.leases.values() if lease.expires_at), default=None),
            min((due for live in house.live.values() if (due := _attempt_due(house, live))), default=None),
            self._log_look_due(),
            *self._cleaning_due.values(),
        ]
        return min((due for due in dues if due is not None), default=None)

    def run_due(self) -> None:
        house, now = self._house, self._house.now
        dues = (house.plan.due_at, self._reservation_due())
        if house.projection.wake_due(now) or any(due is not None and due <= now for due in dues):
            house.changed = True
        leasing.expire(house)
        for live in list(house.live.values()):
            self._attempt(live, now)
        sample_due = self._sample_due()
        if sample_due is not None and sample_due <= now:
            self._sampled_at = now
            house.observer.want()
            declare.set_aside_unreleased(house)
        self._keep(now)

    def _attempt(self, live: Live, now: float) -> None:
        if live.stop_due is not None and live.stop_due <= now:
            live.stop_due = None
            if live.runner_gone:
                look_again(self._house, live)
            else:
                self._house.after_commit.append(lambda: go_on(self._house, live))
        if live.stop_began_at is not None:
            return
        if live.limit_at is not None and live.limit_at <= now and _kills(self._house, live):
            begin_stop(self._house, live, "time_limit", "its time limit")
        elif live.spec.no_output_limit_s and _silent_until(live, live.spec.no_output_limit_s) <= now:
            begin_stop(self._house, live, "no_output", "its no-output limit")

    def _reservation_due(self) -> float | None:
        """A holder that outlives what was foreseen may be made to give way: the plan has to be looked at then."""
        house = self._house
        reservation = house.plan.reservation
        if not house.policy.preemption or reservation is None or reservation.at is None:
            return None
        return reservation.at if reservation.at > house.planned_at else None

    def _sample_due(self) -> float | None:
        """GPU use is sampled only while somebody could be helped or hurt by it."""
        house = self._house
        if not house.book.has_real:
            return None
        if not (house.projection.tasks or house.leases or house.outside or house.book.unreleased):
            return None
        return self._sampled_at + SAMPLE_S

    def _keep(self, now: float) -> None:
        logs_due = self._log_look_due()
        if logs_due is not None and logs_due <= now:
            self._logs_due = self._log_keeper.run_once(now)
        for cleaner, due in self._cleaning_due.items():
            if due is not None and due <= now:
                self._cleaning_due[cleaner] = cleaner.run_once(now)

    def _log_look_due(self) -> float | None:
        """Logs grow only while something runs."""
        if not self._house.live or not self._house.policy.log_max_mib:
            self._logs_due = None
        elif self._logs_due is None:
            self._logs_due = self._house.now + FIRST_LOG_LOOK_S
        return self._logs_due

    def _idle_due(self) -> float | None:
        if not self._house.standing.autostarted or self._busy():
            self._quiet_since = None
            return None
        if self._quiet_since is None:
            self._quiet_since = self._house.now
        return self._quiet_since + self._house.policy.idle_exit_s

    def _busy(self) -> bool:
        return bool(self._house.projection.tasks or self._house.leases or self._house.outside)

    def stop_when_idle(self, stop: Callable[[], None]) -> None:
        """A master that nobody asked for ends when nobody needs it."""
        due = self._idle_due()
        if due is not None and due <= self._house.now:
            stop()


def _kills(house: House, live: Live) -> bool:
    return live.spec.kill_at_limit or house.policy.enforce_time_limit


def _attempt_due(house: House, live: Live) -> float | None:
    dues = [live.stop_due] if live.stop_due is not None else []
    if live.stop_began_at is None:
        if live.limit_at is not None and _kills(house, live):
            dues.append(live.limit_at)
        if live.spec.no_output_limit_s:
            dues.append(_silent_until(live, live.spec.no_output_limit_s))
    return min(dues, default=None)


def _silent_until(live: Live, limit_s: float) -> float:
    """When it will have been silent too long: its log's last change, or its start, and the limit."""
    try:
        last = os.stat(live.log_path).st_mtime
    except OSError:
        last = 0.0
    return max(last, live.started_at or 0.0) + limit_s

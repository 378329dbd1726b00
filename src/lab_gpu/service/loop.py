"""The loop: settle, stop, observe, plan, commit, launch, sleep until woken. It alone touches engines and attempts.

It never polls: exits, orders, readings and due times wake it, and what arrives together shares one commit.
"""

from __future__ import annotations

import os
import select
import sqlite3
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab_gpu.core.errors import Broken, LabGpuError
from lab_gpu.core.ids import AttemptId, LeaseId, TaskId
from lab_gpu.core.model import ProcessName
from lab_gpu.service import declare, leasing, outside, points, settle
from lab_gpu.service.clock_steps import ClockWatch, moved, shift
from lab_gpu.service.house import House, Live
from lab_gpu.service.operations import OPERATIONS, READS
from lab_gpu.service.planning import arm_next, run_pass
from lab_gpu.service.ports import Doors
from lab_gpu.service.recover import restore
from lab_gpu.service.start import note_begun, start_launched, write_begun
from lab_gpu.service.timers import Timers
from lab_gpu.wire.inside import Caller

RETRY_WRITE_S = 2.0
MISHAPS_MOST = 5


class OrderBroke(Exception):
    """An order met a mistake of our own half way: what it had written by then must not stay."""


@dataclass(slots=True)
class Awake:
    """What woke the loop this time."""

    orders: list[dict[str, Any]] = field(default_factory=list)
    exits: list[tuple[str, int]] = field(default_factory=list)
    doors_died: bool = False
    readings: bool = False


class Loop:
    def __init__(self, house: House, doors: Doors, wake_fd: int, timers: Timers) -> None:
        self._house, self._doors, self._timers = house, doors, timers
        self._wake_fd = wake_fd
        self._poll = select.epoll()
        self._watched: dict[int, tuple[str, int]] = {}
        self._told = (-1, -1, -1)
        self._stopping = False
        self._clock = ClockWatch()
        self._write_again_at: float | None = None
        self._doors_again_at: float | None = None
        self._doors_full = False
        self._unwritten: list[tuple[str, int]] = []
        self._unwatched: list[tuple[str, int, ProcessName]] = []
        self._watch_again_at: float | None = None
        self._lives_before: dict[AttemptId, Live] = {}
        self._passes_armed_for = 0
        self._mishaps = 0
        self._poll.register(wake_fd, select.EPOLLIN)
        house.watch = self.watch

    def stop(self) -> None:
        self._stopping = True

    def watch(self, kind: str, ident: int, process: ProcessName) -> None:
        """Wakes the loop when this process ends; at once where it is gone already."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._unwritten.append((kind, ident))
            return
        except OSError as error:  # no descriptor to be had just now: its end must not be missed
            print(f"cannot watch process {process.pid}: {error}; trying again", file=sys.stderr, flush=True)
            self._unwatched.append((kind, ident, process))
            self._watch_again_at = self._house.now + RETRY_WRITE_S
            return
        fresh = kind == "attempt" and not self._house.live[TaskId(ident)].adopted
        if not fresh and not self._house.engine.alive(process):  # a child not yet reaped cannot be another
            os.close(fd)
            self._unwritten.append((kind, ident))
            return
        self._watched[fd] = (kind, ident)
        self._poll.register(fd, select.EPOLLIN)

    def attach_doors(self) -> None:
        self._doors_full = False
        self._poll.register(self._doors.fileno(), select.EPOLLIN)
        if self._doors.pidfd >= 0:
            self._poll.register(self._doors.pidfd, select.EPOLLIN)

    def run(self) -> None:
        self.attach_doors()
        self._turn(Awake())  # what recovery found is planned now: nobody else may wake us for long
        while not self._stopping:
            self._turn(self._sleep())
        self._house.launcher.revoke_all(write=False)

    # --- waking --------------------------------------------------------------------------------

    def _sleep(self) -> Awake:
        awake = Awake()
        ready = self._poll.poll(self._timeout_s())
        self._follow_clock()
        for fd, _ in ready:
            self._sort(fd, awake)
        if self._watch_again_at is not None and self._watch_again_at <= self._house.now:
            self._watch_again()
        awake.exits.extend(self._unwritten)
        self._unwritten = []
        return awake

    def _watch_again(self) -> None:
        waiting, self._unwatched, self._watch_again_at = self._unwatched, [], None
        for kind, ident, process in waiting:
            if kind != "attempt" or TaskId(ident) in self._house.live:
                self.watch(kind, ident, process)

    def _follow_clock(self) -> None:
        step_s = self._clock.step_s()
        if step_s:
            shift(self._house, step_s)
            self._timers.shift(step_s)
            self._write_again_at = moved(self._write_again_at, step_s)
            self._doors_again_at = moved(self._doors_again_at, step_s)
            self._watch_again_at = moved(self._watch_again_at, step_s)

    def _timeout_s(self) -> float | None:
        if self._unwritten and self._write_again_at is None:
            return 0
        dues = (
            self._timers.next_due(),
            self._write_again_at,
            self._doors_again_at,
            self._watch_again_at,
        )
        due = min((each for each in dues if each is not None), default=None)
        return None if due is None else max(0.0, due - self._house.now)

    def _sort(self, fd: int, awake: Awake) -> None:
        if fd == self._wake_fd:
            os.read(fd, 4096)
            awake.readings = True
        elif fd == self._doors.pidfd:
            awake.doors_died = True
        elif fd == self._doors.fileno():
            self._doors.flush()
            awake.orders.extend(self._doors.receive())
        elif fd in self._watched:
            self._poll.unregister(fd)
            os.close(fd)
            awake.exits.append(self._watched.pop(fd))

    # --- one turn ------------------------------------------------------------------------------

    def _turn(self, awake: Awake) -> None:
        house = self._house
        answers: list[tuple[int, Any]] = []
        if self._only_reads(awake):
            answers = [(order["n"], self._try(order)) for order in awake.orders]
        else:
            answers = self._write(awake)
        for number, answer in answers:
            self._doors.send(_frame(number, self._late(answer)))
        if awake.doors_died:
            self._doors_again_at = house.now + self._forget_doors()
        if self._doors_again_at is not None and self._doors_again_at <= house.now:
            self._restart_doors()
        if (house.begun and self._write_again_at is None) or house.passes != self._passes_armed_for:
            self._passes_armed_for = house.passes
            self._afterwards()
        self._push()
        self._timers.stop_when_idle(self.stop)

    def _only_reads(self, awake: Awake) -> bool:
        house = self._house
        return not (
            awake.exits
            or awake.readings
            or house.changed
            or self._timers.is_due()
            or (self._write_again_at is not None and self._write_again_at <= house.now)
            or any(order["op"] not in READS for order in awake.orders)
        )

    def _write(self, awake: Awake) -> list[tuple[int, Any]]:
        """All of this turn's writes in one transaction. Should it fail, nothing of it has happened."""
        house = self._house
        self._lives_before = {live.id: live for live in house.live.values()}
        try:
            with house.ledger.database.transaction():
                answers = self._steps(awake)
            if awake.exits:
                points.reached("end_committed")
            if awake.orders:
                points.reached("orders_committed")
        except Exception as error:
            self._undo(awake, error)
            broken = _broken(error)
            return [(order["n"], self._read_or(order, broken)) for order in awake.orders]
        self._write_again_at, self._mishaps = None, 0
        start_launched(house)
        callbacks, house.after_commit = house.after_commit, []
        for callback in callbacks:
            _safely(callback)
        return answers

    def _steps(self, awake: Awake) -> list[tuple[int, Any]]:
        house = self._house
        for kind, ident in awake.exits:
            self._settle(kind, ident)
        answers = [(order["n"], self._try(order)) for order in awake.orders]
        if awake.orders:
            points.reached("orders_written")
        if awake.readings:
            self._observe()
        self._timers.run_due()
        if house.changed and not house.standing.manual_tick:
            run_pass(house)
            points.reached("launch_written")
        return answers

    def _settle(self, kind: str, ident: int) -> None:
        if kind == "attempt":
            settle.runner_ended(self._house, TaskId(ident))
        elif kind == "stray":
            settle.stray_ended(self._house, TaskId(ident))
        elif kind == "lease":
            leasing.process_ended(self._house, LeaseId(ident))
        else:
            outside.process_ended(self._house, AttemptId(ident))

    def _observe(self) -> None:
        reading = self._house.observer.take()
        if reading is None:
            return
        self._house.readings += 1
        if self._house.book.read(*reading) or self._house.pass_after_reading:
            self._house.changed = True
        self._house.pass_after_reading = False
        declare.set_aside_unreleased(self._house)

    def _try(self, order: dict[str, Any]) -> Any:
        """An order's answer, or the error that is its answer."""
        try:
            who = Caller(**order["who"])
            return OPERATIONS[order["op"]](self._house, who, order.get("args") or {})
        except LabGpuError as error:
            return error
        except sqlite3.Error:
            raise
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if order.get("op") not in READS:
                raise OrderBroke from None
            return Broken(f"cannot do {order.get('op')}: an error of Lab-GPU's own; its log has the details")

    def _read_or(self, order: dict[str, Any], broken: Broken) -> Any:
        """Who only looks is answered also where nothing can be written."""
        try:
            return self._try(order) if order["op"] in READS else broken
        except sqlite3.Error:
            return broken

    def _late(self, answer: Any) -> Any:
        """Some answers are read off only after the pass that followed the order."""
        if not callable(answer):
            return answer
        try:
            return answer()
        except LabGpuError as error:
            return error

    def _undo(self, awake: Awake, error: Exception) -> None:
        """Nothing of this turn happened: what we remember is read anew, what ended is settled again a little later.

        A full disk may stay full for long. A mistake of our own that comes back each time ends this process,
        so that a new one starts from the ledger.
        """
        house = self._house
        told = isinstance(error, OrderBroke)
        refused = told or isinstance(error, sqlite3.OperationalError)
        if (self._write_again_at is None and not told) or not refused:  # it is told once, not at each try
            traceback.print_exc(file=sys.stderr)
        self._mishaps += not refused
        if self._mishaps > MISHAPS_MOST:
            raise error
        house.after_commit.clear()
        house.begun.clear()
        for _, ready in house.to_start:
            house.engine.revoke(ready.armed)
        house.to_start.clear()
        house.launcher.revoke_all(write=False)
        restore(house, self._lives_before)
        self._unwritten.extend(awake.exits)
        self._write_again_at = house.now if told else house.now + RETRY_WRITE_S

    def _afterwards(self) -> None:
        """What no GPU waits for: note who began, make the next ones ready."""
        house = self._house
        try:
            with house.ledger.database.transaction():
                write_begun(house)
                points.reached("begun_written")
                if not house.standing.manual_tick:
                    arm_next(house)
                points.reached("armed")
            note_begun(house)
            points.reached("armed_committed")
        except Exception:  # what is made beforehand can wait: it is made when its turn comes
            traceback.print_exc(file=sys.stderr)
            house.launcher.revoke_all(write=False)
            self._write_again_at = house.now + RETRY_WRITE_S

    def _forget_doors(self) -> float:
        for fd in (self._doors.fileno(), self._doors.pidfd):
            if fd >= 0:
                self._poll.unregister(fd)
        return self._doors.died()

    def _restart_doors(self) -> None:
        self._doors_again_at = None
        try:
            self._doors.start()
        except OSError as error:  # no process or descriptor to be had just now
            print(f"cannot start the doors: {error}; trying again", file=sys.stderr, flush=True)
            self._doors_again_at = self._house.now + RETRY_WRITE_S
            return
        self.attach_doors()
        self._told = (-1, -1, -1)

    def _push(self) -> None:
        house = self._house
        now = (house.ledger.newest_event, house.passes, house.readings)
        if now != self._told:
            self._told = now
            self._doors.send({"push": {"commit": now[0], "pass": now[1], "facts": now[2]}})
        if self._doors.has_unsent != self._doors_full and self._doors.fileno() >= 0:
            self._doors_full = self._doors.has_unsent
            wanted = select.EPOLLIN | (select.EPOLLOUT if self._doors_full else 0)
            self._poll.modify(self._doors.fileno(), wanted)


def _safely(callback: Callable[[], None]) -> None:
    """What follows a commit cannot undo it: a failure is told, and the others are done all the same."""
    try:
        callback()
    except Exception:
        traceback.print_exc(file=sys.stderr)


def _broken(error: Exception) -> Broken:
    if isinstance(error, sqlite3.OperationalError):
        return Broken(f"cannot write to the database: {error}; free some disk space and send it again")
    return Broken("cannot do that: an error of Lab-GPU's own, its log has the details; nothing was changed")


def _frame(number: int, answer: Any) -> dict[str, Any]:
    if isinstance(answer, LabGpuError):
        fault = {"slug": answer.slug, "text": str(answer), "problems": list(answer.problems)}
        return {"n": number, "fault": fault}
    return {"n": number, "ok": answer}

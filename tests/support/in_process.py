"""A house without processes: the real ledger, planner and rooms; only the engine, the probe and the clock are pretended."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab_gpu.core.attempts import Armed, Begun, ExitRecord, GpuLine, LaunchFailed, LaunchOrder, Whereabouts
from lab_gpu.core.documents import new_task_to_doc
from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import NewTask, ProcessName, Request
from lab_gpu.core.snapshot import HostFacts
from lab_gpu.service import settle
from lab_gpu.service.gpu_book import GpuBook
from lab_gpu.service.house import House, Standing
from lab_gpu.service.launch import Launcher
from lab_gpu.service.log_names import LogNames
from lab_gpu.service.observe import Observer
from lab_gpu.service.operations import OPERATIONS
from lab_gpu.service.planning import arm_next, run_pass
from lab_gpu.service.projection import Projection
from lab_gpu.service.recover import recover
from lab_gpu.service.start import note_begun, start_launched, write_begun
from lab_gpu.store.database import Database
from lab_gpu.store.ledger import Ledger
from lab_gpu.wire.inside import Caller

ALICE = Caller(uid=1000, user="alice")


@dataclass
class PretendAttempt:
    order: LaunchOrder
    process: ProcessName
    begun: bool = False
    code: int | None = None
    alive: bool = True


@dataclass
class PretendHost:
    """What outlives a master: the processes it started and what they left on disk."""

    attempts: dict[str, PretendAttempt] = field(default_factory=dict)
    runs: list[TaskId] = field(default_factory=list)
    pids: Any = field(default_factory=lambda: itertools.count(100))
    refuse_next: bool = False


class PretendEngine:
    """Implements the Engine port over a PretendHost."""

    boot_id = "boot"

    def __init__(self, host: PretendHost) -> None:
        self.host = host

    def arm(self, order: LaunchOrder) -> Armed:
        if self.host.refuse_next:
            self.host.refuse_next = False
            raise LaunchFailed("cannot write the log: the disk is full; use --log-root")
        process = ProcessName(next(self.host.pids), 1)
        self.host.attempts[order.directory] = PretendAttempt(order, process)
        return Armed(order, process, 0)

    def start(self, armed: Armed, line: GpuLine) -> None:
        attempt = self.host.attempts[armed.order.directory]
        attempt.begun = True
        self.host.runs.append(armed.order.task)

    def revoke(self, armed: Armed) -> None:
        attempt = self.host.attempts.get(armed.order.directory)
        if attempt and not attempt.begun:
            del self.host.attempts[armed.order.directory]

    def reap(self, process: ProcessName) -> None: ...

    def has_folder(self, directory: str) -> bool:
        return True

    def exit_record(self, directory: str) -> ExitRecord | None:
        attempt = self.host.attempts.get(directory)
        return ExitRecord(attempt.code, 0.0) if attempt and attempt.code is not None else None

    def begun(self, directory: str) -> Begun | None:
        attempt = self.host.attempts.get(directory)
        return Begun(attempt.process, self.boot_id, 0.0) if attempt and attempt.begun else None

    def bar(self, directory: str) -> bool:
        attempt = self.host.attempts.get(directory)
        return attempt is None or not attempt.begun

    def find(self, directory: str, uni_id: str, runner: ProcessName | None) -> Whereabouts:
        attempt = self.host.attempts.get(directory)
        alive = bool(attempt and attempt.begun and attempt.alive)
        return Whereabouts(self.begun(directory), self.exit_record(directory), alive)

    def tree(self, *_: Any) -> tuple[ProcessName, ...]:
        return ()

    def confirm(self, uni_id: str) -> None: ...

    def close_report(self, directory: str, record: ExitRecord) -> None: ...

    def is_empty(self, uni_id: str) -> bool:
        return True

    def strays(self, known: Sequence[int]) -> tuple[ProcessName, ...]:
        return ()

    def kill(self, *_: Any) -> None: ...

    def alive(self, process: ProcessName) -> bool:
        return any(each.process == process and each.alive for each in self.host.attempts.values())

    def send(self, process: ProcessName, signal: int) -> bool:
        return True

    def catchers(self, processes: Sequence[ProcessName], signal: int) -> tuple[ProcessName, ...]:
        return ()


class NoProbe:
    def read(self) -> HostFacts:
        return HostFacts(0.0, "none")

    def close(self) -> None: ...


class NoClaims:
    def others(self) -> tuple[()]:
        return ()

    def exchange(self, mine: Any, fits: Any) -> bool:
        return bool(fits(()))

    def publish(self, mine: Any) -> None: ...


class PretendHouse:
    """One master's life over a database file; `crash` ends it and the next one takes over."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.now = 1_000_000.0
        self.host = PretendHost()
        self.house: House
        self.database: Database
        self._open()

    def _open(self) -> None:
        self.database = Database(f"{self.folder}/lab-gpu.db")
        ledger = Ledger(self.database)
        engine = PretendEngine(self.host)
        book = GpuBook("host", lambda: self.now)
        logs = LogNames(self.folder, "alice", "host")
        launcher = Launcher(ledger, engine, logs, self.folder, lambda: self.house.policy)
        self.house = House(
            ledger=ledger,
            projection=Projection(ledger),
            book=book,
            engine=engine,
            launcher=launcher,
            observer=Observer(NoProbe(), NoClaims(), lambda: None),
            claims=NoClaims(),
            clock=lambda: self.now,
            standing=_standing(self.folder),
        )
        with self.database.transaction():
            recover(self.house)
        self._after()

    def _after(self) -> None:
        start_launched(self.house)
        callbacks, self.house.after_commit = self.house.after_commit, []
        for callback in callbacks:
            callback()

    def order(self, op: str, **args: Any) -> Any:
        with self.database.transaction():
            answer = OPERATIONS[op](self.house, ALICE, args)
        self._after()
        return answer() if callable(answer) else answer

    def submit(self, *tasks: NewTask) -> list[int]:
        return list(self.order("add_tasks", tasks=[new_task_to_doc(task) for task in tasks])["ids"])

    def step(self) -> None:
        """A turn of the loop: what is due, a pass, launches, what is made beforehand."""
        house = self.house
        self.plan_and_launch()
        with self.database.transaction():
            write_begun(house)
            arm_next(house)
        note_begun(house)

    def plan_and_launch(self) -> None:
        with self.database.transaction():
            self.house.projection.wake_due(self.now)
            run_pass(self.house)
        self._after()

    def end(self, task: int, code: int) -> None:
        """The task's command ends."""
        live = self.house.live[TaskId(task)]
        attempt = self.host.attempts[live.directory]
        attempt.code, attempt.alive = code, False
        with self.database.transaction():
            settle.runner_ended(self.house, TaskId(task))
        self._after()

    def crash(self, ended: dict[int, int] | None = None) -> None:
        """The master is gone without a word; tasks of `ended` end while nobody looks."""
        running = {live.task: live.directory for live in self.house.live.values()}
        for task, code in (ended or {}).items():
            attempt = self.host.attempts[running[TaskId(task)]]
            attempt.code, attempt.alive = code, False
        self.database.close()
        self._open()

    def close(self) -> None:
        self.database.close()


@contextmanager
def failing_commit(pretend: PretendHouse) -> Any:
    """Every transaction inside fails as on a full disk."""
    database = pretend.database
    real = database.commit

    def full() -> None:
        database.rollback()
        raise sqlite3.OperationalError("database or disk is full")

    database.commit = full  # type: ignore[method-assign]
    try:
        yield
    finally:
        database.commit = real  # type: ignore[method-assign]


def _standing(folder: str) -> Standing:
    return Standing(
        home=folder,
        host="127.0.0.1",
        hostname="host",
        owner="alice",
        owner_uid=1000,
        pid=1,
        version="0",
        started_at=0.0,
        epoch=1,
        socket="",
        url=None,
        log="",
        policy_path=None,
        manual_tick=False,
        autostarted=False,
        utc_offset_s=lambda now: 0.0,
    )


def a_task(command: str = "true", request: Request | None = None, **fields: Any) -> NewTask:
    return NewTask(
        owner="alice", uid=1000, command=command, workdir="/", request=request or Request(), **fields
    )

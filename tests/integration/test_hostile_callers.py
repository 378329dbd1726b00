"""Callers that say nothing, ask for too much or trip over a mistake of ours: others are served, nothing is half done."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab_gpu.core.documents import new_task_to_doc
from lab_gpu.core.errors import Broken, Refused
from lab_gpu.core.model import ProcessName
from lab_gpu.service import admit, operations
from lab_gpu.service.house import House
from lab_gpu.service.keepers.logs import LogKeeper
from lab_gpu.service.loop import Awake, Loop
from lab_gpu.service.timers import Timers
from lab_gpu.wire.inside import Caller
from tests.support.in_process import ALICE, PretendHouse, a_task
from tests.support.masters import a_home, a_master


@contextmanager
def few_descriptors(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="few descriptors here")
def test_connections_that_say_nothing_shut_nobody_out() -> None:
    with a_home() as master, ExitStack() as stack:
        with few_descriptors(256):
            assert master.start()["ready"]
        for _ in range(600):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(master.ready["socket"])
        assert master.api.get("/api/v1/server")["pid"] == master.ready["pid"]


def test_leases_beyond_all_reason_are_refused() -> None:
    with a_master() as master:
        with pytest.raises(Refused, match="leases are held or waited for"):
            for _ in range(600):
                master.api.post("/api/v1/leases", {"request": {"gpus": 1}, "wait_s": 0})
        task = master.submit("true", gpus=0)
        assert master.wait(task)[0]["state"] == "completed"


@pytest.mark.parametrize("text", ["night_start: 2024-99-99\n", "[" * 5000])
def test_a_remembered_policy_that_went_wrong_does_not_keep_a_master_from_starting(text: str) -> None:
    with a_home() as master:
        path = f"{master.home}.yaml"
        Path(path).write_text("timezone: UTC\n")
        assert master.start("--no-tcp", "--policy", path)["ready"]
        master.stop()
        Path(path).write_text(text)
        assert master.start()["ready"]


class NoDoors:
    pidfd = -1

    def fileno(self) -> int:
        return -1


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    pretend = PretendHouse(str(tmp_path))
    yield pretend.house
    pretend.close()


@pytest.fixture
def loop(house: House) -> Iterator[Loop]:
    reading, writing = os.pipe()
    loop = Loop(house, NoDoors(), reading, timers_of(house))  # type: ignore[arg-type]
    yield loop
    os.close(reading)
    os.close(writing)


def timers_of(house: House) -> Timers:
    nothing = LogKeeper(lambda: (), lambda: 0, house.warn)
    return Timers(house, nothing, [])


def test_an_order_that_meets_a_mistake_of_ours_leaves_nothing_behind(
    house: House, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(house: House, who: Caller, args: Any) -> Any:
        admit.add_tasks(house, who, args)
        raise RecursionError

    monkeypatch.setitem(operations.OPERATIONS, "half", half)
    order = {"n": 1, "who": ALICE.to_doc(), "op": "half", "args": {"tasks": [new_task_to_doc(a_task())]}}
    for _ in range(20):  # and however often it comes, it does not end the master
        ((_, answer),) = loop._write(Awake(orders=[order]))
        assert isinstance(answer, Broken)
    assert not house.projection.tasks
    assert not list(house.ledger.tasks.open())


def test_a_process_that_cannot_be_watched_now_is_watched_later(
    house: House, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pid: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", full)
        loop.watch("lease", 1, ProcessName(os.getpid(), 0))
    assert not loop._watched
    loop._watch_again()
    assert loop._watched or loop._unwritten


def test_a_master_that_schedules_by_hand_does_not_wake_for_a_pass(house: House) -> None:
    house.standing.manual_tick = True
    house.plan = replace(house.plan, due_at=house.now - 1)
    due = timers_of(house).next_due()
    assert due is None or due > house.now

"""Random lives of a master, crashes and full disks among them: what must never happen does not."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lab_gpu.core.errors import LabGpuError
from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import After, Dependency, Request, RetryRule, TaskSpec, TaskState
from lab_gpu.service.recover import restore
from tests.support.in_process import PretendHouse, a_task, failing_commit

GPUS, TOTAL_MIB = 3, 24 * 1024
REQUESTS = st.builds(
    Request,
    gpus=st.integers(0, 2),
    vram_mib=st.sampled_from([None, 4096, 10240, 20480]),
).map(lambda r: r if r.gpus else Request(gpus=0))


class LifeOfAMaster(RuleBasedStateMachine):
    """What people do, what programs do, what disks and power do."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
        self.pretend = PretendHouse(self.folder)
        self.pretend.order("add_node", name="node-1", gpus=GPUS, vram_mib=TOTAL_MIB, virtual=True)
        self.acknowledged: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "pretend"):
            self.pretend.close()
            shutil.rmtree(self.folder)

    @property
    def running(self) -> list[int]:
        return sorted(self.pretend.house.live)

    @rule(
        request=REQUESTS,
        priority=st.sampled_from([-100, 0, 100]),
        queue=st.sampled_from([None, None, "a", "b"]),
        retries=st.integers(0, 2),
        copies=st.sampled_from([1, 1, 3]),
        never_twice=st.booleans(),
        data=st.data(),
    )
    def submit(self, data: Any, retries: int, never_twice: bool, copies: int, **fields: Any) -> None:
        after: tuple[Dependency, ...] = ()
        if self.acknowledged and data.draw(st.booleans()):
            on = data.draw(st.sampled_from(sorted(self.acknowledged)))
            after = (Dependency(TaskId(on), data.draw(st.sampled_from(list(After)))),)
        spec = TaskSpec(retry=RetryRule(max_retries=retries, pause_s=3), never_twice=never_twice)
        array = {"batch": 7, "batch_limit": 1} if copies > 1 else {}
        task = a_task(spec=spec, after=after, **array, **fields)
        self.acknowledged.update(self.pretend.submit(*[task] * copies))

    @rule()
    def turn(self) -> None:
        self.pretend.step()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1, 137]))
    def a_task_ends(self, data: Any, code: int) -> None:
        self.pretend.end(data.draw(st.sampled_from(self.running)), code)

    @rule(seconds=st.sampled_from([1.0, 5.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.pretend.now += seconds

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold", "release", "top", "retry", "preempt"]))
    def a_wish(self, data: Any, action: str) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.acknowledged)), min_size=1, max_size=3))
        self.pretend.order("act", action=action, ids=ids)

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        ended = {}
        if self.running:
            chosen = data.draw(st.lists(st.sampled_from(self.running), unique=True))
            ended = {task: data.draw(st.sampled_from([0, 1])) for task in chosen}
        self.pretend.crash(ended)

    @rule(op=st.sampled_from(["submit", "step"]))
    def the_disk_is_full(self, op: str) -> None:
        """Whatever was tried is undone whole, in the ledger and in what is remembered."""
        house = self.pretend.house
        before = {live.id: live for live in house.live.values()}
        try:
            with failing_commit(self.pretend):
                self.pretend.step() if op == "step" else self.pretend.submit(a_task())
        except sqlite3.Error:
            for _, ready in house.to_start:
                house.engine.revoke(ready.armed)
            house.to_start.clear()
            house.begun.clear()
            house.after_commit.clear()
            house.launcher.revoke_all(write=False)
            restore(house, before)

    @rule()
    def a_launch_fails(self) -> None:
        self.pretend.host.refuse_next = True

    # --- never -----------------------------------------------------------------------------------

    @invariant()
    def memory_is_a_projection_of_the_ledger(self) -> None:
        if hasattr(self, "pretend"):
            assert list(self.pretend.house.projection.check(self.pretend.now)) == []

    @invariant()
    def no_gpu_is_promised_beyond_its_size(self) -> None:
        if not hasattr(self, "pretend"):
            return
        for node in self.pretend.house.book.nodes().values():
            for gpu in node.gpus:
                assert gpu.promised_mib <= gpu.total_mib, gpu
                assert not gpu.taken_whole or gpu.holders == 1, gpu

    @invariant()
    def what_runs_has_one_attempt_and_began_once(self) -> None:
        if not hasattr(self, "pretend"):
            return
        house = self.pretend.house
        running = {t for t, task in house.projection.tasks.items() if task.state is TaskState.RUNNING}
        assert running == set(house.live)
        alive = [a.order.task for a in self.pretend.host.attempts.values() if a.begun and a.alive]
        assert len(alive) == len(set(alive)), "a task runs twice at once"

    @invariant()
    def no_acknowledged_task_is_lost(self) -> None:
        if hasattr(self, "pretend"):
            db = self.pretend.database.connection
            known = {row[0] for row in db.execute("select id from task")}
            assert self.acknowledged <= known

    @invariant()
    def queues_are_serial(self) -> None:
        if not hasattr(self, "pretend"):
            return
        tasks = self.pretend.house.projection.tasks.values()
        busy = [task.queue for task in tasks if task.state is TaskState.RUNNING and task.queue]
        assert len(busy) == len(set(busy))
        limited = [task.batch for task in tasks if task.state is TaskState.RUNNING and task.batch]
        assert len(limited) == len(set(limited)), "an array runs more at once than its %1 allows"

    @invariant()
    def everything_that_waits_can_say_why(self) -> None:
        if not hasattr(self, "pretend"):
            return
        house = self.pretend.house
        for ident, task in house.projection.tasks.items():
            if task.state is TaskState.QUEUED:
                assert self.pretend.order("why", id=ident)["text"]


LifeOfAMaster.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestLifeOfAMaster = LifeOfAMaster.TestCase


def test_a_refusal_changes_nothing() -> None:
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    pretend = PretendHouse(folder)
    try:
        pretend.order("add_node", name="node-1", gpus=1, vram_mib=TOTAL_MIB, virtual=True)
        with pytest.raises(LabGpuError):
            pretend.submit(a_task(), a_task(request=Request(gpus=9)))
        assert pretend.house.projection.tasks == {}
    finally:
        pretend.close()
        shutil.rmtree(folder)

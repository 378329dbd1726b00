"""A clock that is set makes nothing wait longer or shorter than it would have."""

from __future__ import annotations

import shutil
import tempfile
import time

import pytest

from lab_gpu.core.ids import TaskId
from lab_gpu.service.clock_steps import ClockWatch, shift
from lab_gpu.service.stop import go_on
from tests.support.in_process import PretendHouse, a_task


def test_only_a_set_clock_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ClockWatch()
    assert watch.step_s() == 0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert watch.step_s() == pytest.approx(-3600, abs=1)
    assert watch.step_s() == 0


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_stop_under_way_keeps_its_waits(step_s: float) -> None:
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    pretend = PretendHouse(folder)
    try:
        pretend.order("add_node", name="node-1", gpus=1, vram_mib=24576, virtual=True)
        [task] = pretend.submit(a_task("sleep 60", time_limit_s=100.0))
        pretend.step()
        pretend.order("act", action="cancel", ids=[task], term_timeout_s=30)
        live = pretend.house.live[TaskId(task)]
        assert live.stop_due == pretend.now + 30
        pretend.now += step_s
        shift(pretend.house, step_s)
        assert live.stop_due == pretend.now + 30
        assert live.limit_at == pretend.now + 100
        go_on(pretend.house, live)
        assert live.sent.kill_at is None
        pretend.now += 31
        go_on(pretend.house, live)
        assert live.sent.kill_at == pretend.now
    finally:
        pretend.close()
        shutil.rmtree(folder)

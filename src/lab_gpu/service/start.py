"""Committed launches begin here: one line on a pipe each. Nothing else stands between a free GPU and its next task."""

from __future__ import annotations

from lab_gpu.core.attempts import LaunchFailed
from lab_gpu.core.lifecycle import move_attempt
from lab_gpu.core.model import AttemptState
from lab_gpu.service import points
from lab_gpu.service.house import House, Live
from lab_gpu.service.launch import gpu_line
from lab_gpu.service.promises import publish


def start_launched(house: House) -> None:
    """After the commit: tell each waiting shell to go."""
    if not house.to_start:
        return
    points.reached("launch_committed")
    for live, ready in house.to_start:
        facts = {gpu.uuid: gpu for gpu in house.book.facts_of(live.grant.node)}
        line = gpu_line(live.grant, facts, house.policy, real_beside=house.book.has_real)
        try:
            house.launcher.go(ready, line)
        except LaunchFailed as failure:
            live.launch_problem = str(failure)
    points.reached("told")
    _look_after(house)
    house.to_start.clear()


def _look_after(house: House) -> None:
    """What need not come before the start: from now on their end wakes us, and other masters know their pids."""
    for live, _ in house.to_start:
        house.engine.confirm(live.uni_id)
        if live.runner:
            house.watch("attempt", live.task, live.runner)
        house.begun.append(live)
    if any(house.book.is_real(live.grant) for live, _ in house.to_start):
        publish(house)


def write_begun(house: House) -> None:
    """Writes that they run. No GPU waits for this, so it shares the commit of what is armed next."""
    for live in house.begun:
        if _has_begun(house, live):
            house.ledger.attempts.begin(live.id, live.started_at or house.now)


def note_begun(house: House) -> None:
    """After that commit; should it fail, it is written with the next one."""
    for live in house.begun:
        if _has_begun(house, live):
            live.state = move_attempt(live.state, "begin")
    house.begun.clear()


def _has_begun(house: House, live: Live) -> bool:
    here = house.live.get(live.task) is live
    return here and live.state is AttemptState.LAUNCHING and not live.launch_problem

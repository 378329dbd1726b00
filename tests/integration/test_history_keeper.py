"""What ended long ago is forgotten where the policy says so: rows and files, and nothing that is still waited for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_gpu.core.ids import TaskId
from lab_gpu.service.keepers.directories import remove_files
from lab_gpu.service.keepers.history import AT_ONCE, DAY_S, LOOK_AGAIN_S, MORE_SOON_S, HistoryKeeper
from tests.support.in_process import PretendHouse, a_task


@pytest.fixture
def pretend() -> Iterator[PretendHouse]:
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    house = PretendHouse(folder)
    house.order("add_node", name="node-1", gpus=1, vram_mib=24576, virtual=True)
    yield house
    house.close()
    shutil.rmtree(folder)


def run(pretend: PretendHouse, days: float | None) -> float | None:
    keeper = HistoryKeeper(pretend.house.ledger, lambda: days, remove_files)
    with pretend.database.transaction():
        return keeper.run_once(pretend.now)


def ended_task(pretend: PretendHouse) -> int:
    [task] = pretend.submit(a_task())
    pretend.step()
    pretend.end(task, 0)
    return task


def test_old_tasks_go_with_their_files_and_new_ones_stay(pretend: PretendHouse) -> None:
    old = ended_task(pretend)
    [row] = pretend.database.connection.execute("select log_path, directory from attempt").fetchall()
    log, directory = Path(row["log_path"]), Path(row["directory"])
    log.parent.mkdir(exist_ok=True)
    log.write_text("a line")
    directory.mkdir(parents=True)
    pretend.now += 10 * DAY_S
    new = ended_task(pretend)
    assert run(pretend, None) == pretend.now + LOOK_AGAIN_S
    assert pretend.house.ledger.tasks.state(TaskId(old)) is not None
    assert run(pretend, 5) == pretend.now + LOOK_AGAIN_S
    assert pretend.house.ledger.tasks.state(TaskId(old)) is None
    assert pretend.house.ledger.tasks.state(TaskId(new)) is not None
    assert not log.exists() and not directory.parent.exists()
    assert pretend.database.connection.execute("pragma foreign_key_check").fetchall() == []


def test_many_go_a_part_at_a_time(pretend: PretendHouse) -> None:
    ids = pretend.submit(*[a_task(held=True)] * (AT_ONCE + 1))
    pretend.order("act", action="cancel", ids=ids)
    pretend.now += DAY_S
    assert run(pretend, 0.5) == pretend.now + MORE_SOON_S
    assert run(pretend, 0.5) == pretend.now + LOOK_AGAIN_S
    assert pretend.database.connection.execute("select count(*) from task").fetchone()[0] == 0


def test_ids_are_never_given_again(pretend: PretendHouse) -> None:
    old = ended_task(pretend)
    pretend.now += 10 * DAY_S
    run(pretend, 1)
    assert ended_task(pretend) == old + 1

"""A ledger of each release stays readable: what was open is still open, what ended is still there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import TaskState
from lab_gpu.store.database import Database, migrations
from lab_gpu.store.ledger import Ledger
from tests.support.in_process import PretendHouse

RELEASES = sorted(Path(__file__).parent.glob("*.sql"))


def restored(release: Path, folder: Path) -> str:
    path = folder / "lab-gpu.db"
    with sqlite3.connect(path) as db:
        db.executescript(release.read_text())
    db.close()
    return str(path)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_a_ledger_of_an_older_release_goes_on(release: Path, tmp_path: Path) -> None:
    restored(release, tmp_path)
    pretend = PretendHouse(str(tmp_path))
    try:
        open_tasks = pretend.house.projection.tasks
        assert sorted(open_tasks) == [3, 4, 5, 6, 7]
        assert open_tasks[TaskId(3)].request.vram_mib == 10240
        assert open_tasks[TaskId(4)].held
        assert open_tasks[TaskId(6)].waits_on.keys() == {5}
        assert pretend.house.ledger.tasks.state(TaskId(1)) is TaskState.COMPLETED
        assert pretend.house.ledger.tasks.state(TaskId(2)) is TaskState.FAILED
        assert list(pretend.house.projection.check(pretend.now)) == []
        pretend.step()
        assert open_tasks[TaskId(3)].state is TaskState.RUNNING
    finally:
        pretend.close()


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_it_is_brought_to_todays_format(release: Path, tmp_path: Path) -> None:
    database = Database(restored(release, tmp_path))
    try:
        Ledger(database)
        [row] = database.connection.execute("pragma user_version").fetchall()
        assert row[0] == migrations()[-1][0]
        assert database.connection.execute("pragma integrity_check").fetchone()[0] == "ok"
        assert database.connection.execute("pragma foreign_key_check").fetchall() == []
    finally:
        database.close()


def test_there_is_one_for_the_first_release() -> None:
    assert "0.1.0" in {release.stem for release in RELEASES}

"""That an attempt runs is remembered only once it is written."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile

import pytest

from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import AttemptState
from lab_gpu.service.start import note_begun, write_begun
from tests.support.in_process import PretendHouse, a_task, failing_commit


def test_a_note_that_could_not_be_written_is_written_with_the_next_commit() -> None:
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    pretend = PretendHouse(folder)
    try:
        pretend.order("add_node", name="node-1", gpus=1, vram_mib=24576, virtual=True)
        [task] = pretend.submit(a_task())
        pretend.plan_and_launch()
        live = pretend.house.live[TaskId(task)]
        with (
            pytest.raises(sqlite3.OperationalError),
            failing_commit(pretend),
            pretend.database.transaction(),
        ):
            write_begun(pretend.house)
        assert live.state is AttemptState.LAUNCHING
        with pretend.database.transaction():
            write_begun(pretend.house)
        note_begun(pretend.house)
        assert live.state is AttemptState.RUNNING
        [row] = pretend.database.connection.execute("select state from attempt").fetchall()
        assert row["state"] == "running"
    finally:
        pretend.close()
        shutil.rmtree(folder)

"""A home on a network file system: one connection to the database, the socket elsewhere, everything as usual."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from lab_gpu.client.transport import find_master
from tests.support.masters import a_home

NETWORKED = "tests.support.on_network"


def test_everything_works_through_the_only_connection() -> None:
    with a_home() as master:
        ready = master.start(module=NETWORKED)
        assert ready.get("ready"), (ready, master.log())
        assert ready["socket"].startswith(f"/tmp/lab-gpu-{os.getuid()}/")
        assert Path(master.home, "socket").read_text() == ready["socket"]
        api = find_master(None, {**master.environ})  # a person's shell finds it by the note in the home
        assert any("network file system" in text for text in api.get("/api/v1/server")["warnings"])
        master.add_gpus(2)
        ids = [master.submit(f"echo line; exit {code}") for code in (0, 3)]
        first, second = master.wait(*ids)
        assert (first["state"], second["exit_code"]) == ("completed", 3)
        assert [task["id"] for task in api.get("/api/v1/tasks")["tasks"]] == ids[::-1]
        assert api.get(f"/api/v1/tasks/{ids[0]}/logs")["text"] == "line\n"
        assert api.get(f"/api/v1/tasks/{ids[0]}/history")["events"]
        assert api.get("/api/v1/status")["counts"]["queued"] == 0
        with (
            pytest.raises(sqlite3.OperationalError, match="locked"),
            sqlite3.connect(f"{master.home}/lab-gpu.db", timeout=0) as other,
        ):
            other.execute("select count(*) from task")
        other.close()
        running = master.submit("while [ ! -e go ]; do sleep 0.02; done")
        master.wait_state(running, "running")
        master.kill()
        assert master.start(module=NETWORKED)["notes"] == ["1 task(s) adopted"]
        Path(master.home, "go").touch()
        assert master.wait(running)[0]["state"] == "completed"
        master.stop()
        assert not os.path.exists(os.path.dirname(ready["socket"]))

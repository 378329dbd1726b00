"""`lab-gpu doctor` on this machine, with a home of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from caretaker_stub import Stub, lab_gpu, short_home


@pytest.fixture
def home() -> Iterator[str]:
    with short_home() as folder:
        yield folder


def grades(text: str) -> dict[str, str]:
    return {check["name"]: check["grade"] for check in json.loads(text)["checks"]}


def test_a_machine_without_faults(home: str) -> None:
    done = lab_gpu(home, "doctor", "--json", "--host", f"unix:{home}/lab-gpu.sock")
    found = grades(done.stdout)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] is True
    assert {"python", "nvml", "nvidia-smi", "bash", "tmux", "conda", "permissions", "socket"} <= set(found)
    assert {"log root", "disk", "file system", "clock", "lingering", "inotify", "master"} <= set(found)
    assert found["master"] == "warn"


def test_a_master_that_runs_is_asked(home: str) -> None:
    with Stub(home).listening():
        done = lab_gpu(home, "doctor")
    assert done.returncode == 0 and "pid 4711" in done.stdout


def test_a_token_that_others_can_read_is_bad(home: str) -> None:
    token = Path(home, "token")
    token.write_text("secret")
    token.chmod(0o644)
    done = lab_gpu(home, "doctor")
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if " permissions " in line)
    assert line.startswith("bad") and "chmod" in line
    assert done.stdout.splitlines()[-1].endswith("1 to mend")


def test_it_changes_nothing(home: str) -> None:
    before = sorted(Path(home).iterdir())
    lab_gpu(home, "doctor")
    assert sorted(Path(home).iterdir()) == before

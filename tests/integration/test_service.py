"""`lab-gpu service`: the unit as it is written, shown and taken away, with and without systemd."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from caretaker_stub import lab_gpu, short_home

UNIT = "config/systemd/user/lab-gpu.service"
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$HOME/systemctl.calls"
exit {status}
"""


@pytest.fixture
def home() -> Iterator[str]:
    with short_home() as folder:
        yield folder


def service(home: str, *words: str, status: int) -> tuple[int, str, str]:
    """With a systemctl that keeps what it was asked and ends with `status`."""
    tool = Path(home, "bin", "systemctl")
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(SYSTEMCTL.format(status=status))
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    done = lab_gpu(home, "service", *words, PATH=path, XDG_CONFIG_HOME=f"{home}/config")
    return done.returncode, done.stdout, done.stderr


def calls(home: str) -> list[str]:
    return Path(home, "systemctl.calls").read_text().splitlines()


def test_it_writes_what_it_shows_and_enables_it(home: str) -> None:
    code, shown, _ = service(home, "install", status=0)
    assert code == 0 and Path(home, UNIT).read_text().strip() == shown.strip()
    assert "server start --foreground" in shown and f"LAB_GPU_HOME={home}" in shown
    assert calls(home)[1:] == ["--user daemon-reload", "--user enable lab-gpu.service"]


def test_where_no_systemd_answers_it_says_what_to_type(home: str) -> None:
    code, _, said = service(home, "install", status=1)
    assert code == 0 and Path(home, UNIT).exists()
    assert "systemctl --user daemon-reload && systemctl --user enable lab-gpu.service" in said
    assert len(calls(home)) == 1


def test_print_only_shows(home: str) -> None:
    code, shown, _ = service(home, "install", "--print", "--port", "2000", "--host", "0.0.0.0", status=0)
    assert code == 0 and "--host 0.0.0.0 --port 2000" in shown
    assert not Path(home, UNIT).exists() and not Path(home, "systemctl.calls").exists()


def test_programs_get_one_document(home: str) -> None:
    code, shown, _ = service(home, "install", "--json", status=0)
    told, path = json.loads(shown), f"{home}/{UNIT}"
    assert code == 0 and told == {"path": path, "unit": told["unit"], "written": True, "enabled": True}
    assert Path(path).read_text().strip() == told["unit"].strip()
    assert not json.loads(service(home, "install", "--json", status=1)[1])["enabled"]
    assert not json.loads(service(home, "install", "--json", "--print", status=0)[1])["written"]
    code, shown, _ = service(home, "uninstall", "--json", status=0)
    assert (code, json.loads(shown)) == (0, {"path": path, "removed": True})


def test_the_policy_is_checked_and_named_by_its_whole_path(home: str) -> None:
    Path(home, "p.yaml").write_text("preemption: maybe\n")
    assert service(home, "install", "--policy", "p.yaml", status=0)[0] == 2
    Path(home, "p.yaml").write_text("preemption: true\n")
    assert f"--policy {home}/p.yaml" in service(home, "install", "--policy", "p.yaml", status=0)[1]


def test_a_unit_of_the_machine_runs_as_somebody(home: str) -> None:
    code, shown, _ = service(home, "install", "--system", "--user", "nobody", "--print", status=0)
    assert code == 0 and "User=nobody" in shown
    code, _, said = service(home, "install", "--system", "--user", "no-such-one", "--print", status=0)
    assert code == 2 and "no account no-such-one" in said
    assert service(home, "install", "--user", "nobody", status=0)[0] == 2


def test_somebody_elses_unit_stays(home: str) -> None:
    Path(home, UNIT).parent.mkdir(parents=True)
    Path(home, UNIT).write_text("[Unit]\n")
    assert service(home, "install", status=0)[0] == 2
    assert service(home, "uninstall", status=0)[0] == 2
    assert Path(home, UNIT).read_text() == "[Unit]\n"


def test_uninstall_stops_nothing(home: str) -> None:
    service(home, "install", status=0)
    code, _, said = service(home, "uninstall", status=0)
    assert code == 0 and not Path(home, UNIT).exists() and "server stop" in said
    asked = [call for call in calls(home) if "stop" in call or "--now" in call]
    assert asked == []
    code, _, said = service(home, "uninstall", status=0)
    assert code == 1 and "nothing is installed" in said

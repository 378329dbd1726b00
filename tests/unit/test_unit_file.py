"""The systemd unit: what it promises about tasks, and words that systemd would read otherwise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab_gpu.cli.unit_file import UnitOrder, command_line, is_ours, quoted, unit_path, unit_text


def order(**more: object) -> UnitOrder:
    program = [shutil.which("true") or sys.executable]
    values: dict[str, object] = {"command": program, "reload": program, "environment": {}, **more}
    return UnitOrder(**values)  # type: ignore[arg-type]


def test_stopping_the_unit_touches_no_task() -> None:
    lines = unit_text(order()).splitlines()
    for line in ("KillMode=process", "OOMPolicy=continue", "Delegate=yes", "TasksMax=infinity"):
        assert line in lines
    assert "Type=notify" in lines and "NotifyAccess=main" in lines and "Restart=on-failure" in lines


def test_a_start_that_was_refused_is_not_tried_again() -> None:
    assert "RestartPreventExitStatus=2" in unit_text(order())


def test_a_unit_of_the_machine_names_its_account() -> None:
    text = unit_text(order(account="ann"))
    assert "User=ann" in text and "WantedBy=multi-user.target" in text
    assert "User=" not in unit_text(order())


def test_the_home_is_pinned_only_where_it_was_named() -> None:
    assert "Environment=" not in unit_text(order())
    assert 'Environment="LAB_GPU_HOME=/my home"' in unit_text(order(environment={"LAB_GPU_HOME": "/my home"}))


def test_signs_that_mean_something_to_systemd_are_taken_as_they_are() -> None:
    assert quoted("100%") == "100%%"
    assert quoted('say "hi"') == '"say \\"hi\\""'
    assert command_line(["/bin/run", "a b", "$HOME"]) == '/bin/run "a b" $$HOME'


def test_the_place_of_the_unit() -> None:
    assert unit_path(False, {}, "/home/ann") == "/home/ann/.config/systemd/user/lab-gpu.service"
    assert unit_path(False, {"XDG_CONFIG_HOME": "/x"}, "/home/ann") == "/x/systemd/user/lab-gpu.service"
    assert unit_path(True, {}, "/home/ann") == "/etc/systemd/system/lab-gpu.service"


def test_our_own_unit_is_known_again() -> None:
    assert is_ours(unit_text(order()))
    assert not is_ours("[Unit]\nDescription=another\n")


@pytest.mark.parametrize("account", [None, "root"])
def test_systemd_finds_no_fault(tmp_path: Path, account: str | None) -> None:
    """Where there is no systemd-analyze the text itself is all that can be looked at."""
    unit = tmp_path / "lab-gpu.service"
    odd = {"LAB_GPU_HOME": '/a home/100%/"x"', "OTHER": "a\\b"}
    unit.write_text(unit_text(order(account=account, environment=odd)))
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        assert unit.read_text().count("ExecStart=") == 1
        return
    kind = "--system" if account else "--user"
    done = subprocess.run(
        [analyze, kind, "verify", str(unit)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert "lab-gpu.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr

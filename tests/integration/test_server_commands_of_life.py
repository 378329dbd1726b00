"""`lab-gpu server start | stop | restart`: real processes, with a stand-in for the master itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caretaker_stub import environment, short_home

PRETEND = str(Path(__file__).with_name("pretend_master.py"))
WITH_PRETEND = (
    "import sys; from lab_gpu.client import launch; from lab_gpu.cli.main import main; "
    f"launch.MASTER_COMMAND = (sys.executable, {PRETEND!r}); sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def home() -> Iterator[str]:
    with short_home() as folder:
        try:
            yield folder
        finally:
            if Path(folder, "master.json").exists():
                server(folder, "stop")


def server(home: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITH_PRETEND, "server", *words],
        env=environment(home, **more),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def note(home: str) -> dict[str, Any]:
    return dict(json.loads(Path(home, "master.json").read_text()))


def test_start_returns_with_the_address_and_the_log(home: str) -> None:
    done = server(home, "start", "--role", "master", "--host", "127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:1895" in done.stdout and f"{home}/master.log" in done.stdout
    os.kill(note(home)["pid"], 0)
    assert "--tcp" in note(home)["argv"]


def test_a_host_without_gpus_is_told_which_command_declares_one(home: str) -> None:
    assert "lab-gpu server add-node --name" in server(home, "start").stderr


def test_a_second_start_says_so_and_another_one_names_restart(home: str) -> None:
    pid = json.loads(server(home, "start", "--json").stdout)["pid"]
    again = server(home, "start", "--json")
    said = json.loads(again.stdout)
    assert (again.returncode, said["pid"], said["started"], said["log"]) == (
        0,
        pid,
        False,
        f"{home}/master.log",
    )
    assert "runs already" in server(home, "start").stdout
    assert server(home, "start", "--host", "127.0.0.1").returncode == 0
    other = server(home, "start", "--port", "2000")
    assert other.returncode == 2 and "lab-gpu server restart" in other.stderr


def test_what_the_master_says_of_its_port_is_passed_on(home: str) -> None:
    done = server(home, "start", "--port", "1")
    assert done.returncode == 2 and "cannot listen on port 1: it is in use" in done.stderr


def test_a_policy_with_mistakes_starts_nothing(home: str) -> None:
    Path(home, "p.yaml").write_text("preemption: maybe\nlauncher: magic\n")
    done = server(home, "start", "--policy", "p.yaml")
    assert done.returncode == 2 and "line 1: preemption" in done.stderr and "line 2: launcher" in done.stderr
    assert not Path(home, "master.json").exists()
    Path(home, "p.yaml").write_text("preemption: true\n")
    assert server(home, "start", "--policy", "p.yaml").returncode == 0
    assert f"{home}/p.yaml" in note(home)["argv"]


def test_what_is_not_given_is_not_compared_with_the_master_that_runs(home: str) -> None:
    Path(home, "p.yaml").write_text("preemption: true\n")
    server(home, "start", "--policy", "p.yaml", "--port", "2000", "--manual-tick")
    assert "runs already" in server(home, "start").stdout
    assert server(home, "start", "--port", "2000").returncode == 0
    server(home, "stop")
    server(home, "start")
    asked = {"host": "127.0.0.1", "port": None, "tcp": True, "policy": None, "manual_tick": False}
    assert note(home)["settings"] == asked


def test_restart_leaves_the_policy_to_the_masters_own_memory(home: str) -> None:
    Path(home, "p.yaml").write_text("preemption: true\n")
    server(home, "start", "--policy", "p.yaml", "--port", "2000")
    server(home, "restart")
    assert (note(home)["settings"]["policy"], note(home)["settings"]["port"]) == (None, 2000)


def test_a_master_that_a_first_command_started_is_taken_over_by_restart(home: str) -> None:
    words = ("from lab_gpu.client import launch; launch.start_master("
             f"launch.StartOptions({home!r}, tcp=False, autostarted=True))")  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", WITH_PRETEND.partition("sys.exit")[0] + words],
        env=environment(home),
        check=True,
    )
    done = server(home, "start")
    assert done.returncode == 2 and "lab-gpu server restart" in done.stderr
    assert server(home, "restart", "--role", "master").returncode == 0
    assert note(home)["settings"]["tcp"] and "--autostarted" not in note(home)["argv"]


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_an_agent_is_refused_clearly(home: str, verb: str) -> None:
    done = server(home, verb, "--role", "agent")
    assert done.returncode == 2 and "use --role master" in done.stderr


@pytest.mark.parametrize("port", ["0", "70000", "http"])
def test_a_port_that_is_none(home: str, port: str) -> None:
    done = server(home, "start", "--port", port)
    assert done.returncode == 2 and "--port" in done.stderr


def test_in_the_foreground_the_process_becomes_the_master(home: str) -> None:
    words = [sys.executable, "-c", WITH_PRETEND, "server", "start", "--foreground", "--json"]
    with subprocess.Popen(
        words, env=environment(home), cwd=home, stdout=subprocess.PIPE, text=True
    ) as master:
        try:
            assert master.stdout
            ready = json.loads(master.stdout.readline())
            assert ready["pid"] == master.pid and "--foreground" not in ready["argv"]
            assert server(home, "stop").returncode == 0
            assert master.wait(30) == 0
        finally:
            master.kill()


def test_in_the_foreground_a_person_is_told_in_words(home: str) -> None:
    start = [sys.executable, "-m", "lab_gpu", "server", "start", "--foreground"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(start, env=environment(home), cwd=home, **streams) as master:
        try:
            assert master.stderr
            said = master.stderr.readline()
            port = note(home)["url"].rpartition(":")[2]
            assert said.startswith(f"lab-gpu: the master runs: pid {master.pid}, http://")
            for words, code, told in (
                ([], 0, f"lab-gpu: a master with these settings runs already: pid {master.pid}"),
                (["--manual-tick"], 2, "lab-gpu: cannot start with these settings: a master runs already"),
            ):
                other = subprocess.run([*start, *words], env=environment(home), cwd=home, capture_output=True)
                assert (other.returncode, other.stdout) == (code, b"")
                assert other.stderr.decode().startswith(told) and other.stderr.count(b"\n") == 1
            with short_home() as second:
                own = {"env": environment(second), "cwd": second}
                taken = subprocess.run([*start, "--port", port], capture_output=True, text=True, **own)  # type: ignore[call-overload]
            assert (taken.returncode, taken.stdout) == (2, "") and taken.stderr.count("\n") == 1
            assert taken.stderr.startswith("lab-gpu: cannot ") and port in taken.stderr
            assert server(home, "stop").returncode == 0
            assert (master.wait(30), master.stdout.read()) == (0, "")  # type: ignore[union-attr]
        finally:
            master.kill()


def test_stop_says_how_many_tasks_go_on(home: str) -> None:
    server(home, "start")
    done = server(home, "stop")
    assert done.returncode == 0 and "2 running tasks go on" in done.stdout and "one waits" in done.stdout
    assert not Path(home, "master.json").exists()
    assert server(home, "stop").returncode == 3


def test_stop_of_a_master_that_was_named(home: str) -> None:
    server(home, "start")
    done = server(home, "stop", "--host", f"unix:{home}/lab-gpu.sock", "--json")
    assert json.loads(done.stdout) == {"stopped": True, "running": 2, "queued": 1}


def test_restart_keeps_what_is_not_given(home: str) -> None:
    server(home, "start", "--manual-tick")
    first = note(home)["pid"]
    done = server(home, "restart", "--port", "2001", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["url"] == "http://127.0.0.1:2001"
    assert note(home)["pid"] != first and "--manual-tick" in note(home)["argv"]
    assert server(home, "restart", "--no-manual-tick").returncode == 0
    assert "--manual-tick" not in note(home)["argv"]


def test_a_restart_that_cannot_be_leaves_a_master_as_it_was(home: str) -> None:
    server(home, "start", "--manual-tick")
    done = server(home, "restart", "--port", "1")
    assert done.returncode == 2 and "cannot listen on port 1: it is in use" in done.stderr
    assert "runs again with the settings of before" in done.stderr
    assert "--manual-tick" in note(home)["argv"] and "--port" not in note(home)["argv"]
    assert server(home, "status").returncode == 0


def test_restart_where_none_runs_starts_one(home: str) -> None:
    Path(home, "settings.json").write_text('{"manual_tick": true}')
    done = server(home, "restart")
    assert done.returncode == 0 and "none ran before" in done.stdout
    assert "--manual-tick" in note(home)["argv"]


SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$HOME/systemctl.calls"
case "$*" in
  *MainPID*) cat "$HOME/unit.pid" ;;
esac
"""


def test_a_master_of_a_unit_is_restarted_by_its_systemd(home: str) -> None:
    server(home, "start")
    tool = Path(home, "bin", "systemctl")
    tool.parent.mkdir()
    tool.write_text(SYSTEMCTL)
    tool.chmod(0o755)
    Path(home, "unit.pid").write_text(f"{note(home)['pid']}\n")
    path = f"{tool.parent}:{os.environ['PATH']}"
    assert server(home, "restart", PATH=path).returncode == 0
    assert Path(home, "systemctl.calls").read_text().splitlines()[-1] == "restart lab-gpu.service"
    done = server(home, "restart", "--port", "2000", PATH=path)
    assert done.returncode == 2 and "lab-gpu service install" in done.stderr

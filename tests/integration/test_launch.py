"""Starting, stopping and replacing a master, against a stand-in that only listens."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_master import short_folder

from lab_gpu import Client, NoMaster
from lab_gpu.client import launch, unit
from lab_gpu.client.launch import StartOptions
from lab_gpu.client.transport import connect
from lab_gpu.client.whereabouts import is_alive
from lab_gpu.core.errors import Broken, Refused

STAND_IN = str(Path(__file__).with_name("stand_in_daemon.py"))


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with short_folder() as path:
        monkeypatch.setenv("LAB_GPU_HOME", path)
        monkeypatch.delenv("LAB_GPU_HOST", raising=False)
        monkeypatch.delenv("LAB_GPU_AUTOSTART", raising=False)
        monkeypatch.setattr(launch, "MASTER_COMMAND", (sys.executable, STAND_IN))
        monkeypatch.setattr(unit, "preferred", lambda: False)
        yield path
        launch.stop(path)


def seen(home: str) -> dict[str, Any]:
    return dict(json.loads(Path(home, "seen.json").read_text()))


def starts(home: str) -> list[str]:
    return Path(home, "starts").read_text().split()


def test_a_first_question_starts_a_master_and_says_so(home: str) -> None:
    said: list[str] = []
    assert connect(start=True, say=said.append).get("/api/health") == {"status": "ok"}
    assert said == ["lab-gpu: 1 task(s) adopted",
                    f"lab-gpu: no master was running, so one was started (log: {home}/master.log)"]  # fmt: skip
    again: list[str] = []
    assert connect(start=True, say=again.append).get("/api/health")
    assert not again and len(starts(home)) == 1


def test_a_program_gets_its_master_too(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Client().status() == {"counts": {"queued": 0}}
    assert "no master was running" in capsys.readouterr().err


def test_reading_starts_none(home: str) -> None:
    with pytest.raises(NoMaster):
        connect()
    assert not os.path.exists(f"{home}/starts")


def test_it_is_nobodys_child_and_not_in_our_way(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_GPU_UNI_ID", "of-an-attempt")
    monkeypatch.setenv("PYTHONPATH", f"relative{os.pathsep}/absolute")
    pid = launch.start_private(home)["pid"]
    facts = seen(home)
    assert facts["parent"] != os.getpid() and facts["session"] not in (os.getsid(0), pid)
    assert facts["cwd"] == "/"
    assert "LAB_GPU_UNI_ID" not in facts["environ"] and facts["environ"]["PATH"] == os.environ["PATH"]
    assert facts["environ"]["PYTHONPATH"] == f"{os.path.abspath('relative')}:/absolute"
    open_files = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)]
    assert open_files == ["/dev/null", f"{home}/master.log", f"{home}/master.log"]
    assert stat.S_IMODE(os.stat(home).st_mode) == 0o700


def test_a_private_master_listens_on_its_socket_only(home: str) -> None:
    ready = launch.start_private(home)
    assert ready["autostarted"] and not ready["settings"]["tcp"]


def test_those_who_start_at_once_get_one_master(home: str) -> None:
    got: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: got.append(launch.start_private(home))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(starts(home)) == 1
    assert len({each.get("running", each).get("pid") for each in got}) == 1


def test_the_same_start_again_is_told_from_another(home: str) -> None:
    launch.start_master(StartOptions(home))
    assert launch.start_master(StartOptions(home))["running"]["pid"] == int(starts(home)[0])
    with pytest.raises(Refused, match="use restart"):
        launch.start_master(StartOptions(home, policy="/other.yaml"))
    assert "running" in launch.start_private(home)


@pytest.mark.parametrize(
    ("mood", "error", "words"),
    [
        ("refuse", Refused, r"cannot listen on port 1: it is in use; choose another$"),
        ("die", Broken, r"it ended at once: Traceback: no module named fastapi; see .*/master\.log$"),
    ],
)
def test_why_it_cannot_be_is_passed_on(home: str, mood: str, error: type[Exception], words: str) -> None:
    Path(home, "master.log").write_text("an older line\n")
    Path(home, "mood").write_text(mood)
    with pytest.raises(error, match=words):
        launch.start_private(home)


def test_one_that_never_gets_ready_is_given_up(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "READY_LIMIT_S", 0.05)
    Path(home, "mood").write_text("mute")
    with pytest.raises(Broken, match=r"not ready within 0\.05 s"):
        launch.start_private(home)
    for folder in Path("/proc").glob("[0-9]*"):
        if home.encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
            os.kill(int(folder.name), 9)


def test_stop_waits_until_it_is_gone(home: str) -> None:
    pid = launch.start_private(home)["pid"]
    assert launch.stop(home)
    assert not is_alive(pid)
    assert not launch.stop(home)


def test_one_that_will_not_go_is_named(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = launch.start_private(home)["pid"]
    monkeypatch.setattr(launch, "_gone", lambda pid, limit_s: False)
    with pytest.raises(Broken, match=f"process {pid} is still there"):
        launch.stop(home)
    monkeypatch.undo()


def test_a_kernel_without_pidfd_is_asked_by_looking(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unknown)
    pid = launch.start_private(home)["pid"]
    assert launch.stop(home)
    assert not is_alive(pid)


def test_an_older_autostarted_master_is_replaced_once(home: str) -> None:
    Path(home, "version").write_text("0.0.1")
    launch.start_private(home)
    Path(home, "version").unlink()
    said: list[str] = []
    assert connect(start=True, say=said.append).get("/api/health")
    assert "lab-gpu: the master was of version 0.0.1: it was replaced by this one's; tasks run on" in said
    assert len(starts(home)) == 2
    assert connect(start=True).get("/api/health") and len(starts(home)) == 2


def test_an_older_master_that_a_person_started_is_left(home: str) -> None:
    Path(home, "version").write_text("0.0.1")
    launch.start_master(StartOptions(home))
    assert connect(start=True).get("/api/health")
    assert len(starts(home)) == 1


def test_restart_with_new_settings(home: str) -> None:
    launch.restart(home, options=StartOptions(home))
    after = launch.restart(home, options=StartOptions(home, policy="/p.yaml"))
    assert after["settings"]["policy"] == "/p.yaml" and len(starts(home)) == 2


# ---- systemd's user instance: a stand-in on PATH that takes systemd-run's and loginctl's words


SYSTEMD_RUN = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE_SYSTEMD/words"
while [ "${1#-}" != "$1" ]; do shift; done
setsid "$@" </dev/null >/dev/null 2>&1 &
"""
LOGINCTL = """#!/bin/sh
case "$*" in
  *Linger*) echo "Linger=$(cat $FAKE_SYSTEMD/linger)" ;;
  *Kill*) echo "KillUserProcesses=$(cat $FAKE_SYSTEMD/kill)" ;;
esac
"""


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def logs_out(self, linger: str, kill: str) -> None:
        (self.folder / "linger").write_text(linger)
        (self.folder / "kill").write_text(kill)

    def runs_units(self, script: str) -> None:
        path = self.folder / "systemd-run"
        path.write_text(script)
        path.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> Host:
    monkeypatch.undo()
    monkeypatch.setenv("LAB_GPU_HOME", home)
    monkeypatch.setattr(launch, "MASTER_COMMAND", (sys.executable, STAND_IN))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    made = Host(tmp_path)
    made.runs_units(SYSTEMD_RUN)
    loginctl = tmp_path / "loginctl"
    loginctl.write_text(LOGINCTL)
    loginctl.chmod(0o755)
    made.logs_out("yes", "no")
    return made


def test_a_unit_where_it_outlives_the_logout(home: str, host: Host) -> None:
    said: list[str] = []
    ready = launch.start_private(home, said.append)
    words = (host.folder / "words").read_text().split("\n")
    assert {"--user", "--collect", "--property=KillMode=process", "--property=OOMPolicy=continue",
            "--property=Delegate=yes", "--property=TasksMax=infinity", "--setenv=LAB_GPU_HOME"} <= set(words)  # fmt: skip
    assert not any(word.startswith("--setenv") and "=" in word[9:] for word in words)
    assert is_alive(ready["pid"])
    assert not [name for name in os.listdir(home) if name.startswith("start-")]
    assert not any("logout" in line for line in said)


def test_detached_where_systemd_cannot(home: str, host: Host) -> None:
    host.runs_units("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    assert is_alive(launch.start_private(home)["pid"])


def test_detached_where_only_units_end_at_a_logout(home: str, host: Host) -> None:
    host.logs_out("no", "no")
    launch.start_private(home)
    assert not (host.folder / "words").exists()


def test_a_host_that_kills_at_logout_is_named_once(home: str, host: Host) -> None:
    host.logs_out("no", "yes")
    said: list[str] = []
    launch.start_private(home, said.append)
    launch.stop(home)
    launch.start_private(home, said.append)
    assert [line for line in said if "logout" in line] == [
        "lab-gpu: a logout ends the master and its tasks on this host; `loginctl enable-linger` keeps them"
    ]


def test_what_goes_wrong_in_a_unit_is_passed_on(home: str, host: Host) -> None:
    Path(home, "mood").write_text("die")
    with pytest.raises(Broken, match="no module named fastapi"):
        launch.start_private(home)
    Path(home, "mood").write_text("refuse")
    with pytest.raises(Refused, match="port 1"):
        launch.start_private(home)


def test_a_host_without_a_login_service(home: str, host: Host) -> None:
    (host.folder / "loginctl").write_text("#!/bin/sh\nexit 1\n")
    assert unit.lingers() is None and unit.kills_at_logout() is None and unit.preferred()

"""What the doctor finds: each check on a small made-up machine."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab_gpu.cli import checks
from lab_gpu.cli.checks import BAD, OK, WARN

MOUNTS = """/dev/sda1 / ext4 rw 0 0
filer:/home /home nfs4 rw 0 0
/dev/sdb1 /home/ann/my\\040disk xfs rw 0 0
broken
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    (folder / "token").write_text("secret")
    (folder / "token").chmod(0o600)
    return folder


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "s").mkdir(mode=0o700)
    path = tmp_path / "s" / "x"
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(tmp_path)
        sock.bind("s/x")
        yield path


def test_an_old_python_is_named() -> None:
    assert checks.python((3, 9)).grade == BAD
    assert checks.python((3, 10)).grade == OK


def test_nvml_that_is_switched_off_says_so() -> None:
    found = checks.nvml({"LAB_GPU_NO_NVML": "1"})
    assert found.grade == WARN and "LAB_GPU_NO_NVML" in found.text


class Binding:
    """As much of the NVML binding as the check asks."""

    class NVMLError(Exception):
        pass

    def __init__(self, sick: set[int]) -> None:
        self.sick = sick

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, index: int) -> None:
        if index in self.sick:
            raise self.NVMLError("GPU is lost")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"


def test_a_gpu_that_is_listed_but_lost_is_named() -> None:
    assert checks._nvml_gpus(Binding(set())).text == "2 GPUs, driver 580.1"
    found = checks._nvml_gpus(Binding({1}))
    assert found.grade == BAD and found.text == "GPU 1: GPU is lost"


@pytest.mark.parametrize(
    ("answer", "grade"),
    [((0, "GPU 0: A\nGPU 1: B"), OK), ((127, "no"), WARN), ((9, "mismatch"), BAD), ((9, ""), BAD)],
)
def test_nvidia_smi(answer: tuple[int, str], grade: str) -> None:
    assert checks.nvidia_smi(lambda words: answer).grade == grade


def test_a_missing_tool_is_bad_only_where_it_is_needed() -> None:
    gone = ("/nowhere/tool",)
    assert checks.tool("bash", gone, True, "install it").grade == BAD
    assert checks.tool("tmux", gone, False, "install it").grade == WARN
    assert checks.tool("echo", ("echo", "here"), True, "").text == "here"


def test_a_tool_that_fails_says_what_it_said() -> None:
    found = checks.tool("sh", ("sh", "-c", "echo broken; exit 3"), True, "mend it")
    assert (found.grade, found.text) == (BAD, "broken")


def test_conda(tmp_path: Path) -> None:
    program = tmp_path / "conda"
    program.write_text("#!/bin/sh\n")
    assert checks.conda({"PATH": str(tmp_path), "CONDA_EXE": str(program)}).grade == WARN
    program.chmod(0o755)
    assert checks.conda({"PATH": str(tmp_path)}).grade == OK
    assert checks.conda({"PATH": "/nowhere"}).grade == WARN


def test_a_log_root_that_can_be_made_is_good(tmp_path: Path) -> None:
    assert checks.log_root(str(tmp_path / "a" / "b")).grade == OK
    assert checks.log_root("/proc/logs").grade == BAD


def test_permissions(home: Path) -> None:
    uid = os.getuid()
    assert checks.permissions(str(home), uid).grade == OK
    (home / "token").chmod(0o644)
    assert "token has mode 644" in checks.permissions(str(home), uid).text
    (home / "token").chmod(0o600)
    home.chmod(0o777)
    assert checks.permissions(str(home), uid).grade == BAD
    assert checks.permissions(str(home / "later"), uid).grade == OK


def test_a_home_of_somebody_else(home: Path) -> None:
    assert checks.permissions(str(home), os.getuid() + 1).grade == BAD


def test_the_socket(listening: Path, home: Path) -> None:
    uid = os.getuid()
    assert checks.socket_permissions(str(listening), uid).grade == OK
    listening.parent.chmod(0o777)
    assert checks.socket_permissions(str(listening), uid).grade == BAD
    assert "no socket" in checks.socket_permissions(str(home / "token"), uid).text
    assert checks.socket_permissions(str(home / "gone"), uid).grade == OK


def test_the_database(home: Path) -> None:
    path = home / "odd %3f name.db"
    assert "not there yet" in checks.database(str(path)).text
    with closing(sqlite3.connect(path)) as ledger:
        ledger.execute("pragma journal_mode = wal")
        ledger.executescript(
            "create table task (id integer, command text); create index by_command on task (command)"
        )
        ledger.executemany("insert into task values (?, ?)", [(each, f"{each:0>200}") for each in range(500)])
        ledger.commit()
        assert checks.database(str(path)).grade == OK  # while a master has it open
        assert checks.database(str(path), limit_s=-1.0).grade == OK
    before = {each.name: each.read_bytes() for each in home.iterdir()}
    assert checks.database(str(path)).grade == OK
    assert {each.name: each.read_bytes() for each in home.iterdir()} == before


@pytest.mark.parametrize("at", [0, 8192])
def test_a_damaged_database_says_what_to_do(home: Path, at: int) -> None:
    path = home / "lab-gpu.db"
    with closing(sqlite3.connect(path)) as ledger:
        ledger.execute("create table task (id integer, command text)")
        ledger.executemany("insert into task values (?, ?)", [(each, "x" * 900) for each in range(200)])
        ledger.commit()
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 4096)
    found = checks.database(str(path))
    assert found.grade == BAD and "damaged" in found.text and "move it away" in str(found.advice)


def test_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs_result((4096, 4096, 1 << 30, 0, 1 << 30, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert checks.disk_space("disk", str(tmp_path / "not" / "yet")).grade == OK
    room = os.statvfs_result((4096, 4096, 1 << 30, 0, (1 << 30) // 4096, 10, 10, 10, 0, 255))
    assert checks.disk_space("disk", str(tmp_path)).grade == WARN
    room = os.statvfs_result((4096, 4096, 1 << 30, 0, 10, 10, 10, 10, 0, 255))
    assert checks.disk_space("disk", str(tmp_path)).grade == BAD
    room = os.statvfs_result((4096, 4096, 1 << 30, 0, 1 << 30, 10, 0, 0, 0, 255))
    assert checks.disk_space("disk", str(tmp_path)).grade == BAD


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/etc", "ext4"), ("/home/ann", "nfs4"), ("/homely", "ext4"), ("/home/ann/my disk/x", "xfs")],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert checks.file_system_of(path, MOUNTS) == kind


def test_a_home_on_a_network_file_system_is_worth_a_word() -> None:
    assert checks.file_system("/home/ann", MOUNTS).grade == WARN
    assert checks.file_system("/etc", MOUNTS).grade == OK


def test_a_clock_of_the_past(tmp_path: Path) -> None:
    assert checks.clock(str(tmp_path), 0).grade == BAD
    assert checks.clock(str(tmp_path), time.time()).grade == OK


def test_lingering(tmp_path: Path) -> None:
    running, marks = tmp_path / "systemd", tmp_path / "linger"
    running.mkdir()
    marks.mkdir()
    assert checks.lingering("ann", 1000, str(tmp_path / "none"), str(marks)).grade == OK
    assert checks.lingering("root", 0, str(running), str(marks)).grade == OK
    assert checks.lingering("ann", 1000, str(running), str(marks)).advice == "loginctl enable-linger"
    (marks / "ann").touch()
    assert checks.lingering("ann", 1000, str(running), str(marks)).grade == OK


@pytest.mark.parametrize(("text", "grade"), [("128\n", OK), ("8\n", WARN), ("many", WARN)])
def test_inotify(tmp_path: Path, text: str, grade: str) -> None:
    (tmp_path / "max_user_instances").write_text(text)
    assert checks.inotify(str(tmp_path)).grade == grade


def test_a_master_of_another_version() -> None:
    answer = {"pid": 7, "version": "0.1.0", "url": None, "socket": "/s", "warnings": ["disk is slow"]}
    same, version, warning = checks.master(answer, None, "0.1.0")
    assert (same.text, version.grade, warning.text) == ("pid 7, /s", OK, "disk is slow")
    assert "server restart" in str(checks.master(answer, None, "0.2.0")[1].advice)
    assert checks.master(None, "no master runs", "0.1.0")[0].grade == WARN


def test_a_tool_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TOOL_LIMIT_S", 0.05)
    assert checks.run_tool(("sleep", "60"))[0] == 124

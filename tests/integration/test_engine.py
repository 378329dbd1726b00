"""What is the local engine's own: the death of the master, and hosts that lack something."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_gpu.core.attempts import LaunchFailed
from lab_gpu.core.model import Activation, ProcessName
from lab_gpu.engines.local import LocalEngine
from lab_gpu.engines.spawn import find_bash
from lab_gpu.testing.attempts import NO_GPUS, AttemptScene, wait_for


@pytest.fixture
def scene() -> Iterator[AttemptScene]:
    scene = AttemptScene(LocalEngine())
    yield scene
    scene.close()


MASTER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lab_gpu.engines.local import LocalEngine
from lab_gpu.testing.attempts import NO_GPUS, AttemptScene
scene = AttemptScene(LocalEngine())
running = scene.engine.arm(scene.order("echo $$ > ran; sleep 60; exit 5"))
scene.engine.start(running, NO_GPUS)
waiting = [scene.engine.arm(scene.order("touch never")) for _ in range(3)]
for one in (running, *waiting):
    print(one.order.directory, one.order.uni_id, one.process.pid, one.process.started, flush=True)
print(scene.home, flush=True)
time.sleep(60)
"""


def test_the_masters_death_ends_what_waits_and_nothing_else(scene: AttemptScene):
    source = os.path.join(os.path.dirname(__file__), "../../src")
    master = subprocess.Popen([sys.executable, "-c", MASTER, source], stdout=subprocess.PIPE, text=True)
    assert master.stdout is not None
    told = [master.stdout.readline().split() for _ in range(4)]
    home = master.stdout.readline().strip()
    (ran, uni_id, runner), *waiting = [
        (directory, uni_id, ProcessName(int(pid), int(started))) for directory, uni_id, pid, started in told
    ]
    wait_for(Path(home, "ran").exists)
    master.send_signal(signal.SIGKILL)
    master.wait()
    master.stdout.close()
    for _, _, process in waiting:
        wait_for(lambda process=process: not scene.engine.alive(process))
    assert not any(os.path.exists(f"{directory}/begun") for directory, _, _ in waiting)
    assert not Path(home, "never").exists()
    found = scene.engine.find(ran, uni_id, runner)
    assert found.runner_alive
    assert len(found.processes) == 2
    scene.engine.kill(uni_id, runner, runner.pid)
    wait_for(lambda: scene.engine.exit_record(ran))
    record = scene.engine.exit_record(ran)
    assert record is not None
    assert record.code == 128 + signal.SIGKILL
    subprocess.run(["rm", "-rf", home], check=True)


def test_a_host_without_bash(scene: AttemptScene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scene.engine, "_bash", None)
    order = scene.order()
    with pytest.raises(LaunchFailed, match="install bash"):
        scene.engine.arm(order)
    assert os.listdir(scene.home) == []


def test_bash_is_found_wherever_it_is(tmp_path: Path):
    mine = tmp_path / "bash"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    assert find_bash(f"/nowhere::{tmp_path}") in ("/bin/bash", str(mine))


def test_a_log_root_one_may_not_write(scene: AttemptScene):
    """As another user: root may write anywhere."""
    root = Path(scene.home, "closed")
    root.mkdir(mode=0o555)
    os.chmod(scene.home, 0o755)
    if os.getuid() == 0:
        root.rmdir()
        root.symlink_to("/proc/1/task")  # nothing can be made there, not even by root
    with pytest.raises(LaunchFailed, match=r"cannot write the log .*--log-root"):
        scene.engine.arm(scene.order(log_path=f"{root}/1.log"))
    assert not Path(scene.home, "tasks").exists()


def test_a_full_disk_keeps_a_command_from_starting_unrecorded(scene: AttemptScene):
    """`begun` that cannot be written is no beginning."""
    start = Path(scene.home, "start")
    start.write_text("trap '' XFSZ; ulimit -f 0\n")
    armed = scene.start("touch ran", environment={**scene.environment, "BASH_ENV": str(start)})
    assert scene.end(armed) is None
    assert Path(armed.order.directory, "begun").read_bytes() == b""
    assert scene.engine.begun(armed.order.directory) is None
    assert not Path(scene.home, "ran").exists()


def test_files_are_their_owners_alone(scene: AttemptScene):
    """A command may hold secrets."""
    armed = scene.arm("curl -H 'token: x'")
    for name in ("run.sh", "command.sh"):
        assert stat.S_IMODE(os.stat(f"{armed.order.directory}/{name}").st_mode) == 0o700


def test_a_revoked_one_that_will_not_end_is_collected_later(
    scene: AttemptScene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lab_gpu.engines.local._ended_within", lambda pid, patience_ms: False)
    armed = scene.engine.arm(scene.order())
    scene.engine.revoke(armed)
    wait_for(lambda: "Z" in (Path(f"/proc/{armed.process.pid}/stat").read_text()))
    refused = scene.order(log_path="/proc/none/1.log")

    def collected() -> bool:
        with pytest.raises(LaunchFailed):
            scene.engine.arm(refused)
        return not os.path.exists(f"/proc/{armed.process.pid}")

    wait_for(collected)


def test_two_hundred_cycles_leave_nothing(scene: AttemptScene):
    wait_for(lambda: scene.engine.strays(()) in (None, ()))  # what other scenes left to us
    descriptors = len(os.listdir("/proc/self/fd"))
    started = []
    for _ in range(200):
        armed = scene.engine.arm(scene.order("true"))
        scene.engine.start(armed, NO_GPUS)
        started.append(armed)
    for armed in started:
        assert scene.end(armed) == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not any(os.path.exists(f"/proc/{armed.process.pid}") for armed in started)
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def test_revoking_costs_no_wait(scene: AttemptScene):
    """Even where an activation is under way."""
    slow = Path(scene.home, "bin")
    slow.mkdir()
    (slow / "activate").write_text("sleep 60\n")
    armed = scene.engine.arm(scene.order(activation=Activation("venv", scene.home)))
    wait_for(lambda: len(scene.tree(armed)) == 2)
    began = time.monotonic()
    scene.engine.revoke(armed)
    assert time.monotonic() - began < 5.0
    wait_for(lambda: not scene.tree(armed))

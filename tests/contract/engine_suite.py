"""What every adapter of the Engine port keeps. An adapter's test class inherits it and gives the fixture `scene`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from lab_gpu.core.attempts import GpuLine, LaunchFailed
from lab_gpu.core.model import ProcessName
from lab_gpu.testing.attempts import NO_GPUS, AttemptScene, wait_for


def made(scene: AttemptScene, name: str) -> Path:
    """A file of the working directory, once it is there."""
    path = Path(scene.home, name)
    wait_for(path.exists)
    return path


class EngineSuite:
    # -- armed, started, taken back

    def test_an_armed_attempt_does_nothing(self, scene: AttemptScene):
        armed = scene.arm("touch ran")
        assert scene.engine.alive(armed.process)
        assert scene.engine.begun(armed.order.directory) is None
        assert not Path(scene.home, "ran").exists()

    def test_a_started_one_runs_and_leaves_its_record(self, scene: AttemptScene):
        armed = scene.start("echo hello; exit 3")
        assert scene.end(armed) == 3
        assert scene.log(armed) == "hello\n"
        begun = scene.engine.begun(armed.order.directory)
        assert begun is not None
        assert begun.boot_id == scene.engine.boot_id
        record = scene.engine.exit_record(armed.order.directory)
        assert record is not None
        assert begun.at <= record.at

    def test_begun_names_the_commands_own_process(self, scene: AttemptScene):
        armed = scene.start("echo $$; cat /proc/$$/stat; sleep 60")
        text = wait_for(lambda: scene.log(armed) if scene.log(armed).count("\n") == 2 else "")
        pid, stat = text.splitlines()
        begun = scene.engine.begun(armed.order.directory)
        assert begun is not None
        assert begun.process == ProcessName(int(pid), int(stat.rpartition(")")[2].split()[19]))

    def test_it_sees_its_gpus(self, scene: AttemptScene):
        ask = (
            'echo "[$CUDA_VISIBLE_DEVICES][$NVIDIA_VISIBLE_DEVICES][${XLA_PYTHON_CLIENT_MEM_FRACTION-none}]"'
        )
        assert scene.run(ask, GpuLine("0,2", "GPU-a,GPU-b", "0.5"))[1] == "[0,2][GPU-a,GPU-b][0.5]\n"
        assert scene.run(ask, GpuLine("", ""))[1] == "[][][none]\n"

    def test_a_revoked_one_leaves_nothing(self, scene: AttemptScene):
        armed = scene.engine.arm(scene.order("touch ran"))
        scene.engine.revoke(armed)
        assert not scene.engine.alive(armed.process)
        assert not os.path.exists(armed.order.directory)
        assert not os.path.exists(armed.order.log_path)
        assert not Path(scene.home, "ran").exists()

    def test_a_log_that_was_there_is_added_to_and_survives_a_revoke(self, scene: AttemptScene):
        log = Path(scene.home, "mine.log")
        log.write_text("before\n")
        scene.engine.revoke(scene.engine.arm(scene.order("echo no", log_path=str(log))))
        assert log.read_text() == "before\n"
        scene.run("echo after", log_path=str(log))
        assert log.read_text() == "before\nafter\n"

    def test_a_log_root_cleared_meanwhile_is_made_again(self, scene: AttemptScene):
        armed = scene.arm("echo here")
        os.unlink(armed.order.log_path)
        os.rmdir(os.path.dirname(armed.order.log_path))
        scene.go(armed)
        assert scene.end(armed) == 0
        assert scene.log(armed) == "here\n"

    def test_start_fails_clearly_where_the_shell_is_gone(self, scene: AttemptScene):
        armed = scene.arm("true")
        os.killpg(armed.process.pid, SIGKILL)
        wait_for(lambda: not scene.engine.alive(armed.process) and not scene.tree(armed))
        with pytest.raises(LaunchFailed, match="cannot start task"):
            scene.go(armed)

    def test_a_log_root_that_cannot_be_is_an_error_before_anything_runs(self, scene: AttemptScene):
        Path(scene.home, "file").touch()
        order = scene.order("touch ran", log_path=f"{scene.home}/file/1.log")
        with pytest.raises(LaunchFailed, match="--log-root"):
            scene.engine.arm(order)
        assert not os.path.exists(order.directory)

    def test_a_directory_that_is_taken_is_never_touched(self, scene: AttemptScene):
        first = scene.start("echo one")
        scene.end(first)
        again = scene.order("echo two", directory=first.order.directory)
        with pytest.raises(LaunchFailed, match="File exists"):
            scene.engine.arm(again)
        assert scene.engine.exit_record(first.order.directory) is not None
        assert not os.path.exists(again.log_path)

    # -- who begins

    def test_a_barred_attempt_never_runs(self, scene: AttemptScene):
        armed = scene.arm("touch ran")
        assert scene.engine.bar(armed.order.directory)
        scene.go(armed)
        assert scene.end(armed) is None
        assert not Path(scene.home, "ran").exists()
        assert scene.engine.begun(armed.order.directory) is None

    def test_who_has_begun_cannot_be_barred(self, scene: AttemptScene):
        armed = scene.start("true")
        scene.end(armed)
        assert not scene.engine.bar(armed.order.directory)

    def test_exactly_one_wins(self, scene: AttemptScene):
        """The master bars and the shell begins at the same moment."""
        for number in range(40):
            armed = scene.arm(f"touch ran{number}")
            wait_for(lambda armed=armed: len(scene.tree(armed)) == 1)
            barred: list[bool] = []
            bar = threading.Thread(
                target=lambda armed=armed, barred=barred: barred.append(
                    scene.engine.bar(armed.order.directory)
                )
            )
            scene.go(armed)
            bar.start()
            bar.join()
            record = scene.end(armed)
            ran = Path(scene.home, f"ran{number}").exists()
            assert ran != barred[0]
            assert (record == 0) == ran
        assert scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process).processes == ()

    def test_the_end_of_the_master_ends_what_is_armed(self, scene: AttemptScene):
        """Nobody else holds the writing end of the pipe: not the shells armed after it."""
        armed, *others = [scene.arm("touch ran") for _ in range(3)]
        running = scene.start("sleep 60")
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, armed.pipe)  # the number stays ours, the pipe is closed
        os.close(nothing)
        wait_for(lambda: not scene.engine.alive(armed.process))
        assert all(scene.engine.alive(other.process) for other in (*others, running))
        assert not os.path.exists(f"{armed.order.directory}/begun")
        assert scene.engine.exit_record(armed.order.directory) is None
        assert not Path(scene.home, "ran").exists()

    # -- found again

    def test_find_a_running_one(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        found = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert found.begun is not None
        assert found.begun.process in found.processes
        assert (found.record, found.runner_alive) == (None, True)

    def test_find_an_ended_one(self, scene: AttemptScene):
        armed = scene.start("exit 4")
        scene.end(armed)
        found = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert found.begun is not None
        assert found.record is not None
        assert (found.record.code, found.runner_alive, found.processes) == (4, False, ())

    def test_find_bars_what_had_not_begun(self, scene: AttemptScene):
        armed = scene.arm("touch ran")
        found = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert (found.begun, found.record, found.runner_alive) == (None, None, True)
        scene.go(armed)
        assert scene.end(armed) is None
        again = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert (again.begun, again.record) == (None, None)
        assert not Path(scene.home, "ran").exists()

    def test_a_half_written_begun_of_a_living_runner_is_believed(self, scene: AttemptScene):
        armed = scene.arm("true")
        Path(armed.order.directory, "begun").touch()
        found = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert found.begun is not None
        scene.go(armed)
        assert scene.end(armed) is None
        later = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert later.begun is None

    def test_a_half_written_record_is_none(self, scene: AttemptScene):
        armed = scene.start("true")
        scene.end(armed)
        path = Path(armed.order.directory, "exit_code")
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        assert scene.engine.exit_record(armed.order.directory) is None

    def test_an_attempt_whose_directory_is_gone(self, scene: AttemptScene):
        found = scene.engine.find(f"{scene.home}/tasks/task_99/1", "99-1-none", None)
        assert (found.begun, found.record, found.runner_alive, found.processes) == (None, None, False, ())

    # -- its processes

    def test_run_sh_is_not_of_the_tree(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        wait_for(lambda: len(scene.tree(armed)) == 2)
        assert armed.process not in scene.tree(armed)
        assert armed.process not in scene.engine.tree(armed.order.uni_id, None, None)

    def test_sigterm_to_the_tree_leaves_a_record(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60; touch after")
        made(scene, "ran")
        for process in scene.tree(armed):
            scene.engine.send(process, SIGTERM)
        assert scene.end(armed) == 128 + SIGTERM
        assert not Path(scene.home, "after").exists()

    def test_run_sh_outlives_what_is_sent_to_its_group(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        os.killpg(armed.process.pid, SIGTERM)
        assert scene.end(armed) == 128 + SIGTERM

    def test_a_killed_shell_leaves_a_record(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        wait_for(lambda: "sleep" in scene.programs(armed))
        begun = scene.engine.begun(armed.order.directory)
        assert begun is not None
        scene.engine.send(begun.process, SIGKILL)
        assert scene.end(armed) == 128 + SIGKILL
        assert len(scene.tree(armed)) == 1  # the sleep it left

    def test_a_killed_run_sh_leaves_none_and_its_command_is_found(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        scene.engine.send(armed.process, SIGKILL)
        assert scene.end(armed) is None
        found = scene.engine.find(armed.order.directory, armed.order.uni_id, armed.process)
        assert found.begun is not None
        assert (found.record, found.runner_alive) == (None, False)
        assert found.begun.process in found.processes

    @pytest.mark.parametrize(
        "daemon",
        [
            "setsid sleep 60 & ",
            "(setsid sleep 60 & ) ; ",
            "nohup sleep 60 >/dev/null 2>&1 & disown; ",
            "python3 -c 'import os, time\n"
            "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(60)\n os._exit(0)'; ",
        ],
    )
    def test_daemons_are_found_and_ended(self, scene: AttemptScene, daemon: str):
        armed = scene.start(f"{daemon} exit 0")
        assert scene.end(armed) == 0
        left = wait_for(lambda: scene.tree(armed))
        assert all(scene.engine.alive(process) for process in left)
        scene.engine.kill(armed.order.uni_id, armed.process, armed.process.pid)
        wait_for(lambda: not any(scene.engine.alive(process) for process in left))
        assert scene.tree(armed) == ()

    def test_send_never_reaches_a_stranger(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        process = armed.process
        assert not scene.engine.send(ProcessName(process.pid, process.started - 1), SIGKILL)
        assert scene.engine.alive(process)
        assert not scene.engine.alive(ProcessName(process.pid, process.started - 1))

    def test_nobody_catches_in_a_plain_shell(self, scene: AttemptScene):
        armed = scene.start("touch ran; sleep 60")
        made(scene, "ran")
        assert scene.engine.catchers((*scene.tree(armed), armed.process), SIGUSR1) == ()

    def test_many_cycles_leave_no_process_and_no_descriptor(self, scene: AttemptScene):
        scene.run("true")
        before = sorted(os.listdir("/proc/self/fd"))
        armed = []
        for _ in range(100):
            armed.append(scene.engine.arm(scene.order("true")))
            scene.engine.start(armed[-1], NO_GPUS)
            scene.engine.revoke(scene.engine.arm(scene.order("true")))
            assert scene.end(armed[-1]) == 0
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert [one for one in armed if os.path.exists(f"/proc/{one.process.pid}")] == []
        wait_for(lambda: scene.engine.strays(()) in (None, ()))

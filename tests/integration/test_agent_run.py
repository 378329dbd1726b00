"""`lab-gpu agent run`: the command's own output, signals and exit code; the master only hears of it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from caretaker_stub import Stub, environment, lab_gpu, problem, short_home

from tests.support.masters import a_master, wait_until

ATTEMPT = {
    "attempt_id": 31,
    "number": 2,
    "uni_id": "u-2",
    "log_name": "1.log",
    "gpus": [{"node": "box", "index": 3, "uuid": "GPU-3", "name": "A100"}],
}
LIMIT_S = 30


@pytest.fixture
def home() -> Iterator[str]:
    with short_home() as folder:
        yield folder


@pytest.fixture
def master(home: str) -> Iterator[Stub]:
    with Stub(home).listening() as stub:
        stub.on(
            "POST", "/api/v1/tasks/1/outside-attempts", (201, {**ATTEMPT, "log_root_default": f"{home}/logs"})
        )
        stub.on("POST", "/api/v1/outside-attempts/31/end", {})
        yield stub


def agent_run(home: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return lab_gpu(home, "agent", "run", "--task-id", "1", *words, **more)


def started(home: str, command: str, **streams: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "lab_gpu", "agent", "run", "--task-id", "1", command]
    return subprocess.Popen(words, env=environment(home), cwd=home, **streams)  # type: ignore[call-overload, no-any-return]


def read_until(source: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        assert select.select([source], [], [], LIMIT_S)[0], seen
        seen += os.read(source, 4096)
    return seen


def test_output_goes_to_both_and_the_exit_code_is_the_commands(home: str, master: Stub) -> None:
    done = agent_run(home, "--mem-used", "10", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr and "exit code 7" in done.stderr and "10 GiB" in done.stderr
    assert sorted(Path(home, "logs/1.log").read_text().split()) == ["err", "out"]


def test_the_master_hears_of_the_attempt_and_of_its_end(home: str, master: Stub) -> None:
    agent_run(home, "--mem-used", "10", "true", CUDA_VISIBLE_DEVICES="2,3")
    begun = master.bodies("/api/v1/tasks/1/outside-attempts")[0]
    assert (begun["mem_mib"], begun["command"], begun["gpu_indices"]) == (10240, "true", [2, 3])
    assert begun["pid"] > 0 and begun["log_path"] == f"{home}/logs/1.log"
    ended = master.bodies("/api/v1/outside-attempts/31/end")
    assert ended == [{"exit_code": 0, "oom": False, "peak_mib": 10240}]


def test_the_command_knows_its_attempt_and_no_token(home: str, master: Stub) -> None:
    names = ("TASK_ID", "ATTEMPT", "UNI_ID", "MEM_MB", "TOKEN")
    shown = f"echo {' '.join(f'$LAB_GPU_{name}' for name in names)}/$CUDA_VISIBLE_DEVICES"
    done = agent_run(home, "--mem-used", "1G", shown, LAB_GPU_TOKEN="secret")
    assert done.stdout == "1 2 u-2 1024 /3\n"
    done = agent_run(home, "echo $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="0")
    assert done.stdout == "0\n"


def test_out_of_memory_is_read_from_the_log(home: str, master: Stub) -> None:
    done = agent_run(
        home, "--json", "--", "sh", "-c", "echo torch.OutOfMemoryError: CUDA out of memory; exit 1"
    )
    assert done.returncode == 1 and "out of GPU memory" in done.stderr
    assert master.bodies("/api/v1/outside-attempts/31/end")[0]["oom"] is True
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["task_id"], record["attempt"], record["exit_code"], record["oom"]) == (1, 2, 1, True)


def test_a_program_that_got_over_it_did_not_run_out(home: str, master: Stub) -> None:
    agent_run(home, "echo CUDA out of memory, trying a smaller batch")
    assert master.bodies("/api/v1/outside-attempts/31/end")[0]["oom"] is False


def test_without_a_master_it_warns_and_runs_all_the_same(home: str) -> None:
    done = agent_run(home, "echo here")
    assert (done.returncode, done.stdout) == (0, "here\n")
    assert "no master runs" in done.stderr and "runs all the same" in done.stderr
    assert Path(home, "logs/1.log").read_text() == "here\n"


def test_an_unknown_task_warns_and_runs_all_the_same(home: str, master: Stub) -> None:
    master.on(
        "POST", "/api/v1/tasks/1/outside-attempts", problem(404, "not_found", "cannot find task 1: no such")
    )
    done = agent_run(home, "echo here")
    assert (done.returncode, done.stdout) == (0, "here\n")
    assert "cannot find task 1" in done.stderr and "runs all the same" in done.stderr
    assert not master.bodies("/api/v1/outside-attempts/31/end")


def test_no_log_is_written_over(home: str) -> None:
    for _ in range(3):
        assert agent_run(home, "--log-root", "./mine", "echo again").returncode == 0
    assert sorted(path.name for path in Path(home, "mine").iterdir()) == ["1.2.log", "1.3.log", "1.log"]


def test_the_masters_number_is_in_the_name_where_the_plain_one_is_taken(home: str, master: Stub) -> None:
    Path(home, "logs").mkdir()
    Path(home, "logs/1.log").write_text("a stranger's\n")
    assert agent_run(home, "echo mine").returncode == 0
    assert Path(home, "logs/1.log").read_text() == "a stranger's\n"
    assert Path(home, "logs/1.2.log").read_text() == "mine\n"


def test_a_log_that_cannot_be_made_ends_the_attempt(home: str, master: Stub) -> None:
    Path(home, "logs").mkdir()
    name = "x" * 300
    master.on("POST", "/api/v1/tasks/1/outside-attempts", (201, {**ATTEMPT, "log_name": name}))
    done = agent_run(home, "touch ran")
    assert done.returncode == 2 and "--log-root" in done.stderr
    assert master.bodies("/api/v1/outside-attempts/31/end") and not Path(home, "ran").exists()


def test_on_a_real_master_the_newest_attempt_has_the_plain_name() -> None:
    with a_master() as real:
        task = real.submit("echo first; false")
        real.wait(task)
        words = [sys.executable, "-m", "lab_gpu", "agent", "run", "--task-id", str(task), "--json", "--"]
        environ = {**real.environ, "LAB_GPU_HOST": f"unix:{real.ready['socket']}"}
        for said in ("second", "third"):
            subprocess.run(
                [*words, "echo", said], env=environ, cwd=real.home, check=True, capture_output=True
            )
        attempts = real.task(task)["attempts"]
        logs = [(os.path.basename(each["log_path"]), Path(each["log_path"]).read_text()) for each in attempts]
    assert logs == [(f"{task}.1.log", "first\n"), (f"{task}.2.log", "second\n"), (f"{task}.log", "third\n")]


def test_a_log_that_the_master_still_writes_keeps_its_name() -> None:
    with a_master() as real:
        task = real.submit("until [ -e go ]; do sleep 0.02; done; echo first")
        wait_until(lambda: real.task(task)["attempts"], "it runs")
        words = [sys.executable, "-m", "lab_gpu", "agent", "run", "--task-id", str(task), "echo second"]
        environ = {**real.environ, "LAB_GPU_HOST": f"unix:{real.ready['socket']}"}
        subprocess.run(words, env=environ, cwd=real.home, check=True, capture_output=True)
        Path(real.home, "go").touch()
        real.wait(task)
        attempts = real.task(task)["attempts"]
        logs = [(os.path.basename(each["log_path"]), Path(each["log_path"]).read_text()) for each in attempts]
    assert logs == [(f"{task}.log", "first\n"), (f"{task}.2.log", "second\n")]


def test_a_log_root_that_cannot_be_written_stops_it_before_anything_runs(home: str, master: Stub) -> None:
    done = agent_run(home, "--log-root", "/proc/logs", f"touch {home}/ran")
    assert done.returncode == 2 and "--log-root" in done.stderr
    assert not Path(home, "ran").exists() and not master.bodies("/api/v1/tasks/1/outside-attempts")


def test_an_unknown_environment_stops_it_too(home: str) -> None:
    done = agent_run(home, "--env", "nowhere", f"touch {home}/ran")
    assert done.returncode == 2 and "cannot use the environment 'nowhere'" in done.stderr
    assert not Path(home, "ran").exists()


def test_a_venv_is_activated_by_its_own_script(home: str) -> None:
    folder = Path(home, "venv/bin")
    folder.mkdir(parents=True)
    folder.joinpath("activate").write_text("export WHO=venv\n")
    assert agent_run(home, "--env", "./venv", "echo $WHO").stdout == "venv\n"
    folder.joinpath("activate").write_text("return 3\n")
    assert agent_run(home, "--env", "./venv", "echo $WHO").returncode == 3


def test_a_conda_environment_is_activated_by_condas_script(home: str) -> None:
    root = Path(home, "conda")
    for folder in ("bin", "etc/profile.d", "envs/mine/conda-meta"):
        root.joinpath(folder).mkdir(parents=True)
    root.joinpath("bin/conda").touch()
    root.joinpath("etc/profile.d/conda.sh").write_text('conda() { echo "$1 $2"; }\n')
    done = agent_run(home, "--env", "mine", "echo run", CONDA_EXE=str(root / "bin/conda"))
    assert done.stdout == f"activate {root}/envs/mine\nrun\n"


def test_input_is_passed_through(home: str) -> None:
    process = started(
        home, "read line; echo got $line", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3
    )
    assert process.communicate(b"words\n", timeout=LIMIT_S)[0] == b"got words\n"


def test_a_signal_reaches_the_whole_command_and_decides_the_exit_code(home: str) -> None:
    process = started(home, "echo up; sleep 600; echo never", stdout=subprocess.PIPE, stderr=-3)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up")
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest) == (128 + signal.SIGTERM, b"")


def test_a_soft_signal_goes_to_what_catches_it(home: str) -> None:
    command = "trap 'echo saved; exit 4' USR1; echo up; while :; do sleep 0.02; done"
    process = started(home, command, stdout=subprocess.PIPE, stderr=-3)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up")
    process.send_signal(signal.SIGUSR1)
    rest, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest) == (4, b"saved\n")


def test_a_soft_signal_that_nothing_catches_ends_it_at_once(home: str) -> None:
    process = started(home, "echo up; sleep 600", stdout=subprocess.PIPE, stderr=-3)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_what_it_leaves_behind_does_not_hold_it(home: str) -> None:
    done = agent_run(home, "sleep 600 & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0


def test_on_a_terminal_the_command_has_one_and_ctrl_c_reaches_it(home: str) -> None:
    catching = "trap 'echo interrupted; exit 9' INT"
    program = f"{catching}; [ -t 1 ] && printf 'tty\\r50%%\\n'; while :; do sleep 0.02; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        words = [sys.executable, "-m", "lab_gpu", "agent", "run", "--task-id", "1", program]
        os.execve(sys.executable, words, environment(home))
    try:
        assert b"tty\r50%\r\n" in read_until(terminal, b"50%\r\n")
        os.write(terminal, b"\x03")
        assert b"interrupted\r\n" in read_until(terminal, b"exit code 9")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    finally:
        os.close(terminal)
    assert Path(home, "logs/1.log").read_bytes() == b"tty\r50%\ninterrupted\n"


def test_a_reader_that_leaves_costs_the_run_nothing(home: str) -> None:
    source, end = os.pipe()
    process = started(home, "echo up; sleep 0.1; echo more; exit 5", stdout=end, stderr=-3)
    os.close(end)
    read_until(source, b"up")
    os.close(source)
    assert process.wait(LIMIT_S) == 5
    assert Path(home, "logs/1.log").read_text() == "up\nmore\n"

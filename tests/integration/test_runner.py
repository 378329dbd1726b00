"""What a command meets in command.sh, and what run.sh makes of its end: real shells, every form a person may submit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab_gpu.core.attempts import GpuLine, LaunchFailed
from lab_gpu.core.model import Activation
from lab_gpu.engines.local import LocalEngine
from lab_gpu.testing.attempts import AttemptScene, wait_for


@pytest.fixture
def scene() -> Iterator[AttemptScene]:
    scene = AttemptScene(LocalEngine())
    yield scene
    scene.close()


# -- commands


@pytest.mark.parametrize(
    ("command", "code", "log"),
    [
        ("true", 0, ""),
        ("false", 1, ""),
        ("exit 3", 3, ""),
        ("exit 3\necho never", 3, ""),
        ("false\necho on\nfalse\ntrue", 0, "on\n"),
        ("true\nfalse", 1, ""),
        ("exec echo replaced", 0, "replaced\n"),
        ("exec sh -c 'exit 9'", 9, ""),
        ("cat", 0, ""),
        ("read -r line || echo nothing to read", 0, "nothing to read\n"),
        ("echo one; sleep 0.01 &", 0, "one\n"),
        ("cat <<END\na $((1 + 1))\nEND", 0, "a 2\n"),
        ("cat <<'END'\n$x `y`\nEND\n", 0, "$x `y`\n"),
        ("echo '字' ünï 🚀", 0, "字 ünï 🚀\n"),
        ('echo "it\'s \\"quoted\\""', 0, 'it\'s "quoted"\n'),
        ("# only a comment", 0, ""),
        ("", 0, ""),
        ("printf 'no newline'", 0, "no newline"),
        ("printf '\\033[31mred\\033[0m\\r50%%\\r100%%\\n'", 0, "\033[31mred\033[0m\r50%\r100%\n"),
        ("sh -c 'kill -9 $$'; exit $?", 137, None),
        ("kill -TERM $$", 143, ""),
        ("kill -9 $$", 137, ""),
        ("python3 -c 'import os; os.abort()' 2>/dev/null; exit $?", 134, None),
        ("echo a >&2; echo b", 0, "a\nb\n"),
        ("echo $#:$0", 0, None),
        ("set -e\nfalse\necho never", 1, ""),
        ("set -u; echo $IFS.; set | grep -c _lab_gpu_", 1, ".\n0\n"),
        ("[ -e /proc/self/fd/9 ] && echo leaked; true", 0, ""),
        ("f() { echo f $1; }; f x", 0, "f x\n"),
        ("echo 'a\\\nb' \\", 0, "a\\\nb\n"),
    ],
)
def test_commands(scene: AttemptScene, command: str, code: int, log: str | None):
    found, written = scene.run(command)
    assert found == code
    assert log is None or written == log


@pytest.mark.parametrize("command", ["echo 'open", 'echo "open', "if true", "( echo", "echo )", "done"])
def test_a_command_bash_cannot_read_fails_with_its_own_words(scene: AttemptScene, command: str):
    code, log = scene.run(command)
    assert code == 2
    assert "command.sh: line" in log


def test_a_very_long_command(scene: AttemptScene):
    lines = "\n".join(f"x{number}='{'y' * 90}'" for number in range(20_000))
    assert scene.run(f"{lines}\necho $x19999")[1] == "y" * 90 + "\n"


def test_a_background_job_does_not_keep_the_attempt(scene: AttemptScene):
    armed = scene.start("sleep 60 & echo started")
    assert scene.end(armed) == 0
    assert len(scene.tree(armed)) == 1


def test_bytes_that_are_no_text_reach_the_log(scene: AttemptScene):
    assert scene.run("printf '\\377\\000x'")[1] == "\udcff\0x"


def test_a_command_from_a_latin1_shell(scene: AttemptScene):
    assert scene.run("echo f\udce9")[1] == "f\udce9\n"


def test_the_log_is_appended_to(scene: AttemptScene):
    armed = scene.start("echo one; sleep 60")
    wait_for(lambda: scene.log(armed))
    with open(armed.order.log_path, "a") as other:
        other.write("a line of ours\n")
    begun = scene.engine.begun(armed.order.directory)
    assert begun is not None
    scene.engine.kill(armed.order.uni_id, armed.process, armed.process.pid)
    scene.end(armed)
    assert scene.log(armed) == "one\na line of ours\n"


# -- where and with what it runs


def test_it_runs_in_its_workdir(scene: AttemptScene):
    workdir = Path(scene.home, "a dir with 'quotes' and ünï")
    workdir.mkdir()
    assert scene.run("pwd", workdir=str(workdir)) == (0, f"{workdir}\n")


def test_a_workdir_deleted_while_it_waited_is_a_clear_failure(scene: AttemptScene):
    workdir = Path(scene.home, "gone")
    workdir.mkdir()
    armed = scene.arm("touch ran", workdir=str(workdir))
    workdir.rmdir()
    scene.go(armed)
    assert scene.end(armed) == 1
    assert scene.log(armed).startswith(f"lab-gpu: cannot run in {workdir}: ")
    assert "--workdir" in scene.log(armed)


def environment_of(scene: AttemptScene, line: GpuLine | None = None, **changes: Any) -> dict[str, str]:
    _, log = scene.run("exec env -0", line or GpuLine("", ""), **changes)
    return dict(entry.split("=", 1) for entry in log.split("\0") if entry)


def test_its_environment_is_the_owners_and_ours(scene: AttemptScene):
    mine = {**scene.environment, "LINES_OF": "a\nb", "EMPTY": "", "ÜNÏ": "字", "LAB_GPU_TOKEN": "secret"}
    found = environment_of(scene, GpuLine("1", "GPU-b", "0.25"), environment=mine, vram_mib=1024)
    for ours_of_bash in ("_", "SHLVL", "PWD", "OLDPWD"):
        found.pop(ours_of_bash, None)
    assert found.pop("LAB_GPU_UNI_ID").startswith("1-1-")
    assert found == {
        **scene.environment,
        "LINES_OF": "a\nb",
        "EMPTY": "",
        "ÜNÏ": "字",
        "LAB_GPU_TASK_ID": "1",
        "LAB_GPU_ATTEMPT": "1",
        "LAB_GPU_GRACE_S": "300",
        "LAB_GPU_MEM_MB": "1024",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def test_who_set_a_fraction_keeps_it(scene: AttemptScene):
    line, name = GpuLine("0", "GPU-a", "0.25"), "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert environment_of(scene, line, setenv={name: ".9"})[name] == ".9"
    assert environment_of(scene, line, environment={**scene.environment, name: ".8"})[name] == ".8"


def test_setenv_may_choose_what_containers_see(scene: AttemptScene):
    found = environment_of(scene, GpuLine("0", "GPU-a"), setenv={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert (found["NVIDIA_VISIBLE_DEVICES"], found["CUDA_VISIBLE_DEVICES"]) == ("all", "0")


def test_a_users_functions_arrive_and_never_stand_in_ours(scene: AttemptScene):
    mine = {
        **scene.environment,
        "BASH_FUNC_greet%%": "() {  echo hello; }",
        "BASH_FUNC_cd%%": "() {  echo mine; builtin cd /; }",
        "BASH_FUNC_read%%": "() {  echo mine; }",
        "BASH_FUNC_printf%%": "() {  echo mine; }",
    }
    assert scene.run("greet; pwd", environment=mine) == (0, f"hello\n{scene.home}\n")


@pytest.mark.parametrize(
    ("options", "look_s"),
    [
        ({"SHELLOPTS": "errexit:nounset:xtrace:noexec"}, 0.2),
        ({"POSIXLY_CORRECT": "1"}, 0.2),
        ({"TMOUT": "1"}, 1.2),
    ],
)
def test_odd_shells_do_not_change_the_start(scene: AttemptScene, options: dict[str, str], look_s: float):
    armed = scene.arm("echo ran", environment={**scene.environment, **options})
    with pytest.raises(AssertionError):
        wait_for(lambda: not scene.engine.alive(armed.process), patience_s=look_s)
    scene.go(armed)
    assert scene.end(armed) == 0
    assert scene.log(armed) == "ran\n"


def test_bash_env_is_read_as_in_any_script_and_not_by_run_sh(scene: AttemptScene):
    start = Path(scene.home, "start")
    start.write_text("echo start\nmodule() { echo loaded $1; }\nset -eu\n")
    mine = {**scene.environment, "BASH_ENV": str(start)}
    assert scene.run("module cuda; echo $BASH_ENV", environment=mine) == (0, f"start\nloaded cuda\n{start}\n")


def test_no_signal_is_ignored_or_blocked(scene: AttemptScene):
    ask = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
    program = (
        "import signal, sys, os\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "from lab_gpu.engines.local import LocalEngine\n"
        "from lab_gpu.testing.attempts import AttemptScene\n"
        f"scene = AttemptScene(LocalEngine()); print(scene.run({ask!r})[1]); scene.close()\n"
    )
    source = os.path.join(os.path.dirname(__file__), "../../src")
    asked = subprocess.run(
        [sys.executable, "-c", program, source], capture_output=True, text=True, check=True
    )
    _, blocked, _, ignored = asked.stdout.split()
    of_the_c_library = 0b11 << 31  # 32 and 33, which every threaded program takes for itself
    assert (int(blocked, 16), int(ignored, 16) & ~of_the_c_library) == (0, 0)


def test_the_masters_own_descriptors_stay_its_own(scene: AttemptScene):
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        _, log = scene.run("for fd in /proc/$$/fd/*; do readlink $fd; done")
        assert "pipe" not in log
    finally:
        os.close(reading)
        os.close(writing)


def test_an_environment_no_process_can_have_is_refused(scene: AttemptScene):
    with pytest.raises(LaunchFailed, match="environment"):
        scene.engine.arm(scene.order(environment={"A=B": "1", "": "2"}))
    with pytest.raises(LaunchFailed, match="environment"):
        scene.engine.arm(scene.order(environment={"BIG": "x" * (1 << 22)}))
    assert os.listdir(f"{scene.home}/logs") == []


# -- activation


def fake_conda(home: str) -> Path:
    """A tree with conda's own entrance: a function that changes PATH, and knows one environment."""
    root = Path(home, "conda")
    (root / "etc/profile.d").mkdir(parents=True)
    (root / "envs/torch/bin").mkdir(parents=True)
    (root / "etc/profile.d/conda.sh").write_text(
        'conda() {\n  if [ ! -d "$2/bin" ]; then echo "EnvironmentNameNotFound: $2" >&2; return 1; fi\n'
        '  export PATH="$2/bin:$PATH" CONDA_PREFIX="$2" FROM_CONDA=conda\n}\n'
    )
    program = root / "envs/torch/bin/train"
    program.write_text("#!/bin/sh\necho trained in $CONDA_PREFIX $FROM_CONDA\n")
    program.chmod(0o755)
    return root


def test_conda_is_activated_by_its_own_script(scene: AttemptScene):
    root = fake_conda(scene.home)
    activation = Activation("conda", f"{root}/envs/torch", str(root))
    assert scene.run("train", activation=activation) == (0, f"trained in {root}/envs/torch conda\n")


def test_setenv_wins_over_an_activation(scene: AttemptScene):
    root = fake_conda(scene.home)
    activation = Activation("conda", f"{root}/envs/torch")
    assert scene.run("train", activation=activation, setenv={"FROM_CONDA": "mine"})[1].endswith(" mine\n")


def test_an_environment_that_is_gone_is_a_clear_failure(scene: AttemptScene):
    root = fake_conda(scene.home)
    code, log = scene.run("touch ran", activation=Activation("conda", f"{root}/envs/nope", str(root)))
    assert code == 1
    assert "EnvironmentNameNotFound" in log
    assert f"lab-gpu: cannot activate the conda environment {root}/envs/nope" in log
    assert not Path(scene.home, "ran").exists()


def test_a_conda_that_is_gone_is_a_clear_failure(scene: AttemptScene):
    code, log = scene.run("true", activation=Activation("conda", "/nowhere/envs/x"))
    assert code == 1
    assert log.startswith("lab-gpu: cannot activate the conda environment /nowhere/envs/x: /nowhere/etc/")


def test_a_venv_is_activated_by_its_own_script(scene: AttemptScene):
    venv = Path(scene.home, "my venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    code, log = scene.run(
        "echo $VIRTUAL_ENV; python -c 'import sys; print(sys.prefix)'",
        activation=Activation("venv", str(venv)),
    )
    assert (code, log) == (0, f"{venv}\n{venv}\n")
    shutil.rmtree(venv)
    assert scene.run("true", activation=Activation("venv", str(venv)))[0] == 1


def test_a_failed_activation_waits_for_its_turn(scene: AttemptScene):
    """It is an ending of the attempt, not a launch that failed."""
    armed = scene.arm("true", activation=Activation("venv", "/nowhere"))
    wait_for(lambda: len(scene.tree(armed)) == 1)
    assert scene.engine.alive(armed.process)
    scene.go(armed)
    assert scene.end(armed) == 1
    assert scene.engine.begun(armed.order.directory) is not None


# -- what lies in the directory


def test_the_directory(scene: AttemptScene):
    armed = scene.start("true")
    scene.end(armed)
    names = ["begun", "command.sh", "environment.txt", "exit_code", "run.sh", "tmux.log"]
    assert sorted(os.listdir(armed.order.directory)) == names
    assert os.readlink(f"{armed.order.directory}/tmux.log") == armed.order.log_path
    assert Path(armed.order.directory, "exit_code").read_text().splitlines()[0] == "0"


def test_the_environment_report(scene: AttemptScene):
    root = fake_conda(scene.home)
    armed = scene.start("exit 5", activation=Activation("conda", f"{root}/envs/torch"))
    scene.end(armed)
    record = scene.engine.exit_record(armed.order.directory)
    assert record is not None
    scene.engine.close_report(armed.order.directory, record)
    report = Path(armed.order.directory, "environment.txt").read_text()
    headings = [line for line in report.splitlines() if line.startswith("=====")]
    assert headings == [
        "===== Scheduler Environment =====",
        "===== Command Script Start =====",
        "===== Command Script Exit =====",
    ]
    assert f"PATH: {scene.environment['PATH']}" in report
    assert f"Script PATH: {root}/envs/torch/bin:" in report
    assert "command -v conda: conda" in report
    assert "Exit code: 5" in report


def test_nothing_but_the_command_is_started(scene: AttemptScene):
    """PATH holds no program at all: the scripts get by with what bash has in it."""
    empty = Path(scene.home, "empty")
    empty.mkdir()
    armed = scene.arm("echo ok", environment={"PATH": str(empty)})
    scene.go(armed)
    assert scene.end(armed) == 0
    assert scene.log(armed) == "ok\n"
    report = Path(armed.order.directory, "environment.txt").read_text()
    assert "Python on PATH: not found" in report


def test_a_record_finds_room_where_a_file_cannot_be_made(scene: AttemptScene):
    blocked = scene.arm("true")
    os.unlink(f"{blocked.order.directory}/exit_code")
    os.mkdir(f"{blocked.order.directory}/exit_code")
    scene.go(blocked)
    assert scene.end(blocked) == 0
    os.rmdir(f"{blocked.order.directory}/exit_code")
    assert scene.end(blocked) == 0

"""`submit` and its kin as real processes: what is sent, what is said, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cli_stage import Refusal, Stage, staged

from tests.support.waiting import wait_until


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


def _refuse(refusal: Refusal) -> None:
    raise refusal


def sent(stage: Stage) -> dict[str, object]:
    task: dict[str, object] = stage.master.bodies("/api/v1/tasks")[-1]["tasks"][0]
    return task


def test_the_documented_submit(stage: Stage) -> None:
    done = stage.lab_gpu(
        "submit", "--mem", "10G", "--priority", "normal", "python train.py", LAB_GPU_TOKEN="secret", FOO="bar"
    )
    assert done.out == "task 1 submitted; lab-gpu logs -f 1\n"
    assert done.err == ""
    body = stage.master.bodies("/api/v1/tasks")[0]
    assert body["tasks"] == [{"command": "python train.py", "mem_mib": 10240, "priority": 0}]
    assert body["workdir"] == os.path.realpath(stage.here)
    assert body["environment"]["FOO"] == "bar"
    assert "LAB_GPU_TOKEN" not in body["environment"]


def test_a_reason_to_wait_is_said(stage: Stage) -> None:
    stage.master.first_reason = "waiting for 1 GPU"
    assert stage.lab_gpu("submit", "x").out == "task 1 queued: waiting for 1 GPU; lab-gpu why 1 tells more\n"


def test_every_flag_arrives(stage: Stage) -> None:
    stage.lab_gpu(
        "submit", "--min-vram-gb", "12", "--gpus", "2", "--gpu-type", "RTX 3090", "--gpu-ids", "0-2,5", "--exclusive",
        "--node", "n", "--min-free-memory", "4G", "--max-util", "30", "--priority", "-5", "--time-limit", "2h",
        "--kill-at-limit", "--estimate", "90m", "--begin", "+1h", "--after", "12", "--after", "3-4:any", "--queue", "q",
        "--name", "run", "--workdir", "sub", "--env", "torch", "--setenv", "A=1", "--setenv", "B=x=y", "--setenv", "C",
        "--retries", "3", "--backoff", "1m", "--never-twice", "--no-output-limit", "30m", "--log-root", "~/logs",
        "--hold", "--array", "0-9:3%2", "python train.py", C="c",
    )  # fmt: skip
    body = sent(stage)
    assert isinstance(body.pop("begin_at"), float)
    assert body == {
        "command": "python train.py", "mem_mib": 12288, "gpus": 2, "gpu_type": "RTX 3090", "gpu_ids": [0, 1, 2, 5],
        "exclusive": True, "node": "n", "min_free_mib": 4096, "max_util": 30, "priority": -5, "time_limit_s": 7200.0,
        "kill_at_limit": True, "estimate_s": 5400.0, "queue": "q", "name": "run",
        "after": [{"id": 12, "kind": "ok"}, {"id": 3, "kind": "any"}, {"id": 4, "kind": "any"}],
        "workdir": os.path.realpath(stage.here) + "/sub", "env": "torch", "setenv": {"A": "1", "B": "x=y", "C": "c"},
        "max_retries": 3, "retry_pause_s": 60.0, "never_twice": True, "no_output_limit_s": 1800.0,
        "log_root": f"{stage.folder}/logs", "held": True, "array": {"first": 0, "last": 9, "step": 3, "limit": 2},
    }  # fmt: skip


def test_habits_of_other_queues(stage: Stage) -> None:
    stage.lab_gpu(
        "submit",
        "-t",
        "1-12:00",
        "-J",
        "run",
        "-p",
        "q",
        "--dependency",
        "afterany:4:5",
        "--max-retries",
        "1",
        "x",
    )
    assert sent(stage) == {
        "command": "x", "time_limit_s": 129600.0, "name": "run", "queue": "q", "max_retries": 1,
        "after": [{"id": 4, "kind": "any"}, {"id": 5, "kind": "any"}],
    }  # fmt: skip


def test_what_follows_two_dashes_is_untouched(stage: Stage) -> None:
    stage.lab_gpu("submit", "--gpus", "0", "--", "python", "train.py", "--gpus", "8", "--", "a b", "$HOME")
    assert sent(stage) == {"command": "python train.py --gpus 8 -- 'a b' '$HOME'", "gpus": 0}


def test_flags_may_follow_the_command(stage: Stage) -> None:
    stage.lab_gpu("submit", "python train.py", "--mem", "1G")
    assert sent(stage) == {"command": "python train.py", "mem_mib": 1024}


def test_gpu_ids_alone_are_all_wanted(stage: Stage) -> None:
    stage.lab_gpu("submit", "--gpu-ids", "1,3", "x")
    assert sent(stage)["gpus"] == 2


def test_scripts_carry_flags_and_typed_ones_win(stage: Stage) -> None:
    stage.write("lab-gpu.yaml", "submit:\n  priority: high\n  gpu_type: A100\n  mem: 1G\n")
    stage.write("train.sh", "#LAB --mem 10G --gpus 2 --setenv A=1\necho\n")
    stage.lab_gpu("submit", "--gpus", "4", "--setenv", "B=2", "train.sh", LAB_GPU_SUBMIT__GPU_TYPE="H100")
    assert sent(stage) == {
        "command": "bash train.sh", "mem_mib": 10240, "gpus": 4, "setenv": {"A": "1", "B": "2"}, "gpu_type": "H100",
        "priority": 100,
    }  # fmt: skip


def test_a_script_with_arguments_keeps_its_flags(stage: Stage) -> None:
    stage.write("train.sh", "#LAB --mem 10G\necho\n")
    stage.lab_gpu("submit", "--", "./train.sh", "--fast")
    assert sent(stage) == {"command": "./train.sh --fast", "mem_mib": 10240}


def test_words_after_a_script_are_its_arguments(stage: Stage) -> None:
    stage.write("train.sh", "#LAB --mem 10G\necho\n")
    stage.lab_gpu("submit", "--gpus", "2", "train.sh", "0.1", "two words")
    assert sent(stage) == {"command": "bash train.sh 0.1 'two words'", "mem_mib": 10240, "gpus": 2}
    stage.lab_gpu("submit", "none.sh", "0.1", code=2)
    stage.lab_gpu("submit", "train.sh", "0.1", "--", "x", code=2)


def test_a_python_script(stage: Stage) -> None:
    stage.write("train.py", "#LAB --gpus 2\nprint()\n")
    stage.lab_gpu("submit", "train.py", "--workdir", "/tmp")
    task = sent(stage)
    assert task["gpus"] == 2
    assert str(task["command"]).split()[0] in ("python", "python3")
    assert str(task["command"]).split()[1] == os.path.realpath(stage.here) + "/train.py"


def test_a_conda_environment_comes_with_its_root(stage: Stage) -> None:
    stage.lab_gpu("submit", "--env", "torch", "x", CONDA_EXE="/opt/conda/bin/conda")
    assert sent(stage) == {"command": "x", "env": "torch", "conda_root": "/opt/conda"}
    stage.lab_gpu("submit", "--env", "./venv", "x")
    assert sent(stage)["env"] == os.path.realpath(stage.here) + "/venv"


@pytest.mark.parametrize(
    ("enforced", "flags", "words"),
    [(False, [], "; the plan counts on 2h of running, it is not stopped then;"),
     (True, [], "; it is stopped after 2h of running;"),
     (False, ["--kill-at-limit"], "; it is stopped after 2h of running;")],
)  # fmt: skip
def test_what_a_time_limit_means_is_said(stage: Stage, enforced: bool, flags: list[str], words: str) -> None:
    stage.master.policy["enforce_time_limit"] = enforced
    assert words in stage.lab_gpu("submit", "-t", "2h", *flags, "x").out


def test_quiet_json_and_arrays(stage: Stage) -> None:
    assert stage.lab_gpu("submit", "-q", "x").out == "1\n"
    assert stage.lab_gpu("submit", "--parsable", "x").out == "2\n"
    assert stage.lab_gpu("submit", "--json", "x").json["id"] == 3
    assert (
        stage.lab_gpu("submit", "--array", "0-9%4", "x").out
        == "tasks 4-13 (10) submitted; lab-gpu list 4-13\n"
    )
    assert [task["id"] for task in stage.lab_gpu("submit", "--json", "--array", "1-2", "x").json] == [14, 15]


def test_dry_run_adds_nothing(stage: Stage) -> None:
    done = stage.lab_gpu("submit", "--mem", "10G", "--priority", "high", "--dry-run", "python train.py")
    assert done.out == "would start now on n:0\n"
    assert stage.lab_gpu("submit", "--dry-run", "--json", "x").json["would"][0]["start"] is True
    assert stage.master.tasks == {}


def test_waiting_for_what_failed_is_no_success(stage: Stage) -> None:
    stage.master.first_state = "failed"
    stage.master.first_reason = "dependency 7 failed"
    done = stage.lab_gpu("submit", "--after", "7", "x", code=1)
    assert done.out == "task 1 failed already: dependency 7 failed; lab-gpu show 1\n"
    assert stage.lab_gpu("submit", "--after", "7", "--json", "x", code=1).json["state"] == "failed"
    stage.write("tasks.json", '[{"cmd": "a", "after": 7}, {"cmd": "b"}]')
    done = stage.lab_gpu("submit-batch", "tasks.json", code=1)
    assert done.err == "lab-gpu: tasks 3-4 failed already: dependency 7 failed\n"


def test_my_last_task_as_a_dependency(stage: Stage) -> None:
    stage.lab_gpu("submit", "a")
    stage.lab_gpu("submit", "--after", "@:any", "b")
    assert sent(stage)["after"] == [{"id": 1, "kind": "any"}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--mem", "10X", "x"], "cannot read size '10X': 'X' is no unit; write it like 10G or 10240M"),
     (["--memm", "1G", "x"], "cannot run 'lab-gpu submit': there is no flag --memm; did you mean --mem?"),
     (["--gpus", "two", "x"], "cannot read --gpus 'two': it is not a whole number; write it like --gpus 1"),
     (["--max-util", "101", "x"], "cannot use --max-util 101: it must be 0 to 100; correct it"),
     (["--mem", "1G", "--min-vram-gb", "1", "x"],
      "cannot take both mem and min_vram_gb: they mean the same; give one of them"),
     (["--mem", "0", "x"], "cannot reserve '0' of memory: it is nothing; leave it away for whole GPUs"),
     (["-t", "0", "x"], "cannot use a time of '0': it is nothing; write it like 90s or 2h30m"),
     (["--setenv", "1A=2", "x"], "cannot set variable '1A': that is no name for one; write it like NAME=value"),
     (["--setenv", "NOWHERE_SET", "x"],
      "cannot set variable 'NOWHERE_SET': it has no value here; write it like NAME=value"),
     (["--gpu-ids", "0-x", "x"], "cannot read GPU index '0-x': it is not a whole number; write it like 0,1 or 0-3"),
     ([], "cannot run nothing: no command is given; write it in quotes or after --"),
     (["  "], "cannot run nothing: no command is given; write it in quotes or after --"),
     (["python", "train.py"], "cannot tell where 'python …' ends: it has 2 words; put it in quotes or after --: "
      "-- python train.py"),
     (["x", "--", "y"], "cannot take both 'x' and what follows --: write the command once"),
     (["none.sh"], "cannot submit none.sh: there is no such file here; check the path")],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_2(stage: Stage, words: list[str], sentence: str) -> None:
    done = stage.lab_gpu("submit", *words, code=2)
    assert (done.out, done.err) == ("", f"lab-gpu: {sentence}\n")
    told = stage.lab_gpu("submit", "--json", *words, code=2)
    assert told.json == {"error": sentence, "slug": "refused", "problems": []}
    assert stage.master.asked == []


def test_a_refusal_of_the_master_is_told(stage: Stage) -> None:
    def refuse(method: str, path: str, body: object) -> None:
        if path == "/api/v1/tasks":
            raise Refusal(
                422,
                "refused",
                "cannot submit: no GPU has 90 GiB; the largest has 80 GiB",
                ["mem_mib is too much"],
            )

    stage.master.refuse = refuse
    done = stage.lab_gpu("submit", "--mem", "90G", "x", code=2)
    assert (
        done.err
        == "lab-gpu: cannot submit: no GPU has 90 GiB; the largest has 80 GiB\n  mem_mib is too much\n"
    )


def test_text_that_is_no_text(stage: Stage) -> None:
    odd = os.fsdecode(b"\xff")
    assert "it holds bytes that are no UTF-8 text" in stage.lab_gpu("submit", f"echo {odd}", code=2).err
    done = stage.lab_gpu("submit", "x", ODD=odd)
    assert "'ODD' of your environment is no UTF-8 text and stays behind" in done.err
    assert "ODD" not in stage.master.bodies("/api/v1/tasks")[-1]["environment"]


def test_without_a_master(stage: Stage) -> None:
    done = stage.lab_gpu("status", code=3, LAB_GPU_HOST="")
    assert done.err == "lab-gpu: no master runs: start one with `lab-gpu server start`\n"
    assert stage.lab_gpu("status", "--json", code=3, LAB_GPU_HOST="").json["slug"] == "no_master"
    assert stage.lab_gpu("submit", "x", code=3, LAB_GPU_HOST="").out == ""


@pytest.mark.parametrize(
    ("state", "more", "code", "words"),
    [("completed", {"exit_code": 0}, 0, "task 1 completed\n"),
     ("failed", {"exit_code": 7}, 7, "task 1 failed with exit code 7\n"),
     ("failed", {"exit_code": -9, "reason": "killed"}, 137, "task 1 failed with exit code -9: killed\n"),
     ("failed", {"exit_code": None, "reason": "no disk"}, 1, "task 1 failed: no disk\n"),
     ("cancelled", {}, 1, "task 1 cancelled\n")],
)  # fmt: skip
def test_wait_ends_as_the_task_does(
    stage: Stage, state: str, more: dict[str, object], code: int, words: str
) -> None:
    child = stage.start("submit", "--wait", "x")
    wait_until(lambda: stage.master.bodies("/api/v1/wait"))
    stage.master.become(1, state, **more)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (code, "")
    assert out == f"task 1 submitted; lab-gpu logs -f 1\n{words}"


def test_batches_are_one_question(stage: Stage) -> None:
    path = stage.write("tasks.json", '{"tasks": [{"cmd": "a", "mem": "10G"}, {"cmd": "b", "retries": 5}]}')
    done = stage.lab_gpu("submit-batch", "--file", path, "--retries", "1", "--mem", "4G")
    assert done.out == "tasks 1-2 submitted (2); lab-gpu list 1-2\n"
    assert stage.master.bodies("/api/v1/tasks")[0]["tasks"] == [
        {"command": "a", "mem_mib": 10240, "max_retries": 1},
        {"command": "b", "mem_mib": 4096, "max_retries": 5},
    ]
    assert [task["id"] for task in stage.lab_gpu("submit-batch", "tasks.json", "--json").json] == [3, 4]
    assert stage.lab_gpu("submit-batch", "tasks.json", "-q").out == "5-6\n"
    assert (
        stage.lab_gpu("submit-batch", "-", stdin='{"cmd": "c"}\n').out
        == "task 7 submitted (1); lab-gpu list 7\n"
    )
    assert len(stage.lab_gpu("submit-batch", "tasks.json", "--dry-run").out.splitlines()) == 2


def test_a_batch_with_mistakes_sends_nothing(stage: Stage) -> None:
    stage.write("tasks.json", '[\n{"cmd": "a", "mem": "10X"},\n{"mem": "1G"}\n]')
    done = stage.lab_gpu("submit-batch", "--file", "tasks.json", code=2)
    assert done.err.splitlines() == [
        "lab-gpu: cannot submit tasks.json: it has 2 mistakes and none of it was queued; correct it",
        "  tasks.json:2: cannot read size '10X': 'X' is no unit; write it like 10G or 10240M",
        "  tasks.json:3: cmd is missing: every task needs a command",
    ]
    assert stage.master.asked == []
    assert len(stage.lab_gpu("submit-batch", "tasks.json", "--json", code=2).json["problems"]) == 2


def test_the_masters_mistakes_get_the_lines_of_the_file(stage: Stage) -> None:
    def refuse(method: str, path: str, body: object) -> None:
        raise Refusal(
            422,
            "refused",
            "cannot submit: 1 of 2 tasks is wrong; correct it",
            ["task 2: there is no /nowhere"],
        )

    stage.master.refuse = refuse
    stage.write("tasks.json", '[\n{"cmd": "a"},\n{"cmd": "b", "workdir": "/nowhere"}\n]')
    assert "  tasks.json:3: there is no /nowhere\n" in stage.lab_gpu("submit-batch", "tasks.json", code=2).err


def test_a_batch_waits_for_all_and_tells_who_failed(stage: Stage) -> None:
    stage.write("tasks.json", '[{"cmd": "a"}, {"cmd": "b"}, {"cmd": "c"}]')
    child = stage.start("submit-batch", "tasks.json", "--wait")
    wait_until(lambda: stage.master.bodies("/api/v1/wait"))
    stage.master.become(1, "completed")
    stage.master.become(2, "failed", exit_code=3, reason="exit code 3")
    stage.master.become(3, "completed")
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (1, "")
    assert out.splitlines()[1:] == ["3 tasks: 2 completed, 1 failed", "  task 2 failed: exit code 3"]


def test_ten_thousand_tasks_are_read_and_sent_in_a_moment(stage: Stage) -> None:
    """Against the interpreter's own start in the same run, since machines differ: 0.6 s where that takes 10 ms."""
    stage.write(
        "many.json",
        json.dumps({"tasks": [{"cmd": f"python train.py --seed {n}", "mem": "10G"} for n in range(10_000)]}),
    )

    def refuse(method: str, path: str, body: object) -> None:
        raise Refusal(422, "refused", "cannot submit: enough seen; go on")

    stage.master.refuse = refuse
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    alone_s = time.perf_counter() - begin
    begin = time.perf_counter()
    stage.lab_gpu("submit-batch", "many.json", code=2)
    assert time.perf_counter() - begin < max(60 * alone_s, 0.6)
    assert len(stage.master.bodies("/api/v1/tasks")[0]["tasks"]) == 10_000


SLOW_TO_IMPORT = {
    "asyncio", "dataclasses", "datetime", "difflib", "email", "http", "importlib.metadata", "inspect", "logging",
    "pathlib", "pydantic", "random", "shutil", "socket", "ssl", "subprocess", "tempfile", "textwrap", "threading",
    "typing", "urllib", "yaml",
}  # fmt: skip


@pytest.mark.parametrize("words", [("submit", "--mem", "10G", "python train.py"), ("status",)])
def test_a_cold_start_imports_little(stage: Stage, words: tuple[str, ...]) -> None:
    ran = (
        "import sys; before = set(sys.modules); from lab_gpu.cli.main import main; main(sys.argv[1:]); "
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", ran, *words],
        env=stage.env,
        cwd=stage.here,
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = set(done.stderr.split())
    assert "lab_gpu.client.transport" in imported, done.stderr
    assert not imported & SLOW_TO_IMPORT


def test_a_closed_stdout_is_no_error(stage: Stage) -> None:
    command = f"'{sys.executable}' -m lab_gpu submit x >&-"
    done = subprocess.run(
        ["bash", "-c", command], env=stage.env, cwd=stage.here, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(stage.master.tasks) == 1

"""What the caretaker types while a master runs: nodes, draining, preemption, ticks, policy, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caretaker_stub import SERVER, Stub, environment, lab_gpu, problem, short_home


@pytest.fixture
def home() -> Iterator[str]:
    with short_home() as folder:
        yield folder


@pytest.fixture
def master(home: str) -> Iterator[Stub]:
    with Stub(home).listening() as stub:
        yield stub


def task(state: str, attempt: int = 1) -> dict[str, Any]:
    return {"id": 4, "state": state, "attempt": attempt}


def test_status_says_where_the_master_is(home: str, master: Stub) -> None:
    done = lab_gpu(home, "server", "status")
    assert done.returncode == 0 and "pid 4711" in done.stdout and "http://127.0.0.1:1895" in done.stdout
    document = json.loads(lab_gpu(home, "server", "status", "--json").stdout)
    assert (document["pid"], document["url"]) == (4711, "http://127.0.0.1:1895")


def test_status_of_a_hand_driven_master_with_a_warning(home: str, master: Stub) -> None:
    master.on("GET", "/api/v1/server", {**SERVER, "manual_tick": True, "warnings": ["the home is on nfs4"]})
    done = lab_gpu(home, "server", "status")
    assert "server tick" in done.stdout and "the home is on nfs4" in done.stderr


@pytest.mark.parametrize(
    "words", [("server", "status"), ("server", "tick"), ("server", "drain", "n"), ("policy", "show")]
)
def test_commands_that_only_steer_say_that_no_master_runs(home: str, words: tuple[str, ...]) -> None:
    done = lab_gpu(home, *words)
    assert done.returncode == 3 and "no master runs" in done.stderr and "server start" in done.stderr
    assert done.stdout == ""


def test_tick_prints_what_was_decided_and_why(home: str, master: Stub) -> None:
    decided = {
        "started": [
            {"id": 1, "node": "node-1", "gpus": [{"index": 0}, {"index": 1}]},
            {"id": 2, "node": "n", "gpus": []},
        ],
        "waiting": [{"id": 3, "code": "gpus_busy", "text": "waiting for a GPU with 10 GiB free"}],
    }
    master.on("POST", "/api/v1/server/tick", decided)
    lines = lab_gpu(home, "server", "tick").stdout.splitlines()
    assert lines[0].endswith("started on node-1 GPU 0,1") and lines[1].endswith("n, no GPU")
    assert "waiting for a GPU with 10 GiB free" in lines[2]
    assert json.loads(lab_gpu(home, "server", "tick", "--json").stdout) == decided
    master.on("POST", "/api/v1/server/tick", {"started": [], "waiting": []})
    assert lab_gpu(home, "server", "tick").stdout == "nothing is queued\n"


def test_a_node_is_declared_in_mib(home: str, master: Stub) -> None:
    master.on("POST", "/api/v1/nodes", (201, {"name": "node-1", "created": True, "text": "node-1: 2 GPUs"}))
    words = ("--name", "node-1", "--gpus", "2", "--vram", "24", "--gpu-type", "RTX 3090")
    done = lab_gpu(home, "server", "add-node", *words)
    assert (done.returncode, done.stdout) == (0, "node-1: 2 GPUs\n")
    sent = {"name": "node-1", "gpus": 2, "vram_mib": 24576, "gpu_type": "RTX 3090", "virtual": False}
    assert master.bodies("/api/v1/nodes") == [sent]


def test_another_machine_is_refused_clearly(home: str, master: Stub) -> None:
    done = lab_gpu(home, "server", "add-node", "--name", "far", "--address", "10.0.0.9")
    assert done.returncode == 2 and "10.0.0.9" in done.stderr and not master.bodies("/api/v1/nodes")


@pytest.mark.parametrize("name", ["a b", "a/b", "node-1:0", "-a", ""])
def test_a_name_no_screen_could_show_is_refused(home: str, master: Stub, name: str) -> None:
    done = lab_gpu(home, "server", "add-node", f"--name={name}")
    assert done.returncode == 2 and not master.bodies("/api/v1/nodes")
    assert done.stderr == (
        f"lab-gpu: cannot add node '{name}': its name must be letters, digits, '.', '_' and '-', "
        "and begin with a letter or digit\n"
    )


@pytest.mark.parametrize(("flag", "word"), [("--gpus", "two"), ("--gpus", "0"), ("--vram", "10X")])
def test_a_wrong_size_or_count_is_named(home: str, master: Stub, flag: str, word: str) -> None:
    done = lab_gpu(home, "server", "add-node", "--name", "n", flag, word)
    assert done.returncode == 2 and word in done.stderr and not master.bodies("/api/v1/nodes")


def test_a_gpu_is_named_as_screens_show_it(home: str, master: Stub) -> None:
    for path in ("node-1/drain", "node-1/undrain"):
        master.on("POST", f"/api/v1/nodes/{path}", {})
    assert "GPU 0 of node node-1" in lab_gpu(home, "server", "drain", "node-1:0").stdout
    assert master.bodies("/api/v1/nodes/node-1/drain") == [{"gpu": 0, "reason": None}]
    assert lab_gpu(home, "server", "undrain", "node-1:0", "--gpu", "0").returncode == 0
    assert master.bodies("/api/v1/nodes/node-1/undrain") == [{"gpu": 0}]
    both = lab_gpu(home, "server", "drain", "node-1:0", "--gpu", "1")
    assert both.returncode == 2 and "one GPU at a time" in both.stderr


def test_nodes_are_drained_opened_and_forgotten(home: str, master: Stub) -> None:
    for path in ("node%201/drain", "node%201/undrain"):
        master.on("POST", f"/api/v1/nodes/{path}", {})
    master.on("DELETE", "/api/v1/nodes/node%201", {})
    done = lab_gpu(home, "server", "drain", "node 1", "--gpu", "3", "--reason", "fan")
    assert done.returncode == 0 and "GPU 3 of node node 1" in done.stdout
    assert master.bodies("/api/v1/nodes/node%201/drain") == [{"gpu": 3, "reason": "fan"}]
    assert lab_gpu(home, "server", "undrain", "node 1").returncode == 0
    assert master.bodies("/api/v1/nodes/node%201/undrain") == [{"gpu": None}]
    for words in (["node 1"], ["--name", "node 1"]):
        assert lab_gpu(home, "server", "remove-node", *words).returncode == 0
    assert lab_gpu(home, "server", "remove-node").returncode == 2


def test_what_the_master_refuses_is_its_own_sentence(home: str, master: Stub) -> None:
    sentence = "cannot drain node-9: there is no such node; see `lab-gpu status`"
    master.on("POST", "/api/v1/nodes/node-9/drain", problem(404, "not_found", sentence))
    done = lab_gpu(home, "server", "drain", "node-9", "--json")
    assert done.returncode == 1 and sentence in done.stderr
    assert json.loads(done.stdout)["slug"] == "not_found"


def test_preempt_records_the_wish_with_its_timeouts(home: str, master: Stub) -> None:
    master.on("POST", "/api/v1/tasks/actions", {"tasks": [task("running")], "errors": []})
    flags = ("--soft-timeout", "300", "--term-timeout", "30", "--then", "hold")
    done = lab_gpu(home, "server", "preempt", "--task-id", "4", *flags)
    assert done.returncode == 0 and "task 4" in done.stdout
    wish = master.bodies("/api/v1/tasks/actions")[0]
    assert wish == {
        "action": "preempt",
        "ids": [4],
        "soft_timeout_s": 300,
        "term_timeout_s": 30,
        "then": "hold",
    }


def test_preempt_waits_for_the_events_of_the_task(home: str, master: Stub) -> None:
    states = iter([task("running"), task("queued")])
    master.on("POST", "/api/v1/tasks/actions", {"tasks": [task("running")], "errors": []})
    master.on(
        "GET", "/api/v1/events", lambda query, _: {"events": [], "last": int(query.get("after", 7)) + 1}
    )
    master.on("GET", "/api/v1/tasks/4", lambda *_: next(states))
    done = lab_gpu(home, "server", "preempt", "--task-id", "4", "--wait")
    assert done.returncode == 0 and "is queued" in done.stdout
    asked = [query.get("after") for _, path, query, _ in master.asked if path == "/api/v1/events"]
    assert asked == [None, "8", "9"]


def test_preempt_of_what_does_not_run(home: str, master: Stub) -> None:
    error = {"id": 4, "slug": "too_late", "text": "cannot preempt task 4: it has ended"}
    master.on("POST", "/api/v1/tasks/actions", {"tasks": [], "errors": [error]})
    done = lab_gpu(home, "server", "preempt", "--task-id", "4")
    assert done.returncode == 1 and "cannot preempt task 4: it has ended" in done.stderr


def test_the_policy_in_force_is_shown_as_a_file(home: str, master: Stub) -> None:
    master.on(
        "GET", "/api/v1/policy", {"policy": {"preemption": True}, "path": "/etc/p.yaml", "night": False}
    )
    lines = lab_gpu(home, "policy", "show").stdout.splitlines()
    assert "/etc/p.yaml" in lines[0] and lines[1] == "preemption: true"


def test_a_policy_with_mistakes_is_never_sent(home: str, master: Stub) -> None:
    master.on(
        "POST", "/api/v1/policy/reload", {"policy": {}, "path": f"{home}/p.yaml", "changed": ["preemption"]}
    )
    Path(home, "p.yaml").write_text("preemption: maybe\nlauncher: magic\n")
    done = lab_gpu(home, "policy", "reload", "p.yaml")
    assert done.returncode == 2 and "line 1: preemption" in done.stderr and "line 2: launcher" in done.stderr
    assert not master.bodies("/api/v1/policy/reload")
    Path(home, "p.yaml").write_text("preemption: true\n")
    done = lab_gpu(home, "policy", "reload", "p.yaml")
    assert done.returncode == 0 and "changed: preemption" in done.stdout
    assert lab_gpu(home, "policy", "reload").returncode == 0
    assert master.bodies("/api/v1/policy/reload") == [{"path": f"{home}/p.yaml"}, {"path": None}]


def test_a_policy_is_checked_without_a_master(home: str) -> None:
    Path(home, "p.yaml").write_text('night_start: "22:00"\n')
    done = lab_gpu(home, "policy", "check", "p.yaml")
    assert done.returncode == 0 and "night_start" in done.stdout
    Path(home, "p.yaml").write_text("night_start: late\nx: 1\n")
    done = lab_gpu(home, "policy", "check", "p.yaml", "--json")
    assert done.returncode == 2 and len(json.loads(done.stdout)["problems"]) == 2


COMPLETE = """
source <("{python}" -m lab_gpu completion bash)
lab-gpu() {{ "{python}" -m lab_gpu "$@"; }}
complete_words() {{
  COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
  $(complete -p lab-gpu | sed 's/.*-F \\([^ ]*\\).*/\\1/')
  printf '%s\\n' "${{COMPREPLY[@]}}"
}}
"""


def completed(home: str, *words: str) -> list[str]:
    """What a real bash offers, by the function that the script it sourced has registered."""
    script = (
        COMPLETE.format(python=sys.executable) + "complete_words lab-gpu " + " ".join(f"'{w}'" for w in words)
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_real_bash_completes_commands_flags_and_living_ids(home: str, master: Stub) -> None:
    tasks = [{"id": 17, "queue": None}, {"id": 12, "queue": "night"}]
    master.on("GET", "/api/v1/status", {"nodes": [{"name": "node-1"}], "tasks": tasks})
    assert "server" in completed(home, "ser")
    assert {"start", "stop", "add-node"} <= set(completed(home, "server", ""))
    assert "--soft-timeout" in completed(home, "server", "preempt", "--so")
    assert completed(home, "server", "preempt", "--task-id", "1") == ["17", "12"]
    assert completed(home, "server", "drain", "n") == ["node-1"]
    Path(home, "mine.yaml").touch()
    assert completed(home, "policy", "check", "mi") == ["mine.yaml"]


def test_completion_without_a_master_offers_nothing_and_says_nothing(home: str) -> None:
    done = lab_gpu(home, "completion", "--live", "task_ids")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_shell_is_taken_from_the_environment(home: str) -> None:
    assert "compdef" in lab_gpu(home, "completion", SHELL="/bin/zsh").stdout
    done = lab_gpu(home, "completion", SHELL="/bin/odd")
    assert done.returncode == 2 and "lab-gpu completion bash" in done.stderr

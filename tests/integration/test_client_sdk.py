"""Client against a master that answers as the API does: run, submit, map, handles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import pytest
from fake_master import FakeMaster, Problem, http_answer, short_folder

import lab_gpu
from lab_gpu import Client, LabGpuTimeoutError, NoMaster, NotFound, Refused, TooLate


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    with short_folder() as home:
        monkeypatch.setenv("LAB_GPU_HOME", home)
        monkeypatch.setenv("LAB_GPU_AUTOSTART", "0")
        with FakeMaster(f"{home}/lab-gpu.sock") as each:
            yield each


@pytest.fixture
def meanwhile(master: FakeMaster) -> Iterator[Callable[..., None]]:
    """Let the world go on in another thread as soon as a task is there."""
    threads: list[threading.Thread] = []

    def begin(*steps: Callable[[], object]) -> None:
        def live() -> None:
            master.wait_until(lambda: master.tasks)
            for step in steps:
                step()

        threads.append(threading.Thread(target=live))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(20)


def test_run_gives_how_it_ended(master: FakeMaster, meanwhile: Callable[..., None]) -> None:
    meanwhile(
        lambda: master.begin(1, "/logs/1.log"),
        lambda: master.end(1, "completed", exit_code=0, log_path="/logs/1.log", node="box",
                           gpus=[{"node": "box", "index": 1, "uuid": "GPU-1", "name": "A"}],
                           ended_at="2026-01-02T03:04:05.500Z"),
    )  # fmt: skip
    result = Client().run(cmd="python train.py", mem="10G", log_root="logs")
    assert (result.task_id, result.exit_code, result.oom, result.ok) == (1, 0, False, True)
    assert (result.log_path, result.node, result.gpu_ids, result.attempts) == ("/logs/1.log", "box", (1,), 1)
    assert result.ended_at == datetime(2026, 1, 2, 3, 4, 5, 500000, timezone.utc)
    sent = master.asked[0].body
    assert sent["tasks"] == [
        {"command": "python train.py", "mem_mib": 10240, "log_root": os.path.abspath("logs")}
    ]
    assert sent["workdir"] == os.getcwd() and sent["environment"]["PATH"] == os.environ["PATH"]


def test_run_gives_a_result_on_failure_too(master: FakeMaster, meanwhile: Callable[..., None]) -> None:
    meanwhile(
        lambda: master.begin(1, "/logs/1.1.log", ending="error"),
        lambda: master.begin(1, "/logs/1.log"),
        lambda: master.end(1, "failed", "oom", exit_code=1, reason="out of memory"),
    )
    result = Client().run(["python", "a b.py"], timeout=60)
    assert (result.exit_code, result.oom, result.ok, result.attempts) == (1, True, False, 2)
    assert (result.reason, result.log_path) == ("out of memory", "/logs/1.log")
    assert (
        next(each for each in master.asked if each.method == "POST").body["tasks"][0]["command"]
        == "python 'a b.py'"
    )


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_run_that_cannot_start_in_time_is_cancelled(
    master: FakeMaster, timeout: float, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: master.change(1, reason="waiting for 1 free GPU"))
    with pytest.raises(LabGpuTimeoutError, match=r"cannot run task 1: .*waiting for 1 free GPU.*cancelled"):
        Client().run("true", timeout=timeout)
    assert master.tasks[1]["state"] == "cancelled"


def test_the_timeout_is_for_the_wait_and_not_for_the_run(
    master: FakeMaster, meanwhile: Callable[..., None]
) -> None:
    waits = lambda: master.paths("POST").count("/api/v1/wait")  # noqa: E731
    meanwhile(
        lambda: master.begin(1, "/logs/1.log"),
        lambda: master.wait_until(waits),
        lambda: master.end(1, "completed", exit_code=0),
    )
    assert Client().run("sleep 99", timeout=10).ok


def test_one_that_begins_at_the_last_moment_is_left_to_run(
    master: FakeMaster, meanwhile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    ask = client.api.ask

    def slow_to_hold(method: str, path: str, body: object = None, *rest: object, **more: object) -> object:
        if isinstance(body, dict) and body.get("action") == "hold":
            master.begin(1, "/logs/1.log")
            threading.Thread(target=lambda: master.end(1, "completed", exit_code=3)).start()
        return ask(method, path, body, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(client.api, "ask", slow_to_hold)
    assert client.run("true", timeout=0.05).exit_code == 3


def test_submit_gives_a_handle(master: FakeMaster) -> None:
    task = Client().submit("python train.py", mem=10, priority="high", retries=None, after=[1, "2:any"], env="ml",
                           setenv={"A": "b"}, time_limit="2h", hold=True, gpus=0)  # fmt: skip
    assert task.id == 1 and repr(task) == "<Handle of task 1>"
    assert master.asked[-1].body["tasks"][0] == {
        "command": "python train.py", "mem_mib": 10240, "gpus": 0, "priority": 100, "max_retries": None,
        "after": [{"id": 1, "kind": "ok"}, {"id": 2, "kind": "any"}], "env": "ml", "setenv": {"A": "b"},
        "time_limit_s": 7200, "held": True,
        **({"conda_root": os.path.dirname(os.path.dirname(os.environ["CONDA_EXE"]))} if "CONDA_EXE" in os.environ else {}),
    }  # fmt: skip


def test_variables_may_be_given_as_env_too(master: FakeMaster) -> None:
    client = Client()
    first = client.submit("a", env={"A": "1"}, setenv={"B": "2"})
    client.submit("b", after=first)
    assert master.asked[-2].body["tasks"][0]["setenv"] == {"A": "1", "B": "2"}
    assert master.asked[-1].body["tasks"][0]["after"] == [{"id": 1, "kind": "ok"}]


def test_the_token_and_what_is_no_text_stay_here(master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_GPU_TOKEN", "secret")
    monkeypatch.setitem(os.environ, "ODD", os.fsdecode(b"\xff"))
    Client().submit("a")
    environment = master.asked[-1].body["environment"]
    assert "LAB_GPU_TOKEN" not in environment and "ODD" not in environment and "PATH" in environment


def test_mistakes_are_found_before_anything_is_sent(master: FakeMaster) -> None:
    client = Client()
    with pytest.raises(TypeError, match="no option 'retry'; did you mean 'retries'"):
        client.submit("a", retry=2)  # type: ignore[call-arg]
    with pytest.raises(Refused, match="the command is empty"):
        client.submit("  ")
    with pytest.raises(Refused, match="cannot read the dependency"):
        client.submit("a", after="x")
    with pytest.raises(Refused, match="cannot fill in 'lr'"):
        client.map("train", [{"lr": 1}])
    with pytest.raises(TypeError, match="one command"):
        client.map(["a"], [{"lr": 1}])
    with pytest.raises(TypeError, match="each of params names its values"):
        client.map("train {lr}", [1])  # type: ignore[list-item]
    assert not master.tasks


def test_map_fills_in_one_command_and_quotes_what_it_fills_in(master: FakeMaster) -> None:
    values = [{"lr": 0.1, "tag": "a b"}, {"lr": 0.01, "tag": "{lr}; rm"}]
    tasks = Client().map("train --lr {lr} --tag {tag} ${HOME} {other}", values, mem="1G")
    assert [task.id for task in tasks] == [1, 2]
    assert [task["command"] for task in master.asked[-1].body["tasks"]] == [
        "train --lr 0.1 --tag 'a b' ${HOME} {other}",
        "train --lr 0.01 --tag '{lr}; rm' ${HOME} {other}",
    ]
    assert len(master.asked) == 1


def test_results_come_in_the_order_of_the_tasks(master: FakeMaster, meanwhile: Callable[..., None]) -> None:
    client = Client()
    tasks = client.map(["a", "b"])
    meanwhile(lambda: master.end(2, "failed", exit_code=2), lambda: master.end(1, "completed", exit_code=0))
    assert [result.exit_code for result in client.gather(tasks)] == [0, 2]
    assert client.gather([]) == [] and client.map([]) == []


@pytest.mark.parametrize("timeout", ["5", -1, float("nan"), [1]])
def test_a_timeout_that_is_none_is_a_sentence(master: FakeMaster, timeout: object) -> None:
    client = Client()
    task = client.submit("sleep 9")
    for ask in (task.wait, lambda timeout: client.run("x", timeout=timeout), client.request_device):
        with pytest.raises(Refused, match="a timeout is 0 or more seconds, or None"):
            ask(timeout=timeout)  # type: ignore[operator]
    assert len(master.tasks) == 1


def test_waiting_ends_with_the_timeout_and_the_task_goes_on(master: FakeMaster) -> None:
    task = Client().submit("sleep 9")
    with pytest.raises(LabGpuTimeoutError, match=r"task 1 is not over after 0\.05 s"):
        task.wait(timeout=0.05)
    assert task.status()["state"] == "queued"
    task.cancel()
    assert task.result().state == task.wait().state == "cancelled"
    with pytest.raises(TooLate, match="cannot cancel task 1: cancelled"):
        task.cancel()


def test_a_wait_outlives_a_restart_of_the_master(master: FakeMaster, meanwhile: Callable[..., None]) -> None:
    client = Client()
    task = client.submit("a")
    polls = lambda: master.paths("POST").count("/api/v1/wait")  # noqa: E731
    meanwhile(
        lambda: master.wait_until(polls),
        master.stop,
        lambda: master.end(1, "completed", exit_code=0),
        master.start,
    )
    assert task.wait().ok


def test_a_wait_goes_on_when_the_master_says_that_it_stops(
    master: FakeMaster, meanwhile: Callable[..., None]
) -> None:
    client = Client()
    task = client.submit("a")
    stopping = json.dumps(Problem(503, "broken", "cannot wait any longer: the master stops; ask again").doc)
    master.faults.append(lambda connection: connection.sendall(http_answer(503, stopping.encode())))
    meanwhile(lambda: master.end(1, "completed", exit_code=0))
    assert task.wait().ok


def test_other_questions(master: FakeMaster) -> None:
    client = Client()
    client.map([f"task {number}" for number in range(5)])
    assert client.status() == {"counts": {"queued": 5}}
    assert client.why(3) == "task 3 waits"
    assert client.task(3).id == 3
    with pytest.raises(NotFound):
        client.task(9)
    assert [doc["id"] for doc in client.list(state="queued")] == [1, 2, 3, 4, 5]
    assert len(client.list(limit=3)) == 3 and len(client.list(limit=None)) == 5


def test_logs_as_lines(master: FakeMaster) -> None:
    with short_folder() as folder:
        with open(f"{folder}/1.log", "wb") as file:
            file.write(b"10%\r100%\n\x1b[31mred\x1b[0m\nlast")
        with Client() as client:
            task = client.submit("a")
            master.begin(1, f"{folder}/1.log")
            assert list(task.logs()) == ["100%\n", "red\n", "last"]


def test_without_a_master_and_without_leave_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_GPU_AUTOSTART", "0")
    monkeypatch.delenv("LAB_GPU_HOST", raising=False)
    with short_folder() as home:
        monkeypatch.setenv("LAB_GPU_HOME", home)
        with pytest.raises(NoMaster, match="lab-gpu server start"):
            Client()


def test_the_package_gives_its_names_and_no_others() -> None:
    for name in lab_gpu.__all__:
        assert getattr(lab_gpu, name) is not None
    assert set(lab_gpu.__all__) <= set(dir(lab_gpu))
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        lab_gpu.Clients  # noqa: B018


def test_importing_the_package_loads_nothing() -> None:
    words = "before = set(sys.modules); import lab_gpu; print(*set(sys.modules) - before)"
    words = f"import sys; sys.path[:0] = {sys.path!r}; {words}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["lab_gpu"]

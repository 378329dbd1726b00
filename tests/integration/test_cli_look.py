"""What people look at: status, list, show, why, logs; on terminals of 80 columns, in pipes, and in odd locales."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from unicodedata import east_asian_width

import pytest
from cli_stage import Refusal, Stage, staged

from lab_gpu.cli.main import COMMANDS
from tests.support.waiting import wait_until

GPU = {
    "index": 0, "uuid": "GPU-0", "name": "NVIDIA A100-SXM4-80GB", "total_mib": 81920, "used_mib": 20480,
    "free_mib": 61440, "promised_mib": 10240, "foreign_mib": 2048, "utilization": 50, "temperature_c": 41,
    "power_w": 100, "closed": None,
    "holders": [{"kind": "task", "id": 1, "owner": "ann", "name": None, "mib": 10240, "since": None}],
    "foreign": [{"pid": 9, "owner": "bob", "command": "python", "mib": 2048}],
}  # fmt: skip


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A GPU, a running task, one that waits, one that failed, and a lease."""
    master = stage.master
    master.nodes = [
        {"name": "box", "host": "box", "virtual": False, "closed": None, "gpus": [GPU]},
        {"name": "pretend", "host": "box", "virtual": True, "closed": "drained: moving", "gpus": [
            {**GPU, "holders": [], "foreign": [], "used_mib": None, "utilization": None, "temperature_c": None}]},
    ]  # fmt: skip
    master.leases = [{"id": 4, "state": "held", "owner": "ann", "name": "notebook", "gpus": [
        {"node": "box", "index": 0, "uuid": "GPU-0", "name": "A100"}], "granted_at": "2026-11-19T10:00:00Z"}]  # fmt: skip
    master.add(command="python train.py --epochs 100 --learning-rate 0.001 --model resnet152 --data /data/x")
    master.add(
        command="python wait.py", reason="waiting for 2 GPUs with 40 GiB each on one node", priority=100
    )
    master.add(command="python bad.py", name="训练")
    master.become(1, "running", gpus=[{"node": "box", "index": 0, "uuid": "GPU-0", "name": "A100"}])
    master.become(3, "failed", exit_code=2, reason="exit code 2")
    return stage


def on_terminal(stage: Stage, *words: str, columns: int = 80, stop_at: str = "") -> str:
    """What the terminal was sent; with `stop_at` the command is interrupted once that has been shown."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "lab_gpu", *words], cwd=stage.here, env={**stage.env, "TERM": "xterm"},
        stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )  # fmt: skip
    os.close(secondary)
    seen = b""
    try:
        while True:
            try:
                piece = os.read(primary, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
            if stop_at and stop_at.encode() in seen:
                child.send_signal(signal.SIGINT)
                stop_at = ""
        assert child.wait(timeout=20) == 0, seen
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(primary)
    return seen.decode()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).replace("\r", "").splitlines()


def wide(line: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in line)


def test_status_in_a_pipe_is_whole_and_colourless(busy: Stage) -> None:
    out = busy.lab_gpu("status").out
    assert "\x1b" not in out
    assert "lab-gpu 0.1.0 on gpubox: 1 running, 1 queued" in out
    assert "20/80 GiB" in out
    assert "task 1, bob: python 2 GiB" in out
    assert "pretend:0 (virtual)" in out
    assert "closed: drained: moving" in out
    assert "--data /data/x" not in out or "waiting for 2 GPUs with 40 GiB each on one node" in out
    assert "notebook" in out


def test_status_fits_eighty_columns(busy: Stage) -> None:
    shown = on_terminal(busy, "status")
    assert "\x1b[" in shown
    lines = plain(shown)
    assert max(wide(line) for line in lines) <= 80, lines
    assert any("训练" in line for line in lines)


def test_status_json_is_the_masters_document(busy: Stage) -> None:
    document = busy.lab_gpu("status", "--json", "--limit", "7").json
    assert [task["id"] for task in document["tasks"]] == [1, 2, 3]
    assert busy.master.asked[-1][2] == {"limit": "7"}


@pytest.mark.parametrize("word", ["top", "tui"])
def test_the_live_view_draws_again_when_something_happens(busy: Stage, word: str) -> None:
    def later() -> None:
        wait_until(
            lambda: any(
                query.get("after") for _, path, query, _ in busy.master.asked if path == "/api/v1/events"
            )
        )
        busy.master.become(2, "running", name="woken")

    thread = threading.Thread(target=later)
    thread.start()
    shown = on_terminal(busy, word, stop_at="woken")
    thread.join()
    assert shown.count("\x1b[H") >= 2


@pytest.mark.parametrize("word", ["top", "tui"])
def test_the_live_view_prints_once_into_a_pipe(busy: Stage, word: str) -> None:
    assert "1 running, 1 queued" in busy.lab_gpu(word).out
    assert busy.lab_gpu(word, "--json").json["counts"]["queued"] == 1


def test_watch_is_a_stream_of_documents_for_programs(busy: Stage) -> None:
    child = busy.start("list", "--watch", "--json")
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["tasks"][0]["state"] == "failed"
    busy.master.become(3, "queued")
    assert json.loads(child.stdout.readline())["tasks"][0]["state"] == "queued"
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=20) == 0


def test_list_asks_for_what_was_said(busy: Stage) -> None:
    busy.lab_gpu("list", "1-2", "9", "--state", "PENDING,执行中", "-u", "ann", "-p", "q", "-J", "n", "--text", "a b",
                 "--batch", "3", "--limit", "5", "--order", "old")  # fmt: skip
    assert busy.master.asked[-1][2] == {
        "ids": "1-2,9", "state": "queued,running", "owner": "ann", "queue": "q", "name": "n", "text": "a b",
        "batch": "3", "limit": "5", "order": "old",
    }  # fmt: skip
    assert busy.lab_gpu("list", "--state", "cancelled").out == "no task is like that\n"
    assert "did you mean failed?" in busy.lab_gpu("list", "--state", "faild", code=2).err


def test_all_goes_through_every_page(stage: Stage) -> None:
    for _ in range(1203):
        stage.master.add()
    assert len(stage.lab_gpu("list", "--all", "--json").json["tasks"]) == 1203
    assert stage.lab_gpu("list", "--limit", "600").out.count("\n") == 602
    assert stage.lab_gpu("list").out.endswith("there are more: --all shows them\n")


def test_a_reader_that_leaves_is_no_error(stage: Stage) -> None:
    for number in range(1200):
        stage.master.add(command=f"python {number} {'x' * 200}")
    command = f"'{sys.executable}' -m lab_gpu list --all | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=stage.env, cwd=stage.here, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(" ")
    assert done.stderr == ""


def test_a_full_disk_is_said(busy: Stage) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lab_gpu", "status"],
            env=busy.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 75
    assert (
        done.stderr == "lab-gpu: cannot write the answer: No space left on device; make room and ask again\n"
    )


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}]
)
def test_a_locale_without_unicode_breaks_nothing(busy: Stage, env: dict[str, str]) -> None:
    busy.lab_gpu("status", **env)
    assert busy.lab_gpu("show", "3", "--json", **env).json["name"] == "训练"


def test_show_tells_everything(busy: Stage) -> None:
    out = busy.lab_gpu("show", "1").out
    assert out.startswith("task 1  running\n")
    assert re.search(r"runs on +box:0\n", out)
    assert re.search(r"log +/tmp/", out)
    assert busy.lab_gpu("show", "1", "--json").json["id"] == 1
    assert [task["id"] for task in busy.lab_gpu("show", "1-2", "--json").json] == [1, 2]
    assert (
        busy.lab_gpu("show", "99", code=1).err
        == "lab-gpu: cannot find task 99: there is none; see lab-gpu list\n"
    )


def test_show_tells_how_and_when_it_is_tried_again(busy: Stage) -> None:
    rule = {"max_retries": 5, "pause_s": 2.0, "before_backoff": 3, "backoff_s": 600.0}
    busy.master.become(1, "queued", retry=rule, max_retries=5, not_before="2999-11-19T10:00:00.000Z")
    out = busy.lab_gpu("show", "1").out
    assert re.search(r"pauses +2s before a new try, 10m after every 3 failures\n", out)
    assert re.search(r"next try +2999-11-19", out)
    busy.master.become(2, "queued", retry={**rule, "max_retries": 0}, not_before="2999-11-19T10:00:00.000Z")
    out = busy.lab_gpu("show", "2").out
    assert "pauses" not in out and re.search(r"not before +2999-11-19", out)


def test_why_tells_reason_place_and_advice(busy: Stage) -> None:
    assert busy.lab_gpu("why", "2").out.splitlines() == [
        "task 2 queued: every GPU is taken",
        "  n:0  task 1 holds it",
        "  number 2 of 3 that wait, behind task 1",
        "  lab-gpu edit 2 --mem 4G",
    ]
    assert busy.lab_gpu("why", "2", "--json").json["behind"] == 1


def test_ids_in_every_spelling(busy: Stage) -> None:
    assert [task["id"] for task in busy.lab_gpu("show", "@", "@~1", "1", "--json").json] == [3, 2, 1]
    assert "cannot find @~7: you have submitted 3 tasks here" in busy.lab_gpu("show", "@~7", code=1).err
    assert "cannot read id '@~x'" in busy.lab_gpu("show", "@~x", code=2).err
    assert "cannot read id 'one'" in busy.lab_gpu("show", "one", code=2).err


def test_logs(busy: Stage) -> None:
    busy.master.write_log(1, "one\ntwo\n50%\r100%\nlast\n")
    assert busy.lab_gpu("logs", "1").out == "one\ntwo\n100%\nlast\n"
    assert busy.lab_gpu("logs", "1", "-n", "1").out == "last\n"
    assert busy.lab_gpu("logs", "1", "--json").json == {"logs": [{"id": 1, "text": "one\ntwo\n100%\nlast\n"}]}
    assert busy.lab_gpu("logs", "--path", "1").out == f"{busy.folder}/1.log\n"
    waiting = busy.lab_gpu("logs", "2")
    assert (waiting.out, "is queued and has not begun: waiting for 2 GPUs" in waiting.err) == ("", True)
    assert "cannot show attempt 7 of task 1" in busy.lab_gpu("logs", "1", "--attempt", "7", code=1).err
    assert "cannot follow 2 logs at once" in busy.lab_gpu("logs", "-f", "1-2", code=2).err


def test_a_followed_log_ends_with_its_task(busy: Stage) -> None:
    busy.master.write_log(1, "one\n")
    child = busy.start("logs", "-f", "1")
    assert child.stdout is not None
    assert child.stdout.readline() == "one\n"
    busy.master.write_log(1, "two\n")
    assert child.stdout.readline() == "two\n"
    busy.master.become(1, "completed")
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 0


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_shows_examples_first(stage: Stage, word: str) -> None:
    for name in ("submit", "wait", "config set", "edit"):
        assert stage.lab_gpu(*name.split(), word).out.startswith("examples:\n  lab-gpu ")
    top = stage.lab_gpu(word).out
    assert all(name in top for name in COMMANDS)
    assert stage.lab_gpu().out == top
    assert stage.lab_gpu("help", "submit").out == stage.lab_gpu("submit", word).out
    assert "drain" in stage.lab_gpu("server", word).out


def test_unknown_words_name_the_nearest(stage: Stage) -> None:
    assert stage.lab_gpu("submti", code=2).err == (
        "lab-gpu: cannot run 'lab-gpu submti': there is no such command; did you mean lab-gpu submit?\n"
    )
    assert "did you mean lab-gpu server start?" in stage.lab_gpu("server", "strat", code=2).err
    assert "there is no such flag; see lab-gpu --help" in stage.lab_gpu("--frobnicate", code=2).err
    assert "did you mean --json?" in stage.lab_gpu("status", "--jsn", code=2).err
    assert stage.lab_gpu("--version").out.startswith("lab-gpu ")


def test_a_masters_error_keeps_its_class(stage: Stage) -> None:
    def refuse(method: str, path: str, body: object) -> None:
        raise Refusal(403, "forbidden", "cannot show task 1: it belongs to bob; ask bob")

    stage.master.refuse = refuse
    assert stage.lab_gpu("show", "1", "--json", code=1).json["slug"] == "forbidden"

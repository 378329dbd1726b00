"""Life and death on a real master: what outlives it, what ends with a task, what follows an end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab_gpu.core.errors import LabGpuError
from tests.support.masters import Master, a_home, a_master, wait_until

WAIT_FOR_GO = "while [ ! -e go ]; do sleep 0.02; done"


def pid_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def go(master: Master) -> None:
    Path(master.home, "go").touch()


def log_of(task: dict[str, object]) -> str:
    return Path(str(task["log_path"])).read_text()


# --- the master dies, tasks do not -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_running_tasks_outlive_the_master_and_are_adopted(how: str) -> None:
    with a_master() as master:
        task = master.submit(f"echo $$ > pid; {WAIT_FOR_GO}; echo done; exit 5")
        pid = int(wait_until(lambda: _text(f"{master.home}/pid"), "it runs"))
        getattr(master, how)()
        assert pid_alive(pid)
        assert master.start()["notes"] == ["1 task(s) adopted"]
        assert master.task(task)["state"] == "running"
        go(master)
        [ended] = master.wait(task)
        assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 5, 1)
        assert log_of(ended) == "done\n"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def test_what_ended_while_the_master_was_away_is_told_exactly() -> None:
    with a_master(gpus=3) as master:
        ids = [master.submit(f"{WAIT_FOR_GO}; exit {code}") for code in (0, 3, 0)]
        for task in ids:
            master.wait_state(task, "running")
        master.kill()
        go(master)
        directory = Path(master.home, "tasks")
        wait_until(
            lambda: all((directory / f"task_{task}/1/exit_code").read_text() for task in ids), "all end"
        )
        assert master.start()["notes"] == ["3 task(s) ended meanwhile"]
        ended = master.wait(*ids)
        assert [(task["state"], task["exit_code"]) for task in ended] == [
            ("completed", 0),
            ("failed", 3),
            ("completed", 0),
        ]


def test_after_a_reboot_what_ran_is_lost_and_queued_again_but_never_twice_is_not() -> None:
    with a_master(gpus=2) as master:
        again = master.submit(WAIT_FOR_GO)
        once = master.submit(WAIT_FOR_GO, never_twice=True)
        for task in (again, once):
            master.wait_state(task, "running")
        pids = [attempt["pid"] for task in (again, once) for attempt in master.task(task)["attempts"]]
        master.kill()
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
        with sqlite3.connect(f"{master.home}/lab-gpu.db") as db:  # as a ledger of before the boot says
            db.execute("update attempt set boot_id = 'another-boot'")
        db.close()
        go(master)
        master.start()
        [first, second] = master.wait(again, once)
        assert (first["state"], first["attempt"]) == ("completed", 2)
        assert [attempt["ending"] for attempt in master.task(again)["attempts"]] == ["lost", "ok"]
        assert (second["state"], second["attempt"]) == ("failed", 1)
        assert "never-twice" in second["reason"]


def test_a_runner_killed_from_outside_is_an_error_not_a_loss() -> None:
    with a_master() as master:
        task = master.submit("touch begun; sleep 60")
        wait_until(lambda: os.path.exists(f"{master.home}/begun"), "it runs")
        [attempt] = master.task(task)["attempts"]
        os.killpg(attempt["pid"], signal.SIGKILL)
        [ended] = master.wait(task)
        assert (ended["state"], ended["exit_code"]) == ("failed", None)
        assert "killed from outside" in ended["reason"]


# --- stopping ----------------------------------------------------------------------------------------


def test_cancel_leaves_no_process_of_daemons_behind() -> None:
    with a_master() as master:
        daemon = "(setsid bash -c 'echo $BASHPID > {0}; exec sleep 600' &) ; "
        task = master.submit(
            daemon.format("one") + daemon.format("two") + "sleep 600 & echo $! > three; wait"
        )
        names = ("one", "two", "three")
        wait_until(lambda: all(_text(f"{master.home}/{name}") for name in names), "all run")
        pids = [int(_text(f"{master.home}/{name}")) for name in names]
        master.api.post("/api/v1/tasks/actions", {"action": "cancel", "ids": [task], "wait_s": 30})
        assert master.task(task)["state"] == "cancelled"
        assert [pid for pid in pids if pid_alive(pid)] == []


def test_what_a_finished_command_leaves_behind_is_ended_and_told_in_the_log() -> None:
    with a_master() as master:
        task = master.submit(
            "(setsid bash -c 'echo $BASHPID > stray; exec sleep 600' &); until [ -s stray ]; do :; done"
        )
        [ended] = master.wait(task)
        assert ended["state"] == "completed"
        assert not pid_alive(int(_text(f"{master.home}/stray")))
        assert "left behind" in log_of(ended)


CHECKPOINTS = """
import signal, sys, time
def save(*_):
    open("saved", "w").write("yes"); sys.exit(0)
signal.signal(signal.SIGUSR1, save)
open("ready", "w").close()
time.sleep(60)
"""


def test_preempted_programs_may_save_and_go_behind_those_that_wait() -> None:
    with a_master(gpus=1) as master:
        Path(master.home, "train.py").write_text(CHECKPOINTS)
        first = master.submit(f"{sys.executable} train.py")
        wait_until(lambda: os.path.exists(f"{master.home}/ready"), "it trains")
        second = master.submit(WAIT_FOR_GO)
        os.unlink(f"{master.home}/ready")
        master.api.post("/api/v1/tasks/actions", {"action": "preempt", "ids": [first]})
        master.wait_state(second, "running")
        assert _text(f"{master.home}/saved") == "yes"
        task = master.task(first)
        assert (task["state"], task["attempts"][0]["ending"]) == ("queued", "preempted")
        go(master)
        master.wait(second)
        master.wait_state(first, "running")


def test_a_higher_class_takes_over_when_what_was_foreseen_has_passed(tmp_path: Path) -> None:
    """Nothing else happens meanwhile: the time that passes is what wakes the planner."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("preemption: true\n")
    with a_home() as master:
        assert master.start("--no-tcp", "--policy", str(policy))["ready"]
        master.add_gpus(1)
        low = master.submit("sleep 60", priority=-100, estimate_s=1)
        master.wait_state(low, "running")
        high = master.submit("true", priority=100)
        assert master.wait(high)[0]["state"] == "completed"
        assert master.task(low)["attempts"][0]["ending"] == "preempted"


def test_a_cancelled_program_that_saves_and_exits_cleanly_is_cancelled() -> None:
    with a_master() as master:
        Path(master.home, "train.py").write_text(CHECKPOINTS)
        task = master.submit(f"{sys.executable} train.py")
        follower = master.submit("touch ran", after=[{"id": task, "kind": "ok"}])
        wait_until(lambda: os.path.exists(f"{master.home}/ready"), "it trains")
        master.api.post("/api/v1/tasks/actions", {"action": "cancel", "ids": [task]})
        ended = master.wait(task, follower)
        assert [each["state"] for each in ended] == ["cancelled", "failed"]
        assert _text(f"{master.home}/saved") == "yes"


def test_a_program_that_does_not_catch_the_soft_signal_gets_sigterm_at_once() -> None:
    with a_master() as master:
        task = master.submit("trap 'echo terminated; exit 9' TERM; touch ready; while :; do sleep 0.05; done")
        wait_until(lambda: os.path.exists(f"{master.home}/ready"), "it runs")
        master.api.post("/api/v1/tasks/actions", {"action": "cancel", "ids": [task], "wait_s": 30})
        ended = master.task(task)
        assert ended["state"] == "cancelled"
        assert "terminated" in log_of(ended)


def test_a_stop_goes_on_after_the_master_was_killed_in_the_middle_of_it() -> None:
    with a_master() as master:
        task = master.submit("trap '' TERM; touch ready; while :; do sleep 0.05; done")
        wait_until(lambda: os.path.exists(f"{master.home}/ready"), "it runs")
        wish = {"action": "cancel", "ids": [task], "soft_timeout_s": 0, "term_timeout_s": 1}
        master.api.post("/api/v1/tasks/actions", wish)
        master.kill()
        master.start()
        assert master.wait(task)[0]["state"] == "cancelled"


def test_limits_on_time_and_on_silence() -> None:
    with a_master() as master:
        late = master.submit("sleep 60", time_limit_s=0.3, kill_at_limit=True)
        silent = master.submit("echo a; sleep 60", no_output_limit_s=0.5)
        [first, second] = master.wait(late, silent)
        assert (first["state"], first["reason_code"]) == ("failed", "time_limit")
        assert second["state"] == "failed" and "no output" in second["reason"]


def test_a_program_stopped_for_its_silence_has_failed_even_where_it_saves_and_exits_cleanly() -> None:
    with a_master() as master:
        Path(master.home, "train.py").write_text(CHECKPOINTS)
        task = master.submit(f"{sys.executable} train.py", no_output_limit_s=1.5)
        wait_until(lambda: os.path.exists(f"{master.home}/ready"), "it trains")
        [ended] = master.wait(task)
        assert ended["state"] == "failed" and "no output" in ended["reason"]
        assert _text(f"{master.home}/saved") == "yes"


# --- what follows an end -------------------------------------------------------------------------


def test_retries_keep_every_log_and_end_with_the_last() -> None:
    with a_master() as master:
        task = master.submit("echo try $LAB_GPU_ATTEMPT; exit 1", max_retries=2, retry_pause_s=0)
        [ended] = master.wait(task)
        assert (ended["state"], ended["attempt"]) == ("failed", 3)
        logs = Path(master.home, "logs")
        assert {path.name: path.read_text() for path in logs.glob("*.log")} == {
            "1.1.log": "try 1\n",
            "1.2.log": "try 2\n",
            "1.log": "try 3\n",
        }
        attempts = master.task(task)["attempts"]
        assert [Path(attempt["log_path"]).name for attempt in attempts] == ["1.1.log", "1.2.log", "1.log"]
        links = [os.readlink(f"{attempt['directory']}/tmux.log") for attempt in attempts]
        assert links == [attempt["log_path"] for attempt in attempts]
        assert len({attempt["uni_id"] for attempt in attempts}) == 3


def test_a_task_that_ran_out_of_gpu_memory_says_so_in_its_ending() -> None:
    with a_home() as master:
        master.start()
        words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        short = master.submit(f"echo '{words}' >&2; exit 3", gpus=0)
        caught = master.submit(f"echo '{words}'; exit 0", gpus=0)
        master.wait(short, caught)
        endings = [master.task(task)["attempts"][-1]["ending"] for task in (short, caught)]
        assert endings == ["oom", "ok"]
        assert "out of GPU memory" in master.task(short)["reason"]


def test_what_runs_again_has_no_exit_code_and_tells_its_limit_on_silence() -> None:
    with a_home() as master:
        master.start()
        command = 'test "$LAB_GPU_ATTEMPT" = 1 && exit 3; while [ ! -e go ]; do sleep 0.05; done'
        ident = master.submit(command, gpus=0, max_retries=1, retry_pause_s=0, no_output_limit_s=600)
        wait_until(
            lambda: (task := master.task(ident))["state"] == "running" and task["attempt"] == 2, "again"
        )
        task = master.task(ident)
        assert (task["exit_code"], task["no_output_limit_s"]) == (None, 600)
        go(master)
        assert master.wait(ident)[0]["exit_code"] == 0


def test_a_dependency_that_fails_fails_the_chain_and_retry_queues_it_again() -> None:
    with a_master() as master:
        first = master.submit("test -e go")
        second = master.submit("true", after=[{"id": first, "kind": "ok"}])
        third = master.submit("true", after=[{"id": second, "kind": "ok"}])
        rescue = master.submit("true", after=[{"id": first, "kind": "fail"}])
        ended = master.wait(first, second, third, rescue)
        assert [task["state"] for task in ended] == ["failed", "failed", "failed", "completed"]
        assert [task["attempt"] for task in ended[1:3]] == [0, 0]
        assert f"dependency {first} failed" in ended[1]["reason"]
        go(master)
        master.api.post("/api/v1/tasks/actions", {"action": "retry", "ids": [first]})
        assert {task["state"] for task in master.wait(first, second, third)} == {"completed"}


def test_a_named_queue_is_serial_and_an_array_keeps_its_ceiling() -> None:
    with a_master(gpus=4) as master:
        note = "echo + >> {0}; sleep 0.05; echo - >> {0}"
        serial = master.submit_many([{"command": note.format("serial"), "queue": "q"} for _ in range(6)])
        array = master.submit_many(
            [{"command": note.format("array"), "array": {"first": 0, "last": 7, "step": 1, "limit": 2}}]
        )
        batch = master.task(array[0])["batch"]
        assert batch == array[0]
        master.wait(*serial, *array)
        for name, most in (("serial", 1), ("array", 2)):
            depth = highest = 0
            for line in _text(f"{master.home}/{name}").split():
                depth += 1 if line == "+" else -1
                highest = max(highest, depth)
            assert highest <= most, name


def test_a_lease_ends_with_its_process_and_its_gpu_goes_on() -> None:
    with a_master(gpus=1) as master:
        script = (
            "from lab_gpu import Client; import os, time\n"
            f"lease = Client(host='unix:{master.ready['socket']}').request_device(mem='10G', exclusive=True)\n"
            "print(lease.gpu_id, flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, env=master.environ, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"0\n"
            task = master.submit("true")
            assert master.task(task)["state"] == "queued"
            master.kill()
            master.start()
            assert master.api.get("/api/v1/leases")["leases"][0]["pid"] == holder.pid
            assert master.task(task)["state"] == "queued"
            holder.kill()
        assert master.wait(task)[0]["state"] == "completed"


# --- doors -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_doors_killed_in_the_middle_of_a_thousand_submits_lose_nothing() -> None:
    """Each client sends a key again until it is answered; the loop never stops."""
    with a_master(gpus=4) as master:
        ids: list[int] = []
        stop = threading.Event()

        def submit(worker: int) -> None:
            for number in range(250):
                body = master.body([{"command": "true", "gpus": 0}])
                while not stop.is_set():
                    try:
                        key = {"Idempotency-Key": f"{worker}-{number}"}
                        ids.append(master.api.post("/api/v1/tasks", body, headers=key)["tasks"][0]["id"])
                        break
                    except LabGpuError:
                        continue

        workers = [threading.Thread(target=submit, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        try:
            for round_number in range(1, 4):
                wait_until(lambda n=round_number: len(ids) >= n * 200, "submits go on")
                os.kill(_doors_of(master), signal.SIGKILL)
            for worker in workers:
                worker.join(timeout=60)
        finally:
            stop.set()
        assert len(ids) == len(set(ids)) == 1000
        assert {task["state"] for task in master.wait(*ids, patience_s=60)} == {"completed"}
        with sqlite3.connect(f"{master.home}/lab-gpu.db") as db:
            assert db.execute("select count(*) from task").fetchone() == (1000,)
        db.close()


def _doors_of(master: Master) -> int:
    assert master.process is not None

    def found() -> int:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if int(stat.rsplit(")", 1)[1].split()[1]) == master.process.pid and b"daemon.doors" in arguments:
                return int(pid)
        return 0

    return int(wait_until(found, "the doors run"))


# --- one master, one home ---------------------------------------------------------------------------


def test_a_second_master_on_a_home_says_so_and_touches_nothing() -> None:
    with a_master() as master:
        command = [sys.executable, "-m", "lab_gpu.daemon", "--home", master.home]
        same = subprocess.run([*command, "--no-tcp"], env=master.environ, capture_output=True, text=True)
        assert same.returncode == 0, same
        other = subprocess.run(
            [*command, "--manual-tick"], env=master.environ, capture_output=True, text=True
        )
        assert other.returncode == 2  # as `server start` says it
        assert "server restart" in other.stdout
        assert master.api.get("/api/health") == {"status": "ok"}


def test_a_home_of_another_host_is_never_taken() -> None:
    with a_home() as master:
        os.makedirs(master.home)
        lock = Path(master.home, "master.lock")
        lock.write_text('{"host": "another-host", "boot_id": "x", "pid": 1}')
        ready = master.start()
        assert "another-host" in ready["error"]
        assert lock.read_text().startswith('{"host": "another-host"')


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: path.write_bytes(b"this is no database" * 100), "cannot read the database"),
        (lambda path: _newer(path), "newer Lab-GPU"),
        (lambda path: _holed(path), "malformed; move it away"),
    ],
)
def test_a_database_that_cannot_be_used_is_told_and_kept(damage: object, word: str) -> None:
    with a_home() as master:
        master.start()
        master.stop()
        path = Path(master.home, "lab-gpu.db")
        damage(path)  # type: ignore[operator]
        before = path.read_bytes()
        ready = master.start()
        assert word in ready["error"]
        assert path.read_bytes() == before


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 999")
    db.close()


def _holed(path: Path) -> None:
    """Its first page is good; the tables are not."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


def test_an_idle_master_sleeps() -> None:
    """No wake-up without a reason: its threads' switches are counted over a second with nothing to do."""
    with a_master(gpus=1) as master:
        master.wait(master.submit("true"))
        assert master.process is not None
        pids = [master.process.pid, _doors_of(master)]

        def switches() -> int:
            return sum(
                int(line.split()[1])
                for pid in pids
                for task in os.listdir(f"/proc/{pid}/task")
                for line in Path(f"/proc/{pid}/task/{task}/status").read_text().splitlines()
                if line.startswith("voluntary_ctxt_switches")
            )

        wait_until(lambda: _quiet(switches), "both processes fall asleep")


def _quiet(switches: object) -> bool:
    before = switches()  # type: ignore[operator]
    time.sleep(1.0)  # the thing measured: a span in which nothing may happen
    return bool(switches() - before <= 2)  # type: ignore[operator]


@pytest.mark.slow
def test_a_log_that_grows_too_large_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("log_max_mib: 1\n")
    with a_home() as master:
        assert master.start("--no-tcp", "--policy", str(policy))["ready"]
        master.add_gpus(1)
        filler = "head -c 4000000 /dev/zero | tr '\\0' x | fold -w 79"
        task = master.submit(f"echo first; {filler}; {WAIT_FOR_GO}; echo; echo last")
        log = wait_until(lambda: master.task(task)["log_path"], "it has a log")
        wait_until(lambda: os.stat(log).st_size > 4_000_000, "it is written")
        wait_until(lambda: os.stat(log).st_blocks * 512 < 2_000_000, "its middle is given back")
        go(master)
        master.wait(task)
        text = Path(log).read_bytes()
        assert text.startswith(b"first\n") and text.endswith(b"last\n")
        assert len(text) > 4_000_000, "offsets hold"

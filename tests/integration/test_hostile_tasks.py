"""What a task may do to its own files and shell: the master goes on, and answers for the task."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.masters import Master, a_master, wait_until

OWN_FOLDER = 'cd "$(dirname "$0")"'


def still_serves(master: Master) -> None:
    after = master.submit("true", gpus=0)
    assert master.wait(after, patience_s=10)[0]["state"] == "completed"
    assert master.alive


@pytest.mark.parametrize(
    "command",
    [
        f"{OWN_FOLDER}; rm environment.txt; mkfifo environment.txt",
        f"{OWN_FOLDER}; rm exit_code; mkfifo exit_code; kill -KILL $PPID",
        f"{OWN_FOLDER}; rm begun; mkfifo begun; kill -KILL $PPID",
        'log=$(readlink "$(dirname "$0")/tmux.log"); rm "$log"; mkfifo "$log"; setsid sleep 2 >/dev/null 2>&1 &',
        'log=$(readlink "$(dirname "$0")/tmux.log"); rm "$log"; mkfifo "$log"; exit 1',
    ],
)
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(command: str) -> None:
    with a_master() as master:
        task = master.submit(command)
        wait_until(lambda: master.task(task)["attempts"][:1], "it was started")
        wait_until(lambda: master.task(task)["attempts"][0]["state"] == "ended", "it ended")
        still_serves(master)


def test_a_pipe_as_the_mark_of_a_log_root_is_nobodys_mark() -> None:
    with a_master() as master:
        root = f"{master.home}-logs"
        os.makedirs(root)
        os.mkfifo(f"{root}/.lab-gpu")
        task = master.submit("true", log_root=root)
        assert master.wait(task, patience_s=10)[0]["state"] == "completed"
        assert [name for name in os.listdir(root) if "@" in name]


@pytest.mark.parametrize("obstacle", ["touch {}", "ln -s / {}"])
def test_what_lies_where_the_next_attempt_goes_is_put_away(obstacle: str) -> None:
    with a_master() as master:
        command = f"{obstacle.format(f'{master.home}/tasks/task_1/2')}; exit 1"
        task = master.submit(command, max_retries=1, retry_pause_s=0)
        (ended,) = master.wait(task, patience_s=10)
        assert (ended["state"], ended["attempt"], ended["exit_code"]) == ("failed", 2, 1)
        still_serves(master)


def test_a_task_that_removes_its_folder_is_not_run_again() -> None:
    with a_master() as master:
        task = master.submit(f'echo ran >>{master.home}/marks; rm -rf "$(dirname "$0")"; exit 3')
        (ended,) = master.wait(task, patience_s=10)
        assert (ended["state"], ended["attempt"]) == ("failed", 1)
        with open(f"{master.home}/marks") as marks:
            assert marks.read() == "ran\n"


def test_nor_is_it_after_a_restart_of_the_master() -> None:
    with a_master() as master:
        go = f"{master.home}/go"
        task = master.submit(
            f'echo ran >>{master.home}/marks; rm -rf "$(dirname "$0")"; while [ ! -e {go} ]; do sleep 0.05; done'
        )
        wait_until(lambda: os.path.exists(f"{master.home}/marks"), "it runs")
        wait_until(lambda: not os.path.exists(f"{master.home}/tasks/task_{task}/1"), "its folder is gone")
        master.kill()
        assert master.start()["ready"]
        open(go, "w").close()
        (ended,) = master.wait(task, patience_s=10)
        assert (ended["state"], ended["attempt"]) == ("failed", 1)


@pytest.mark.parametrize(
    "command",
    ["kill -STOP $PPID; sleep 300", f"{OWN_FOLDER}; rm exit_code; mkfifo exit_code; sleep 300"],
)
def test_a_shell_that_does_not_end_is_ended_at_last(command: str) -> None:
    with a_master() as master:
        task = master.submit(command)
        master.wait_state(task, "running")
        wait_until(lambda: "sleep" in "".join(commands_of(master.task(task))), "it sleeps")
        wish = {"action": "cancel", "ids": [task], "soft_timeout_s": 0, "term_timeout_s": 0.2}
        master.api.post("/api/v1/tasks/actions", wish)
        assert master.wait(task, patience_s=10)[0]["state"] == "cancelled"


def commands_of(task: dict[str, object]) -> list[str]:
    """Names of the programs in the session of its shell."""
    pid = str(task["attempts"][-1]["pid"])  # type: ignore[index]
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{each}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[3] == pid:
            found.append(name)
    return found


def test_ten_thousand_moved_to_the_head_keep_nobody_waiting_long() -> None:
    with a_master() as master:
        ids = master.submit_many([{"command": "true", "held": True}] * 10_000)
        before = time.monotonic()
        master.api.post("/api/v1/tasks/actions", {"action": "top", "ids": ids[:1]})
        one = time.monotonic() - before
        before = time.monotonic()
        master.api.post("/api/v1/tasks/actions", {"action": "top", "ids": ids})
        assert time.monotonic() - before < 1.5 + one

"""Logs shown and followed: real files, a master that tells what becomes of the task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_master import Asked, FakeMaster, short_folder

from lab_gpu.client import inotify, log_sources, log_teller, news
from lab_gpu.client.logs import log_lines, show_log
from lab_gpu.client.transport import Api, find_master
from lab_gpu.core.errors import NoMaster, NotFound


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as path:
        yield path


@pytest.fixture(params=["socket", "tcp"])
def master(request: pytest.FixtureRequest, folder: str) -> Iterator[FakeMaster]:
    """Over the socket the file itself is read, over TCP the API's offsets."""
    address = f"{folder}/lab-gpu.sock" if request.param == "socket" else ("127.0.0.1", 0)
    with FakeMaster(address) as each:
        yield each


@pytest.fixture
def local(folder: str) -> Iterator[FakeMaster]:
    with FakeMaster(f"{folder}/lab-gpu.sock") as each:
        yield each


class Log:
    """A log that the file system and the master's API both know."""

    def __init__(self, master: FakeMaster, task_id: int, attempt: int, path: str) -> None:
        self.master, self.path, self.key = master, path, (task_id, attempt)
        self.write(b"")

    def write(self, content: bytes) -> None:
        with open(self.path, "ab") as file:
            file.write(content)
        with open(self.path, "rb") as file:
            self.master.logs[self.key] = file.read()


def api_of(master: FakeMaster) -> Api:
    return find_master(master.host, {})


def begun(master: FakeMaster, folder: str, content: bytes = b"") -> Log:
    task = master.add_task()
    path = f"{folder}/{task['id']}.log"
    log = Log(master, task["id"], 1, path)
    log.write(content)
    master.begin(task["id"], path)
    return log


def retried(master: FakeMaster, folder: str, log: Log, ending: str = "error") -> Log:
    """As the launcher does it: the old log gives its name away."""
    attempts = [dict(attempt) for attempt in master.tasks[1]["attempts"]]
    number = len(attempts) + 1
    os.rename(log.path, f"{folder}/1.{number - 1}.log")
    attempts[-1] |= {"state": "ended", "ending": ending, "log_path": f"{folder}/1.{number - 1}.log"}
    master.change(1, state="queued", attempts=attempts)
    following = Log(master, 1, number, f"{folder}/1.log")
    master.begin(1, f"{folder}/1.log")
    return following


class Follower:
    """Somebody who looks at a log in another thread; `text` is what they have seen."""

    def __init__(self, master: FakeMaster, **choice: object) -> None:
        self.master, self.seen = master, bytearray()
        self.end: list[object] = []
        self._thread = threading.Thread(target=self._look, args=(choice,))
        self._thread.start()

    def _look(self, choice: dict[str, object]) -> None:
        try:
            self.end.append(show_log(api_of(self.master), 1, follow=True, write=self.seen.extend, **choice))  # type: ignore[arg-type]
        except Exception as error:
            self.end.append(error)

    @property
    def text(self) -> str:
        return self.seen.decode()

    def sees(self, text: str) -> None:
        self.master.wait_until(lambda: self.text == text or self.end)
        assert self.text == text

    def leaves(self) -> object:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.end[0]


def shown(master: FakeMaster, **choice: object) -> str:
    written = bytearray()
    show_log(api_of(master), 1, write=written.extend, **choice)  # type: ignore[arg-type]
    return written.decode()


def test_a_log_as_it_is_now(master: FakeMaster, folder: str) -> None:
    begun(master, folder, b"one\n 5%\r50%\r100%\n\x1b[32mgreen\x1b[0m \xff\n")
    assert shown(master) == "one\n100%\ngreen �\n"
    assert shown(master, tty=True) == "one\n100%\n\x1b[32mgreen\x1b[0m �\n"


def test_raw_are_the_files_own_bytes(local: FakeMaster, folder: str) -> None:
    content = b" 5%\r50%\n\x1b[32mgreen\x1b[0m \xff\x00"
    begun(local, folder, content)
    written = bytearray()
    assert show_log(api_of(local), 1, write=written.extend, raw=True) is None
    assert bytes(written) == content


def test_all_attempts_with_a_heading_between(master: FakeMaster, folder: str) -> None:
    retried(master, folder, begun(master, folder, b"first\nopen end")).write(b"second\n")
    master.end(1, "completed", exit_code=0)
    assert shown(master) == "first\nopen end\n---- attempt 2 ----\nsecond\n"
    assert shown(master, tty=True) == "first\nopen end\n──── attempt 2 ────\nsecond\n"
    assert shown(master, attempt="last") == "second\n"
    assert shown(master, attempt=1) == "first\nopen end"
    assert shown(master, raw=True) == "first\nopen endsecond\n"


def test_an_attempt_that_never_was(master: FakeMaster, folder: str) -> None:
    master.add_task()
    with pytest.raises(NotFound, match="cannot show attempt 2 of task 1: it has not started"):
        shown(master, attempt=2)
    master.begin(1, f"{folder}/1.log")
    with pytest.raises(NotFound, match="it has had 1"):
        shown(master, attempt=2)


def test_a_log_that_was_removed_is_said(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"x\n")
    os.unlink(log.path)
    master.logs.clear()
    assert shown(master) == "[the log of attempt 1 is no longer there]\n"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [(0, ""), (1, "c"), (2, "b\nc"), (3, "a3\nb\nc"), (9, "a1\na2\na3\nb\nc")],
)
def test_the_last_lines(master: FakeMaster, folder: str, wanted: int, text: str) -> None:
    begun(master, folder, b"a1\na2\na3\nb\nc")
    assert shown(master, lines=wanted) == text


def test_the_last_lines_may_lie_in_several_attempts(master: FakeMaster, folder: str) -> None:
    retried(master, folder, begun(master, folder, b"a\nb\nc\n")).write(b"d\ne\n")
    assert shown(master, lines=3) == "c\n---- attempt 2 ----\nd\ne\n"
    assert shown(master, lines=2) == "d\ne\n"
    assert shown(master, lines=1, attempt=1) == "c\n"


def test_the_last_lines_of_a_long_log_are_read_from_its_end(master: FakeMaster, folder: str) -> None:
    begun(master, folder, b"".join(b"line %d\n" % number for number in range(100_000)))
    assert shown(master, lines=2) == "line 99998\nline 99999\n"
    read = [each for each in master.asked if each.path.endswith("/logs")]
    assert len(read) < 8
    assert len(shown(master).splitlines()) == 100_000


def sparse(path: str, head: bytes, hole: int, tail: bytes) -> None:
    with open(path, "wb") as file:
        file.write(head)
        file.seek(len(head) + hole)
        file.write(tail)


def test_a_hole_is_one_line(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder)
    head, tail = b"head\n" * 4096, b"tail\n" * 4096
    sparse(log.path, head, 5 << 20, tail)
    log.write(b"end\n")
    text = shown(master)
    before, _, after = text.partition("[... 5 MiB cut from the middle ...]\n")
    assert before.encode() == head
    assert after.encode() == tail + b"end\n"
    assert "[… 5 MiB cut from the middle …]" in shown(master, tty=True)
    assert shown(master, lines=2) == "tail\nend\n"


def test_the_end_of_a_hole_may_lie_anywhere(local: FakeMaster, folder: str) -> None:
    log = begun(local, folder)
    sparse(log.path, b"head\n", (1 << 20) + 777, b"tail\n")
    text = shown(local)
    assert text.startswith("head\n[... ") and text.endswith(" cut from the middle ...]\ntail\n")
    assert "\0" not in text
    assert shown(local, lines=2).endswith("tail\n")


def test_followed_as_it_grows_to_the_tasks_end(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"one\n")
    follower = Follower(master)
    follower.sees("one\n")
    log.write(b" 5%\r")
    log.write(b"99%\nthree")
    follower.sees("one\n99%\n")
    log.write(b"!\n")
    master.end(1, "completed", exit_code=0)
    assert follower.leaves()["exit_code"] == 0  # type: ignore[index]
    assert follower.text == "one\n99%\nthree!\n"


def test_a_terminal_gets_what_is_new_as_it_comes(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"old\n 1%\r 2%")
    follower = Follower(master, tty=True)
    follower.sees("old\n 2%")
    log.write(b"\r 3%")
    follower.sees("old\n 2%\r 3%")
    master.end(1, "failed", exit_code=1)
    follower.leaves()


def test_followed_across_retries(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"first\n")
    follower = Follower(master)
    follower.sees("first\n")
    log.write(b"out of memory\n")
    second = retried(master, folder, log, "oom")
    second.write(b"second\n")
    follower.sees("first\nout of memory\n---- attempt 2 ----\nsecond\n")
    third = retried(master, folder, second)
    third.write(b"third\n")
    master.end(1, "failed", exit_code=1)
    follower.leaves()
    assert follower.text.endswith("second\n---- attempt 3 ----\nthird\n")


def test_followed_from_before_its_start(master: FakeMaster, folder: str) -> None:
    master.add_task()
    follower = Follower(master)
    master.wait_until(lambda: "/api/v1/events" in master.paths("GET"))
    Log(master, 1, 1, f"{folder}/1.log").write(b"begun\n")
    master.begin(1, f"{folder}/1.log")
    follower.sees("begun\n")
    master.end(1, "completed", exit_code=0)
    follower.leaves()


def test_one_attempt_is_followed_to_its_own_end(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"first\n")
    follower = Follower(master, attempt=1)
    follower.sees("first\n")
    retried(master, folder, log).write(b"second\n")
    assert follower.leaves() is None
    assert follower.text == "first\n"


def test_a_task_that_is_cancelled_while_it_waits_ends_the_following(master: FakeMaster) -> None:
    master.add_task()
    follower = Follower(master)
    master.wait_until(lambda: "/api/v1/events" in master.paths("GET"))
    master.end(1, "cancelled")
    assert follower.leaves()["state"] == "cancelled"  # type: ignore[index]


def test_the_last_lines_and_then_what_comes(master: FakeMaster, folder: str) -> None:
    log = begun(master, folder, b"a\nb\nc\n")
    follower = Follower(master, lines=1)
    follower.sees("c\n")
    log.write(b"d\n")
    follower.sees("c\nd\n")
    master.end(1, "completed")
    follower.leaves()


def test_a_restart_of_the_master_is_not_noticed(local: FakeMaster, folder: str) -> None:
    log = begun(local, folder, b"one\n")
    follower = Follower(local)
    follower.sees("one\n")
    local.stop()
    log.write(b"two\n")
    follower.sees("one\ntwo\n")
    local.start()
    local.end(1, "completed", exit_code=0)
    assert follower.leaves()["state"] == "completed"  # type: ignore[index]


def test_a_master_that_stays_away_is_an_error(
    local: FakeMaster, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "AWAY_LIMIT_S", 0.05)
    monkeypatch.setattr(news, "AGAIN_S", 0.02)
    begun(local, folder, b"one\n")
    follower = Follower(local)
    follower.sees("one\n")
    local.stop()
    assert isinstance(follower.leaves(), NoMaster)


def test_without_a_watch_the_file_is_looked_at(
    local: FakeMaster, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(file: int) -> inotify.Watch:
        raise OSError(24, "no watches left")

    monkeypatch.setattr(log_teller, "Watch", none_left)
    monkeypatch.setattr(log_teller, "UNWATCHED_PAUSE_S", 0.01)
    log = begun(local, folder, b"one\n")
    follower = Follower(local)
    follower.sees("one\n")
    log.write(b"two\n")
    follower.sees("one\ntwo\n")
    local.end(1, "completed")
    follower.leaves()


def test_nothing_is_asked_while_nothing_happens(local: FakeMaster, folder: str) -> None:
    log = begun(local, folder, b"one\n")
    follower = Follower(local)
    follower.sees("one\n")
    log.write(b"two\n")
    follower.sees("one\ntwo\n")
    local.wait_until(lambda: local.asked[-1].query.get("timeout_s"))
    asked: list[Asked] = list(local.asked)
    for number in range(20):
        log.write(b"%d\n" % number)
    local.wait_until(lambda: follower.text.endswith("19\n"))
    assert local.asked == asked
    local.end(1, "completed")
    follower.leaves()


def test_a_log_that_was_renamed_between_two_looks(
    local: FakeMaster, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's path is the second one's by the time it is opened: it must not be shown as the first's."""
    log = begun(local, folder, b"first\n")
    real: Callable[..., log_sources.Source | None] = log_sources.open_source
    races = [lambda: retried(local, folder, log).write(b"second\n")]

    def late(*what: object) -> log_sources.Source | None:
        if races:
            races.pop()()
        return real(*what)

    monkeypatch.setattr(log_teller, "open_source", late)
    follower = Follower(local)
    follower.sees("first\n---- attempt 2 ----\nsecond\n")
    local.end(1, "completed")
    follower.leaves()


def test_lines_for_a_program_end_where_it_says_stop(local: FakeMaster, folder: str) -> None:
    begun(local, folder, b"one\ntwo\n")
    stop_reading, stop_writing = os.pipe()
    lines = log_lines(api_of(local), 1, follow=True, stop=stop_reading)
    assert [next(lines), next(lines)] == ["one\n", "two\n"]
    os.close(stop_writing)
    assert list(lines) == []
    os.close(stop_reading)

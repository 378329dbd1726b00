"""The transport against a master on a real socket, with its faults."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from fake_master import FakeMaster, Problem, half_an_answer, hang_up, http_answer, short_folder

from lab_gpu.client.transport import Api, connect, find_master
from lab_gpu.client.whereabouts import Place
from lab_gpu.core.errors import Broken, LabGpuError, NoMaster, NotFound, Refused, Unauthorized


@pytest.fixture
def home() -> Iterator[str]:
    with short_folder() as path:
        yield path


@pytest.fixture
def master(home: str) -> Iterator[FakeMaster]:
    with FakeMaster(f"{home}/lab-gpu.sock") as each:
        yield each


def environ_of(home: str, **more: str) -> dict[str, str]:
    return {"LAB_GPU_HOME": home, "LAB_GPU_AUTOSTART": "0", "XDG_CONFIG_HOME": f"{home}/config", **more}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_question_and_its_answer(master: FakeMaster, home: str, chunked: bool) -> None:
    master.chunked = chunked
    api = find_master(environ=environ_of(home))
    assert api.get("/api/health") == {"status": "ok"}
    master.add_task(state="failed")
    assert api.get("/api/v1/tasks", {"state": "failed", "limit": 5, "cursor": None})["next"] is None
    assert master.asked[-1].query == {"state": "failed", "limit": "5"}


def test_a_refusal_becomes_the_error_its_slug_names(master: FakeMaster, home: str) -> None:
    with pytest.raises(NotFound, match=r"^cannot find task 7: there is none; see `lab-gpu list`$"):
        find_master(environ=environ_of(home)).get("/api/v1/tasks/7")


def test_all_problems_come_along(master: FakeMaster, home: str) -> None:
    problem = json.dumps(Problem(422, "refused", "cannot submit: 2 mistakes", ["one", "two"]).doc).encode()
    master.faults.append(lambda connection: connection.sendall(http_answer(422, problem)))
    with pytest.raises(Refused) as caught:
        find_master(environ=environ_of(home)).post("/api/v1/tasks", {"tasks": []})
    assert caught.value.problems == ("one", "two")


def test_an_unknown_slug_goes_by_its_status(master: FakeMaster, home: str) -> None:
    problem = json.dumps(Problem(422, "novel", "cannot do that: why; do this").doc).encode()
    master.faults.append(lambda connection: connection.sendall(http_answer(422, problem)))
    with pytest.raises(Refused, match="cannot do that"):
        find_master(environ=environ_of(home)).get("/api/health")


@pytest.mark.parametrize("answer", [b"not json", b'{"detail": [1]}'])
def test_an_answer_that_is_not_ours(master: FakeMaster, home: str, answer: bytes) -> None:
    master.faults.append(lambda connection: connection.sendall(http_answer(502, answer)))
    with pytest.raises(Broken, match="HTTP 502"):
        find_master(environ=environ_of(home)).get("/api/health")


def test_another_service_at_that_address(master: FakeMaster, home: str) -> None:
    master.faults.append(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"))
    with pytest.raises(Broken, match="no Lab-GPU master"):
        find_master(environ=environ_of(home)).get("/api/health")


@pytest.mark.parametrize("fault", [hang_up, half_an_answer])
def test_a_broken_write_is_asked_again_with_the_same_key(
    master: FakeMaster, home: str, fault: object
) -> None:
    master.faults.append(fault)  # type: ignore[arg-type]
    answer = find_master(environ=environ_of(home)).post("/api/v1/tasks", {"tasks": [{"command": "a"}]})
    assert [task["id"] for task in answer["tasks"]] == [1]
    first, second = (each.headers["idempotency-key"] for each in master.asked)
    assert first == second and len(first) == 32


def test_a_write_that_was_done_but_not_answered_is_not_done_twice(master: FakeMaster, home: str) -> None:
    def done_but_silent(connection: socket.socket) -> None:
        master._once(master.asked[-1])

    master.faults.append(done_but_silent)
    answer = find_master(environ=environ_of(home)).post("/api/v1/tasks", {"tasks": [{"command": "a"}]})
    assert [task["id"] for task in answer["tasks"]] == [1] and len(master.tasks) == 1


def test_broken_twice_is_an_error(master: FakeMaster, home: str) -> None:
    master.faults += [hang_up, hang_up]
    with pytest.raises(Broken, match="broke off twice"):
        find_master(environ=environ_of(home)).get("/api/health")


def test_a_callers_own_key_is_kept(master: FakeMaster, home: str) -> None:
    api = find_master(environ=environ_of(home))
    for _ in range(2):
        api.post("/api/v1/tasks", {"tasks": [{"command": "a"}]}, headers={"Idempotency-Key": "mine"})
    assert len(master.tasks) == 1


def test_no_answer_in_time(master: FakeMaster, home: str) -> None:
    with pytest.raises(Broken, match=r"no answer within 0\.05 s"):
        find_master(environ=environ_of(home)).get(
            "/api/v1/events", {"after": 0, "timeout_s": 5}, timeout_s=0.05
        )
    master.change(master.add_task()["id"])


@pytest.mark.parametrize("left_behind", [False, True])
def test_nobody_there_is_one_sentence(home: str, left_behind: bool) -> None:
    if left_behind:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{home}/lab-gpu.sock")
    with pytest.raises(NoMaster, match=r"^no master runs: start one with `lab-gpu server start`$"):
        connect(start=True, environ=environ_of(home))


def test_a_master_that_restarts_is_waited_for(home: str) -> None:
    with open(f"{home}/master.json", "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid()}, file)
    master = FakeMaster(f"{home}/lab-gpu.sock")
    timer = threading.Timer(0.1, master.start)
    timer.start()
    try:
        assert find_master(environ=environ_of(home)).get("/api/health") == {"status": "ok"}
    finally:
        timer.join()
        master.stop()


def test_a_second_question_meets_the_restarted_master(master: FakeMaster, home: str) -> None:
    api = find_master(environ=environ_of(home))
    api.get("/api/health")
    master.stop()
    timer = threading.Timer(0.1, master.start)
    timer.start()
    assert api.get("/api/health") == {"status": "ok"}
    timer.join()


def test_the_connection_of_the_search_is_used_and_old_ones_are_not(master: FakeMaster, home: str) -> None:
    api = find_master(environ=environ_of(home))
    for _ in range(3):
        api.get("/api/health")
    api.open()
    sock, pid, _ = api._primed.pop()
    api._primed.append((sock, pid, -10.0))
    api.get("/api/health")
    assert len(master.asked) == 4


def test_tcp_takes_the_token(home: str) -> None:
    with FakeMaster(("127.0.0.1", 0), token="secret") as master:
        environ = environ_of(home, LAB_GPU_HOST=master.host)
        with pytest.raises(Unauthorized, match="LAB_GPU_TOKEN"):
            find_master(environ=environ).get("/api/health")
        assert find_master(environ={**environ, "LAB_GPU_TOKEN": "secret"}).get("/api/health")
        assert master.asked[-1].headers["host"] == master.host


def test_a_tcp_address_without_a_master_names_it(home: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(NoMaster, match=f"cannot reach a master at http://127.0.0.1:{port}: .*refused; "):
            find_master(f"127.0.0.1:{port}", environ_of(home))


def test_a_named_socket_without_a_master_names_it(home: str) -> None:
    with pytest.raises(NoMaster, match=f"cannot reach a master at unix:{home}/x: No such file"):
        connect(f"unix:{home}/x", start=True, environ={"LAB_GPU_HOME": home})


def test_a_name_nobody_knows_is_an_error_in_words(home: str) -> None:
    with pytest.raises(LabGpuError, match=r"cannot reach a master at http://no.such.host.invalid:1895: "):
        find_master("no.such.host.invalid", environ_of(home))


def test_the_machines_master_is_found_where_there_is_no_own(
    master: FakeMaster, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab_gpu.core.places.MACHINE_SOCKET", master.address)
    with short_folder() as empty:
        for host in (None, "localhost"):
            api = connect(host, start=True, environ={"LAB_GPU_HOME": empty})
            assert api.get("/api/health") and not api.place.own


def test_a_full_backlog_is_waited_for(home: str) -> None:
    path = f"{home}/full.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        first = socket.socket(socket.AF_UNIX)
        first.connect(path)
        api = Api(Place(path=path))
        done = threading.Event()

        def open_it() -> None:
            api.open()
            done.set()

        thread = threading.Thread(target=open_it)
        thread.start()
        assert not done.wait(0.05)
        listening.accept()[0].close()
        thread.join(10)
        assert done.is_set()
        api.close()
        first.close()


def test_the_cold_path_stays_light() -> None:
    """What a submit needs to find its master and ask: none of the slow libraries."""
    words = "import sys; import lab_gpu, lab_gpu.client.transport; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {words}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    heavy = "socket selectors dataclasses inspect typing enum re json pathlib subprocess logging http email urllib"
    assert not set(heavy.split()) & set(done.stdout.split())

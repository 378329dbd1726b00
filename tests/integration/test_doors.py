"""The life of the doors process: quiet while nobody asks, quick to end, replaced without anybody noticing."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time

import pytest

from lab_gpu.core.errors import Broken
from lab_gpu.store.reader import Reader
from lab_gpu.testing.fake_loop import Http, doors, end, fake_loop, finish, start, task
from tests.support.waiting import wait_until


def test_a_lost_link_ends_them_at_once_also_with_people_waiting() -> None:
    with doors() as house:
        [one] = house.loop.write(task())
        house.loop.push()
        waiting = [house.unix.begin("POST", "/api/v1/wait", {"ids": [one]}) for _ in range(20)]
        idle = house.unix.open()
        assert house.unix.get("/api/health")[0] == 200
        began = time.monotonic()
        house.loop.end.shutdown(socket.SHUT_RDWR)
        answers = [finish(sock) for sock in waiting]
        house.process.wait(5)
        took_s = time.monotonic() - began
        idle.close()
        assert {(status, body["slug"]) for status, body, _ in answers} == {(503, "broken")}
        assert house.process.returncode == 0
        assert took_s < 2  # 0.1 s of farewell on a quiet machine
        assert house.logged() == ""


def test_a_term_signal_ends_them_and_a_ctrl_c_does_not() -> None:
    with doors() as house:
        assert house.unix.get("/api/health")[0] == 200
        house.process.send_signal(signal.SIGINT)
        assert house.unix.get("/api/health")[0] == 200
        house.process.send_signal(signal.SIGTERM)
        assert house.process.wait(5) == 0


def test_who_asks_while_the_doors_are_gone_waits_for_the_next_ones() -> None:
    with fake_loop() as (loop, theirs), socket.socket(socket.AF_UNIX) as unix:
        unix.bind(loop.settings["socket"])
        unix.listen(64)
        http, log = Http(loop.settings["socket"]), f"{loop.home}/log"
        first = start(theirs, [unix], log)
        thread = threading.Thread(target=loop.serve)
        thread.start()
        assert http.get("/api/health")[0] == 200
        first.kill()
        first.wait()
        early = http.begin("GET", "/api/health")
        loop.end.shutdown(socket.SHUT_RDWR)
        thread.join()
        loop.end.close()
        loop.end, again = socket.socketpair()
        second = start(again, [unix], log)
        again.close()
        thread = threading.Thread(target=loop.serve)
        thread.start()
        assert finish(early)[0] == 200
        loop.end.shutdown(socket.SHUT_RDWR)
        thread.join()
        end(second)


def test_they_sleep_while_nobody_asks() -> None:
    with doors() as house:
        assert house.unix.get("/api/v1/status")[0] == 200

        def switches() -> int:
            with open(f"/proc/{house.process.pid}/status", encoding="ascii") as file:
                return sum(int(line.split()[1]) for line in file if "_ctxt_switches" in line)

        def quiet() -> bool:
            before = switches()
            select.select([], [], [], 0.5)  # five ticks of a server that has a clock
            return switches() == before

        wait_until(quiet)


def test_the_memory_of_a_large_request_is_given_back() -> None:
    with doors() as house:
        house.loop.answers["add_tasks"] = house.loop.add_tasks

        def resident_kib() -> int:
            with open(f"/proc/{house.process.pid}/status", encoding="ascii") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

        body = {"tasks": [{"command": "true " + "x" * 100}] * 10_000, "environment": {}, "workdir": "/"}
        assert house.unix.post("/api/v1/tasks", body)[0] == 201
        after = resident_kib()
        wait_until(lambda: resident_kib() < after - 2048)


def test_a_client_that_goes_away_is_no_longer_waited_for() -> None:
    with doors() as house:
        [one] = house.loop.write(task())
        house.loop.push()
        assert house.unix.get("/api/health")[0] == 200
        fds = f"/proc/{house.process.pid}/fd"
        before = len(os.listdir(fds))
        for sock in [house.unix.begin("POST", "/api/v1/wait", {"ids": [one]}) for _ in range(50)]:
            sock.close()
        wait_until(lambda: len(os.listdir(fds)) == before)
        assert house.unix.get("/api/health")[0] == 200
        assert house.logged() == ""


def test_two_hundred_connections_at_once_are_all_answered() -> None:
    with doors() as house:
        house.loop.answers["add_tasks"] = house.loop.add_tasks
        body = {"tasks": [{"command": "true"}], "environment": {}, "workdir": "/"}
        socks = [house.unix.begin("POST", "/api/v1/tasks", body) for _ in range(200)]
        ids = {finish(sock)[1]["tasks"][0]["id"] for sock in socks}
        assert len(ids) == 200


def test_one_connection_may_ask_many_times() -> None:
    with doors() as house, house.unix.open() as sock:
        for _ in range(3):
            sock.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while not said.endswith(b"}"):
                said += sock.recv(4096)
            assert said.startswith(b"HTTP/1.1 200")


def test_where_only_the_loop_may_open_the_database_it_is_asked_to_read() -> None:
    with doors(shared_database=False, database="/no/such") as house:
        [one] = house.loop.write(task("echo hi"))
        reader = Reader(house.loop.ledger.database.connection)
        house.loop.answers["read"] = lambda args: {"rows": reader.read(args["question"], args["args"])}
        assert house.unix.get(f"/api/v1/tasks/{one}")[1]["command"] == "echo hi"
        assert house.unix.get("/api/v1/status")[1]["counts"]["queued"] == 1
        assert house.unix.get("/api/v1/tasks?state=queued")[1]["tasks"][0]["id"] == one


def test_a_database_that_cannot_be_read_is_said_and_ends_them() -> None:
    with doors(database="/no/such/db") as house:
        assert house.process.wait(10) == Broken.exit_code
        assert "cannot read the database /no/such/db" in house.logged()
        assert "Traceback" not in house.logged()


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
def test_what_is_no_http_is_refused_and_harms_nobody(raw: bytes) -> None:
    with doors() as house:
        with house.tcp.open() as sock:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(4096)[:12] in (b"HTTP/1.1 400", b"")
        assert house.unix.get("/api/health")[0] == 200

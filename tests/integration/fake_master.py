"""A master as its clients see it: the HTTP API's shapes on a Unix socket or TCP port, with faults on demand."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Doc = dict[str, Any]
FINAL = ("completed", "failed", "cancelled")


@contextmanager
def short_folder() -> Iterator[str]:
    """Paths of Unix sockets are short."""
    path = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Problem(Exception):
    def __init__(self, status: int, slug: str, detail: str, problems: list[str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.doc = {
            "type": "about:blank",
            "title": slug,
            "status": status,
            "detail": detail,
            "slug": slug,
            "problems": problems or [],
        }


@dataclass
class FakeMaster:
    """`asked` is all that was asked. `faults` are taken one per connection, in place of an answer."""

    address: str | tuple[str, int]
    asked: list[Asked] = field(default_factory=list)
    faults: list[Callable[[socket.socket], None]] = field(default_factory=list)
    tasks: dict[int, Doc] = field(default_factory=dict)
    leases: dict[int, Doc] = field(default_factory=dict)
    logs: dict[tuple[int, int], bytes] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: [0, 1])
    token: str | None = None
    chunked: bool = False

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.events: list[Doc] = []
        self._keys: dict[str, tuple[int, Doc]] = {}
        self._stopped = False
        self._listening: socket.socket | None = None
        self._open: set[socket.socket] = set()

    # ---- life

    def start(self) -> FakeMaster:
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        self._listening = socket.socket(family)
        if isinstance(self.address, str):
            if os.path.exists(self.address):
                os.unlink(self.address)
        else:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(self.address)
        self._listening.listen(64)
        if not isinstance(self.address, str):
            self.address = self._listening.getsockname()[:2]
        self._stopped = False
        self._thread = threading.Thread(target=self._accept, args=(self._listening,))
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._listening is None:
            return
        self._stopped = True
        with self.changed:
            self.changed.notify_all()
        self._listening.shutdown(socket.SHUT_RDWR)
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                pass
        self._thread.join()
        self._listening.close()
        self._listening = None
        if isinstance(self.address, str):
            os.unlink(self.address)

    def __enter__(self) -> FakeMaster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def host(self) -> str:
        return (
            f"unix:{self.address}"
            if isinstance(self.address, str)
            else f"{self.address[0]}:{self.address[1]}"
        )

    # ---- what a test makes happen

    def add_task(self, **fields: Any) -> Doc:
        number = len(self.tasks) + 1
        doc = {"id": number, "state": "queued", "reason": None, "attempt": 0, "exit_code": None, "gpus": []}
        doc |= {"attempts": [], "log_path": None, "node": None, "started_at": None, "ended_at": None}
        self.tasks[number] = doc
        self.change(number, **fields)
        return doc

    def change(self, task_id: int, **fields: Any) -> None:
        with self.changed:
            self.tasks[task_id].update(fields)
            self.events.append({"seq": len(self.events) + 1, "kind": "changed", "task": task_id})
            self.changed.notify_all()

    def begin(self, task_id: int, log_path: str, **fields: Any) -> None:
        attempts = list(self.tasks[task_id]["attempts"])
        number = len(attempts) + 1
        attempt = {
            "id": 100 + number,
            "number": number,
            "state": "running",
            "ending": None,
            "log_path": log_path,
        }
        self.change(task_id, state="running", attempt=number, attempts=[*attempts, {**attempt, **fields}])

    def end(self, task_id: int, state: str, ending: str = "ok", **fields: Any) -> None:
        attempts = [dict(attempt) for attempt in self.tasks[task_id]["attempts"]]
        if attempts:
            attempts[-1] |= {"state": "ended", "ending": ending}
        self.change(task_id, state=state, attempts=attempts, **fields)

    def wait_until(self, condition: Callable[[], object], limit_s: float = 20) -> None:
        give_up_at = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < give_up_at, f"never came: {self.asked}"
            time.sleep(0.005)

    def paths(self, method: str) -> list[str]:
        return [each.path for each in self.asked if each.method == method]

    # ---- the wire

    def _accept(self, listening: socket.socket) -> None:
        served = []
        while not self._stopped:
            try:
                connection, _ = listening.accept()
            except OSError:
                break
            thread = threading.Thread(target=self._serve, args=(connection,))
            thread.start()
            served.append(thread)
        for thread in served:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        self._open.add(connection)
        with connection:
            connection.settimeout(20)
            try:
                asked = self._read(connection)
                if asked is None:
                    return
                self.asked.append(asked)
                if self.faults:
                    self.faults.pop(0)(connection)
                    return
                self._answer(connection, asked)
            except OSError:
                pass
            finally:
                self._open.discard(connection)

    def _read(self, connection: socket.socket) -> Asked | None:
        content = b""
        while b"\r\n\r\n" not in content:
            more = connection.recv(65536)
            if not more:
                return None
            content += more
        head, _, body = content.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        return Asked(method, unquote(parts.path), query, headers, json.loads(body) if body else None)

    def _answer(self, connection: socket.socket, asked: Asked) -> None:
        try:
            if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
                raise Problem(401, "unauthorized", "cannot let you in: no token; set LAB_GPU_TOKEN")
            status, doc = self._once(asked)
        except Problem as problem:
            status, doc = problem.status, problem.doc
        if self._stopped:
            return
        connection.sendall(http_answer(status, json.dumps(doc).encode(), self.chunked))

    def _once(self, asked: Asked) -> tuple[int, Doc]:
        """A write whose key is known is answered as before."""
        key = asked.headers.get("idempotency-key")
        if key in self._keys:
            return self._keys[key]
        answer = self._routed(asked)
        if key:
            self._keys[key] = answer
        return answer

    def _routed(self, asked: Asked) -> tuple[int, Doc]:
        for (method, pattern), handler in ROUTES.items():
            found = re.fullmatch(pattern, asked.path)
            if found and method == asked.method:
                return 201 if method == "POST" else 200, handler(self, asked, *map(int, found.groups()))
        raise Problem(404, "not_found", f"cannot find {asked.path}: there is no such thing; look again")

    def until(self, condition: Callable[[], object], wait_s: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._stopped or condition(), wait_s)

    def task(self, number: int) -> Doc:
        if number not in self.tasks:
            raise Problem(404, "not_found", f"cannot find task {number}: there is none; see `lab-gpu list`")
        return self.tasks[number]

    def grant(self) -> None:
        """What a planning pass does: leases in order, as many GPUs as there are."""
        with self.changed:
            for doc in self.leases.values():
                if doc["state"] != "waiting":
                    continue
                wanted = doc["wanted"]
                doc["reason"] = f"waiting for {wanted} free GPU(s)"
                if len(self.free) >= wanted:
                    taken, self.free = self.free[:wanted], self.free[wanted:]
                    gpus = [{"node": "box", "index": i, "uuid": f"GPU-{i}", "name": "A100"} for i in taken]
                    doc |= {"state": "held", "node": "box", "gpus": gpus, "reason": None}
            self.changed.notify_all()


def http_answer(status: int, body: bytes, chunked: bool = False) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n"
    if not chunked:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    half = len(body) // 2
    parts = [part for part in (body[:half], body[half:]) if part]
    sent = b"".join(f"{len(part):x};why=not\r\n".encode() + part + b"\r\n" for part in parts)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + sent + b"0\r\n\r\n"


def hang_up(connection: socket.socket) -> None:
    """The doors died before they answered."""


def half_an_answer(connection: socket.socket) -> None:
    connection.sendall(http_answer(200, b'{"status": "ok"}')[:-5])


# ---- routes


def add_tasks(master: FakeMaster, asked: Asked) -> Doc:
    names = ("command", "mem_mib")
    return {
        "tasks": [
            dict(master.add_task(**{name: each.get(name) for name in names})) for each in asked.body["tasks"]
        ],
        "warnings": [],
    }


def read_events(master: FakeMaster, asked: Asked) -> Doc:
    if "after" not in asked.query:
        return {"events": [], "last": len(master.events)}
    after, wanted = int(asked.query["after"]), asked.query.get("task")

    def newer() -> list[Doc]:
        return [each for each in master.events[after:] if wanted is None or each["task"] == int(wanted)]

    master.until(newer, float(asked.query["timeout_s"]))
    return {"events": newer(), "last": len(master.events)}


def wait(master: FakeMaster, asked: Asked) -> Doc:
    def done() -> bool:
        return all(master.tasks[number]["state"] in FINAL for number in asked.body["ids"])

    master.until(done, asked.body["timeout_s"])
    return {"tasks": [master.tasks[number] for number in asked.body["ids"]], "done": done()}


def act(master: FakeMaster, asked: Asked) -> Doc:
    action, errors = asked.body["action"], []
    for number in asked.body["ids"]:
        state = master.task(number)["state"]
        if state in FINAL or (action == "hold" and state == "running"):
            errors.append(
                {"id": number, "slug": "too_late", "text": f"cannot {action} task {number}: {state}"}
            )
        elif action == "cancel":
            master.end(number, "cancelled", "cancelled", reason="cancelled by its owner")
    return {"tasks": [], "errors": errors}


def read_log(master: FakeMaster, asked: Asked, number: int) -> Doc:
    attempt, offset = int(asked.query["attempt"]), int(asked.query["offset"])
    if (number, attempt) not in master.logs:
        raise Problem(404, "not_found", f"cannot read the log of task {number}: it is gone; retry the task")
    whole = master.logs[number, attempt]
    part = whole[offset : offset + int(asked.query["limit"])]
    doc = {"attempt": attempt, "offset": offset, "next": offset + len(part), "size": len(whole)}
    return doc | {"text": part.decode("utf-8", "replace"), "ended": False}


def ask_lease(master: FakeMaster, asked: Asked) -> Doc:
    inside = asked.body["inside_uni_id"]
    number = 0 if inside else len(master.leases) + 1
    wanted = asked.body["request"].get("gpus", 1)
    doc = {"id": number, "state": "waiting", "owner": "me", "name": asked.body["name"], "node": None}
    doc |= {"gpus": [], "vram_mib": asked.body["request"].get("mem_mib"), "virtual": False, "reason": None}
    doc |= {"asked_at": None, "granted_at": None, "pid": os.getpid(), "wanted": wanted, "beats": 0}
    master.leases[number] = doc
    if inside and wanted > 1:
        raise Problem(422, "refused", "cannot lease 2 GPUs: the attempt has 1 of its own; ask for 1")
    if inside:  # its own GPUs are given at once, and there is no lease to keep
        gpus = [{"node": "box", "index": 5, "uuid": "GPU-5", "name": "A100"}]
        del master.leases[0]
        return doc | {"state": "held", "node": "box", "gpus": gpus}
    return dict(doc)


def read_lease(master: FakeMaster, asked: Asked, number: int) -> Doc:
    master.grant()
    master.until(lambda: master.leases[number]["state"] != "waiting", float(asked.query.get("wait_s", 0)))
    return dict(master.leases[number])


def release(master: FakeMaster, asked: Asked, number: int) -> Doc:
    doc = master.leases[number]
    master.free += [gpu["index"] for gpu in doc["gpus"]]
    doc |= {"state": "released"}
    master.grant()
    return dict(doc)


def beat(master: FakeMaster, asked: Asked, number: int) -> Doc:
    if master.leases[number]["state"] == "released":
        raise Problem(404, "not_found", f"cannot keep lease {number}: it ran out; ask again")
    master.leases[number]["beats"] += 1
    return dict(master.leases[number])


def page(master: FakeMaster, asked: Asked) -> Doc:
    found = [doc for doc in master.tasks.values() if asked.query.get("state") in (None, doc["state"])]
    start, size = int(asked.query.get("cursor", 0)), min(2, int(asked.query["limit"]))
    following = start + size
    return {"tasks": found[start:following], "next": str(following) if following < len(found) else None}


ROUTES: dict[tuple[str, str], Callable[..., Doc]] = {
    ("GET", "/api/health"): lambda master, asked: {"status": "ok"},
    ("GET", "/api/v1/server"): lambda master, asked: {"pid": os.getpid(), "host": os.uname().nodename},
    ("GET", "/api/v1/status"): lambda master, asked: {"counts": {"queued": len(master.tasks)}},
    ("GET", "/api/v1/events"): read_events,
    ("POST", "/api/v1/wait"): wait,
    ("POST", "/api/v1/tasks"): add_tasks,
    ("GET", "/api/v1/tasks"): page,
    ("POST", "/api/v1/tasks/actions"): act,
    ("GET", r"/api/v1/tasks/(\d+)"): lambda master, asked, number: dict(master.task(number)),
    ("GET", r"/api/v1/tasks/(\d+)/why"): lambda master, asked, number: {"text": f"task {number} waits"},
    ("GET", r"/api/v1/tasks/(\d+)/logs"): read_log,
    ("POST", "/api/v1/leases"): ask_lease,
    ("GET", "/api/v1/leases"): lambda master, asked: {"leases": list(master.leases.values())},
    ("GET", r"/api/v1/leases/(\d+)"): read_lease,
    ("DELETE", r"/api/v1/leases/(\d+)"): release,
    ("POST", r"/api/v1/leases/(\d+)/heartbeat"): beat,
}

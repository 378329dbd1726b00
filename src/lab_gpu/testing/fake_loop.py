"""Real doors before a loop that is not there: a thread at the other end of the link, over a real database.

It answers each operation with what a test put into `answers`, and keeps what it was asked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab_gpu.core.documents import new_task_from_doc
from lab_gpu.core.errors import LabGpuError
from lab_gpu.core.model import NewTask, Request
from lab_gpu.core.policy import DEFAULTS
from lab_gpu.daemon.frames import Decoder, encode, fault_doc
from lab_gpu.store.database import Database
from lab_gpu.store.ledger import Ledger

Doc = dict[str, Any]
Answer = Doc | LabGpuError | Callable[[Doc], Doc]
TOKEN = "t0ken-of-a-test"
GPU: Doc = {
    "index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA RTX 4090",
    "total_mib": 24576,
    "used_mib": 0,
    "free_mib": 24576,
    "promised_mib": 0,
    "foreign_mib": 0,
    "utilization": 0,
    "temperature_c": 40,
    "power_w": 30.5,
    "closed": None,
    "holders": [
        {"kind": "task", "id": 1, "owner": "ann", "name": None, "mib": 1024, "since": 1_700_000_000.0}
    ],
    "foreign": [{"pid": 7, "owner": "bob", "command": "python x.py", "mib": 512}],
}
LEASE: Doc = {
    "id": 1,
    "state": "held",
    "owner": "ann",
    "name": None,
    "node": "n1",
    "gpus": [{"node": "n1", "index": 0, "uuid": "GPU-0", "name": "NVIDIA RTX 4090"}],
    "vram_mib": None,
    "virtual": False,
    "reason": None,
    "asked_at": 1_700_000_000.0,
    "granted_at": 1_700_000_001.5,
    "pid": 12,
}
SERVER: Doc = {
    "pid": 1,
    "version": "0.1.0",
    "started_at": 1_700_000_000.0,
    "home": "/h",
    "host": "n1",
    "url": None,
    "socket": "/h/lab-gpu.sock",
    "log": "/h/master.log",
    "policy_path": None,
    "manual_tick": False,
    "autostarted": False,
    "epoch": 1,
    "commit": 0,
    "passes": 0,
    "running": 0,
    "queued": 0,
    "leases": 0,
    "database_bytes": 4096,
    "warnings": [],
}


def answers() -> dict[str, Answer]:
    """What a loop would say where a test does not care."""
    nodes = [{"name": "n1", "host": "n1", "virtual": False, "closed": None, "gpus": [GPU]}]
    return {
        "live": {"nodes": nodes, "source": "nvml", "problem": None},
        "server": SERVER,
        "leases": {"leases": [LEASE]},
        "reasons": lambda args: {str(each): {"code": "gpus_busy", "text": "waiting"} for each in args["ids"]},
    }


@dataclass(slots=True)
class Asked:
    op: str
    who: Doc
    args: Doc


@dataclass
class FakeLoop:
    """`ledger` may be written to by the test; `push` tells the doors so."""

    home: str
    end: socket.socket
    ledger: Ledger
    settings: Doc
    answers: dict[str, Answer] = field(default_factory=answers)
    asked: list[Asked] = field(default_factory=list)
    pushed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        self.send({"settings": self.settings})
        decoder = Decoder()
        while more := self._receive():
            for frame in decoder.feed(more):
                self._answer(frame)

    def _receive(self) -> bytes:
        try:
            return self.end.recv(1 << 20)
        except OSError:
            return b""

    def _answer(self, frame: Doc) -> None:
        self.asked.append(Asked(frame["op"], frame["who"], frame["args"]))
        said = self.answers[frame["op"]]
        try:
            ok = said(frame["args"]) if callable(said) else said
            if isinstance(ok, LabGpuError):
                raise ok
        except LabGpuError as error:
            self.send({"n": frame["n"], "fault": fault_doc(error)})
        else:
            self.send({"n": frame["n"], "ok": ok})

    def send(self, frame: Mapping[str, Any]) -> None:
        with self._lock:
            self.end.sendall(encode(frame))

    def push(self) -> None:
        self.pushed += 1
        numbers = {"commit": self.ledger.newest_event, "pass": self.pushed, "facts": 0}
        self.send({"push": numbers})

    def ops(self, op: str) -> list[Asked]:
        return [each for each in self.asked if each.op == op]

    def add_tasks(self, args: Doc) -> Doc:
        """For `answers["add_tasks"]`: writes them as the loop would."""
        tasks = [new_task_from_doc(doc) for doc in args["tasks"]]
        return {"ids": self.write(*tasks), "warnings": [], "repeated": False}

    def write(self, *tasks: NewTask) -> list[int]:
        with self.ledger.database.transaction():
            ids = self.ledger.tasks.add(tasks, None, self.ledger.tasks.next_position(), time.time())
            self.ledger.events(time.time(), "submitted", ids, "ann")
        return [int(each) for each in ids]

    def sql(self, statement: str, *values: object, event: int | None = None) -> None:
        """Whatever a test needs written, and the event that tells of it."""
        with self.ledger.database.transaction() as connection:
            connection.execute(statement, values)
            if event is not None:
                self.ledger.event(time.time(), "changed", event)


def task(command: str = "true", **fields: Any) -> NewTask:
    made: dict[str, Any] = {"owner": "ann", "uid": os.getuid(), "workdir": "/", "request": Request()} | fields
    return NewTask(command=command, **made)


class Http:
    """A bare HTTP/1.1 client: one question, one connection."""

    def __init__(self, address: str | tuple[str, int]) -> None:
        self.address = address

    def open(self) -> socket.socket:
        unix = isinstance(self.address, str)
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        sock.settimeout(30)
        sock.connect(self.address)
        return sock

    def begin(self, method: str, path: str, body: Any = None, **headers: str) -> socket.socket:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = {"host": "localhost", "connection": "close"} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        if body is not None:
            lines = {"content-type": "application/json", "content-length": str(len(raw))} | lines
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value != "")
        sock = self.open()
        sock.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + raw)
        return sock

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        return finish(self.begin(method, path, body, **headers))

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask("GET", path, **headers)[:2]

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return self.ask("POST", path, body, **headers)[:2]


def finish(sock: socket.socket) -> tuple[int, Any, dict[str, str]]:
    with sock:
        raw = b"".join(iter(lambda: sock.recv(1 << 18), b""))
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), json.loads(body) if body else None, headers


@dataclass
class Doors:
    loop: FakeLoop
    process: subprocess.Popen[bytes]
    unix: Http
    tcp: Http
    home: str
    log: str

    def logged(self) -> str:
        with open(self.log, encoding="utf-8") as file:
            return file.read()


@contextmanager
def fake_loop(**settings: Any) -> Iterator[tuple[FakeLoop, socket.socket]]:
    """A loop with a database in a folder of its own, and the doors' end of its link."""
    home = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    database = Database(f"{home}/lab-gpu.db")
    mine, theirs = socket.socketpair()
    told = {
        "home": home,
        "database": database.path,
        "owner_uid": os.getuid(),
        "token": TOKEN,
        "url": None,
        "socket": f"{home}/s",
        "version": "0.1.0",
        "shared_database": True,
        "ports": [],
        "policy": DEFAULTS,
        "boot_id": "b",
    } | settings
    loop = FakeLoop(home, mine, Ledger(database), told)
    try:
        yield loop, theirs
    finally:
        for each in (loop.end, theirs):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        database.close()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def doors(**settings: Any) -> Iterator[Doors]:
    """The real doors process on a Unix socket and a TCP port."""
    with (
        fake_loop(**settings) as (loop, theirs),
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket() as tcp,
    ):
        unix.bind(loop.settings["socket"])
        os.chmod(loop.settings["socket"], 0o777)
        os.chmod(loop.home, 0o755)
        tcp.bind(("127.0.0.1", 0))
        for each in (unix, tcp):
            each.listen(512)
        loop.settings["ports"] = loop.settings["ports"] or [tcp.getsockname()[1]]
        log = f"{loop.home}/doors.log"
        process = start(theirs, [unix, tcp], log)
        theirs.close()
        thread = threading.Thread(target=loop.serve, name="fake-loop")
        thread.start()
        try:
            yield Doors(loop, process, Http(loop.settings["socket"]), Http(tcp.getsockname()), loop.home, log)
        finally:
            loop.end.shutdown(socket.SHUT_RDWR)
            thread.join()
            end(process)


def start(link: socket.socket, listeners: Sequence[socket.socket], log: str) -> subprocess.Popen[bytes]:
    fds = [each.fileno() for each in (link, *listeners)]
    command = [sys.executable, "-m", "lab_gpu.daemon.doors", "--link-fd", str(fds[0])]
    command += [word for fd in fds[1:] for word in ("--listen-fd", str(fd))]
    with open(log, "ab") as file:
        return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stderr=file)


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()

"""A master's HTTP API as the caretaker's commands see it: canned answers on a Unix socket, questions kept."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = Any  # a document, (status, document), or a callable of (query, body) that gives one of them

SERVER = {
    "pid": 4711,
    "version": "0.1.0",
    "started_at": "2026-01-02T03:04:05Z",
    "home": "/home/ann/.lab-gpu/box",
    "host": "box",
    "url": "http://127.0.0.1:1895",
    "socket": "/home/ann/.lab-gpu/box/lab-gpu.sock",
    "log": "/home/ann/.lab-gpu/box/master.log",
    "policy_path": None,
    "manual_tick": False,
    "autostarted": False,
    "epoch": 1,
    "commit": 9,
    "database_bytes": 4096,
    "warnings": [],
}


def problem(status: int, slug: str, sentence: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": "about:blank", "title": slug, "status": status, "detail": sentence, "slug": slug}


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        stub: Stub = self.server.stub  # type: ignore[attr-defined]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        stub.asked.append((self.command, url.path, query, body))
        said = stub.answers.get(
            (self.command, url.path), problem(404, "not_found", f"cannot find {url.path}")
        )
        if callable(said):
            said = said(query, body)
        status, document = said if isinstance(said, tuple) else (200, said)
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    do_GET = do_POST = do_DELETE = do_PATCH = _answer


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class Stub:
    def __init__(self, home: str) -> None:
        self.home = home
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: dict[tuple[str, str], Answer] = {("GET", "/api/v1/server"): SERVER}

    def on(self, method: str, path: str, answer: Answer | Callable[..., Answer]) -> None:
        self.answers[method, path] = answer

    def bodies(self, path: str) -> list[Any]:
        return [body for _, asked, _, body in self.asked if asked == path]

    @contextmanager
    def listening(self) -> Iterator[Stub]:
        server = Server(f"{self.home}/lab-gpu.sock", Door)
        server.stub = self  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            os.unlink(f"{self.home}/lab-gpu.sock")


@contextmanager
def short_home() -> Iterator[str]:
    """A home whose socket path is short enough."""
    home = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    try:
        yield home
    finally:
        shutil.rmtree(home)


def environment(home: str, **more: str) -> dict[str, str]:
    """Nothing of the person who runs the tests gets in."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "LAB_GPU_HOME": home,
        "LAB_GPU_CLAIMS_DIR": f"{home}/claims",
        "LAB_GPU_NO_NVML": "1",
        "LANG": "C.UTF-8",
        **more,
    }


def lab_gpu(home: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The real command, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lab_gpu", *words],
        env=environment(home, **more),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

"""HTTP on a Unix socket for pretended masters: a question is parsed, whoever listens answers it with JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

# (method, path, query, body) -> (status, document)
Answering = Callable[[str, str, dict[str, str], Any], tuple[int, Any]]


class Server(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    answering: Answering


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        status, document = self.server.answering(self.command, url.path, dict(parse_qsl(url.query)), body)
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = _serve

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass  # a command that was interrupted reads no answer


@contextmanager
def listening(socket: str, answering: Answering) -> Iterator[None]:
    server = Server(socket, Door)
    server.answering = answering
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

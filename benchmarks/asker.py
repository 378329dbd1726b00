"""Asks a master's API for its GPUs as fast as it answers, until it is killed; counts the answers into a file.

usage: asker.py SOCKET COUNT_FILE
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

QUESTION = b"GET /api/v1/gpus HTTP/1.1\r\nHost: localhost\r\n\r\n"
COUNT_EVERY = 20


def read_answer(connection: socket.socket) -> None:
    """Exactly one answer: its head, then as many bytes as the head says."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += take(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        sys.exit(f"the API answered {head[:80]!r}")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    while len(body) < length:
        body += take(connection)


def take(connection: socket.socket) -> bytes:
    part = connection.recv(65536)
    if not part:
        sys.exit("the API closed the connection")
    return part


def ask_for_ever(path: str, counted: Path) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    asked = 0
    while True:
        connection.sendall(QUESTION)
        read_answer(connection)
        asked += 1
        if asked % COUNT_EVERY == 0:
            counted.write_text(str(asked))


if __name__ == "__main__":
    ask_for_ever(sys.argv[1], Path(sys.argv[2]))

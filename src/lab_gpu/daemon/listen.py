"""The sockets people connect to. The loop binds them, so that they outlive the doors."""

from __future__ import annotations

import errno
import os
import socket
import stat

from lab_gpu.core.errors import Refused
from lab_gpu.core.places import DEFAULT_PORT, socket_note_path, socket_path

PORTS_TRIED = 50
BACKLOG = 512


def listen_unix(home: str, uid: int, on_network: bool) -> tuple[socket.socket, str]:
    """0600 from its first instant; the home's lock is ours, so a socket that lies there is a dead master's."""
    path = socket_path(home, uid, on_network)
    if os.path.lexists(socket_note_path(home)):
        os.unlink(socket_note_path(home))
    if os.path.dirname(path) != home:
        _own_directory(os.path.dirname(path), uid)
        with open(socket_note_path(home), "w", encoding="utf-8") as note:
            note.write(path)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listening.bind(path)
    except OSError as error:
        raise Refused(
            f"cannot listen on {path}: {error.strerror}; set LAB_GPU_HOME to another folder"
        ) from None
    finally:
        os.umask(before)
    listening.listen(BACKLOG)
    return listening, path


def _own_directory(path: str, uid: int) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise Refused(f"cannot use {path} for the socket: it is not a private folder of yours; remove it")


def listen_tcp(host: str, port: int | None) -> socket.socket:
    """The port that was asked for, or the next free one from the usual on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [port] if port else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(BACKLOG)
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise Refused(
                    f"cannot listen on {host}:{candidate}: {error.strerror}; choose another --host"
                ) from None
            if port:
                raise Refused(
                    f"cannot listen on {host}:{port}: something else does; choose another --port or leave it out"
                ) from None
    raise Refused(
        f"cannot listen on {host}: ports {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TRIED - 1} are taken"
    )


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"

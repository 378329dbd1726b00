"""The doors process: everybody's HTTP, over sockets that the loop opened and a link to ask it by.

It holds nothing that would be missed. It ends when the link does, and sleeps while nobody asks.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from lab_gpu.api.access import user_name
from lab_gpu.api.app import create_app
from lab_gpu.api.front import Front
from lab_gpu.api.live import Live
from lab_gpu.core.errors import Broken, LabGpuError
from lab_gpu.core.policy import parse_policy
from lab_gpu.daemon.link import Link
from lab_gpu.daemon.own_log import OwnLog
from lab_gpu.service.counts import Counts
from lab_gpu.service.login_env import LoginEnvironment, home_of
from lab_gpu.service.submit import Desk, Owner
from lab_gpu.service.views import Rows, Views
from lab_gpu.store.reader import Reader, open_read_only
from lab_gpu.wire.inside import Caller, Settings

MOST_OPEN = 65536
FAREWELL_S = 0.1  # for answers under way when the end has come
_IN_A_THREAD = frozenset({"list"})  # filters may have to look at every task there is
_PEER = struct.Struct("3i")


class FileRows:
    """Reads the database beside the loop. Short questions are answered at once: a thread would cost more."""

    def __init__(self, path: str) -> None:
        self._quick = Reader(open_read_only(path))
        self._slow = Reader(open_read_only(path))
        self._thread = ThreadPoolExecutor(1, "reader")

    async def read(self, question: str, /, **args: Any) -> list[dict[str, Any]]:
        try:
            if question in _IN_A_THREAD:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._slow.read, question, args)
            return self._quick.read(question, args)
        except sqlite3.Error as error:
            raise Broken(f"cannot read the database: {error}; see the disk and the master's log") from None


class LoopRows:
    """Has the loop read, where only it may open the database."""

    def __init__(self, link: Link, itself: Caller) -> None:
        self._link, self._itself = link, itself

    async def read(self, question: str, /, **args: Any) -> list[dict[str, Any]]:
        answer = await self._link.ask(self._itself, "read", {"question": question, "args": args})
        rows: list[dict[str, Any]] = answer["rows"]
        return rows


class DoorProtocol(H11Protocol):
    """HTTP/1.1, and on a Unix socket the kernel's word on who is at the other end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:
            pid, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            self.app_state = {**self.app_state, "peer": (pid, uid)}


class DoorServer(Server):
    """uvicorn without its clock: it wakes for connections, and once for the end."""

    def __init__(self, config: Config, ended: asyncio.Event, live: Live) -> None:
        super().__init__(config)
        self._ended, self._live = ended, live

    async def main_loop(self) -> None:
        gc.collect()
        gc.freeze()
        await self._ended.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the event loop hears them

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self._live.close()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=FAREWELL_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_front(settings: Settings, link: Link, workers: Executor) -> Front:
    owner = Owner(settings.owner_uid, user_name(settings.owner_uid), home_of(settings.owner_uid))
    itself = Caller(settings.owner_uid, owner.name, os.getpid(), "unix")
    rows: Rows = FileRows(settings.database) if settings.shared_database else LoopRows(link, itself)
    live = Live(link, rows, itself, time.monotonic)
    return Front(
        settings=settings,
        policy=parse_policy(dict(settings.policy)),
        owner=owner.name,
        loop=link,
        rows=rows,
        live=live,
        desk=Desk(owner, LoginEnvironment(settings.owner_uid)),
        views=Views(rows, live),
        counts=Counts(rows),
        workers=workers,
        clock=time.time,
    )


class Doors:
    """Brings the parts together as the link tells what they need."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._settings: asyncio.Future[Settings] = asyncio.get_running_loop().create_future()
        self._front: Front | None = None
        self._numbers: dict[str, int] = {}
        self._link = Link(self._on_push, self._on_settings, self._ended.set)

    def _on_push(self, numbers: Mapping[str, int]) -> None:
        if self._front is None:
            self._numbers.update(numbers)
        else:
            self._front.live.push(numbers)

    def _on_settings(self, settings: Settings) -> None:
        if self._front is not None:
            self._front.renew(settings)
        elif not self._settings.done():
            self._settings.set_result(settings)

    async def run(self, link_end: socket.socket, listeners: list[socket.socket]) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._ended.set)
        await self._link.open(link_end)
        ended = asyncio.ensure_future(self._ended.wait())
        await asyncio.wait((self._settings, ended), return_when=asyncio.FIRST_COMPLETED)
        if self._settings.done():
            await self._serve(self._settings.result(), listeners)
        ended.cancel()
        self._link.close()

    async def _serve(self, settings: Settings, listeners: list[socket.socket]) -> None:
        workers = ThreadPoolExecutor(4, "desk")
        self._front = front = make_front(settings, self._link, workers)
        front.live.push(self._numbers)
        config = Config(
            create_app(front),
            http=DoorProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody may say that they are somebody else
            server_header=False,
            date_header=False,
        )
        await DoorServer(config, self._ended, front.live).serve(listeners)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab_gpu.daemon.doors")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, action="append", required=True)
    args = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s doors %(levelname)s %(message)s", level=logging.WARNING)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a Ctrl-C is the loop's to answer; the link tells us of the end
    gc.set_threshold(20_000, 20, 50)
    _raise_limit()
    try:
        asyncio.run(_run(args.link_fd, args.listen_fd))
    except LabGpuError as error:
        logging.error("%s", error)
        return error.exit_code
    return 0


def _raise_limit() -> None:
    """A thousand connections that say nothing must not shut the others out. No task inherits it from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else MOST_OPEN
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, max(soft, MOST_OPEN)), hard))


async def _run(link_fd: int, listen_fds: list[int]) -> None:
    await Doors().run(socket.socket(fileno=link_fd), [socket.socket(fileno=fd) for fd in listen_fds])


if __name__ == "__main__":
    sys.stderr = OwnLog()
    code = main()
    # A worker may hang on a file system that went away; nothing is left here that it could lose.
    os._exit(code)

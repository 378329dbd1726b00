"""The doors' end of the link to the loop: it asks, gets answers by number, and hears pushes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from lab_gpu.core.errors import BY_SLUG, Broken, LabGpuError
from lab_gpu.daemon.frames import BadFrame, Decoder, Doc, encode
from lab_gpu.wire.inside import Caller, Settings


class Link(asyncio.Protocol):
    """The doors' end. Questions may be many at a time; answers find theirs by number."""

    def __init__(
        self,
        on_push: Callable[[Mapping[str, int]], None],
        on_settings: Callable[[Settings], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._on_push, self._on_settings, self._on_lost = on_push, on_settings, on_lost
        self._decoder = Decoder()
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[Doc]] = {}
        self._number = 0

    async def open(self, end: socket.socket) -> None:
        end.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    async def ask(self, who: Caller, op: str, args: Mapping[str, Any]) -> Doc:
        """The loop's answer, or the error it was answered with."""
        if self._transport is None or self._transport.is_closing():
            raise _gone()
        self._number += 1
        number = self._number
        answer: asyncio.Future[Doc] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._transport.write(encode({"n": number, "who": who.to_doc(), "op": op, "args": args}))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, more: bytes) -> None:
        try:
            for doc in self._decoder.feed(more):
                self._hear(doc)
        except BadFrame:
            self.close()
            raise

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_gone())
        self._on_lost()

    def _hear(self, doc: Doc) -> None:
        if "push" in doc:
            self._on_push(doc["push"])
        elif "settings" in doc:
            self._on_settings(Settings.from_doc(doc["settings"]))
        else:
            answer = self._waiting.get(doc["n"])
            if answer is not None and not answer.done():
                _settle(answer, doc)


def _settle(answer: asyncio.Future[Doc], doc: Doc) -> None:
    fault = doc.get("fault")
    if fault is None:
        answer.set_result(doc["ok"])
        return
    kind = BY_SLUG.get(fault["slug"], LabGpuError)
    answer.set_exception(kind(fault["text"], tuple(fault.get("problems") or ())))


def _gone() -> Broken:
    return Broken("cannot ask the scheduler: it has just stopped; see `lab-gpu server status` and ask again")

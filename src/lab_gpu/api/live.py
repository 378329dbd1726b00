"""What the loop knows at this moment, asked once however many want it; and waiting for it to change.

Nothing here polls: who waits is woken by a push of the loop, their deadline, or their client going away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from starlette.requests import Request

from lab_gpu.core.errors import Broken
from lab_gpu.service.views import Rows
from lab_gpu.wire.inside import Caller

Doc = dict[str, Any]
LONGEST_WAIT_S = 60.0
_KEPT_S = 1.0  # GPUs are read about as often; without a push an answer is older only while nobody asks
_REMEMBERED = 20_000


class Loop(Protocol):
    async def ask(self, who: Caller, op: str, args: Mapping[str, Any]) -> Doc: ...


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class Live:
    def __init__(self, loop: Loop, rows: Rows, itself: Caller, clock: Callable[[], float]) -> None:
        self._loop, self._rows, self._itself, self._clock = loop, rows, itself, clock
        self.commit = 0
        self.pushes = 0
        self.closing = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._kept: dict[str, asyncio.Future[Doc]] = {}
        self._reasons: dict[int, Doc] = {}
        self._kept_since = 0.0
        self._names: dict[str, str] = {}
        self._trail = _Trail(rows)

    # What the loop tells.

    def push(self, numbers: Mapping[str, int]) -> None:
        self.commit = max(self.commit, numbers.get("commit", 0))
        self.pushes += 1
        self.forget()
        self._wake()

    def close(self) -> None:
        """Everybody who waits is told that it is over."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # What is asked of it.

    def forget(self) -> None:
        # New ones, so that an answer under way is not kept beyond what it was asked for.
        self._kept, self._reasons = {}, {}

    async def answer(self, op: str) -> Doc:
        """The loop's answer to a question without arguments, shared by all who ask before the next push."""
        self._forget_what_is_old()
        kept = self._kept.get(op)
        if kept is None or (kept.done() and (kept.cancelled() or kept.exception())):
            kept = self._kept[op] = asyncio.ensure_future(self._loop.ask(self._itself, op, {}))
        return await asyncio.shield(kept)

    async def reasons(self, ids: Sequence[int]) -> Mapping[int, Doc]:
        """Why queued tasks wait; those that no longer do are left out."""
        self._forget_what_is_old()
        known = self._reasons
        missing = [each for each in ids if each not in known]
        if missing:
            answer = await self._loop.ask(self._itself, "reasons", {"ids": missing})
            known.update({int(task): reason for task, reason in answer.items()})
        return known

    async def gpu_names(self, uuids: Iterable[str]) -> Mapping[str, str]:
        if any(uuid not in self._names for uuid in uuids):
            for node in (await self.answer("live"))["nodes"]:
                self._names.update({gpu["uuid"]: gpu["name"] for gpu in node["gpus"]})
        return self._names

    def _forget_what_is_old(self) -> None:
        now = self._clock()
        if not 0 <= now - self._kept_since < _KEPT_S:
            self.forget()
            self._kept_since = now

    # Waiting.

    def patience(self, request: Request, wait_s: float) -> Patience:
        return Patience(self, request, min(max(wait_s, 0.0), LONGEST_WAIT_S))

    async def touched_since(self, seq: int) -> set[int] | None:
        """The tasks that something happened to after that event; None where that is no longer known."""
        return await self._trail.since(seq, self.commit)

    async def next_push(self, seen: int, gone: asyncio.Future[None], until: float) -> bool:
        """True once there is one newer than the `seen`-th; false when the time is up."""
        loop = asyncio.get_running_loop()
        if self.pushes == seen and not self.closing:
            left_s = until - loop.time()
            if left_s <= 0:
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait((waiter, gone), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiters.discard(waiter)
        if gone.done():
            raise ClientGone
        if self.closing:
            raise Broken("cannot wait any longer: the master stops; ask again once it runs")
        return self.pushes != seen


class Patience:
    """How long one caller may be kept: until their time is up, they went away, or the doors close."""

    def __init__(self, live: Live, request: Request, wait_s: float) -> None:
        self._live, self._request, self._wait_s = live, request, wait_s
        self._until = 0.0
        self._seen = live.pushes

    async def __aenter__(self) -> Patience:
        self._until = asyncio.get_running_loop().time() + self._wait_s
        self._gone = asyncio.ensure_future(_until_gone(self._request)) if self._wait_s else None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gone is not None:
            self._gone.cancel()

    async def more(self) -> bool:
        """Wait for the loop to have something new since this was last asked; false when the time is up."""
        if self._gone is None:
            return False
        pushed = await self._live.next_push(self._seen, self._gone, self._until)
        self._seen = self._live.pushes
        return pushed


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Trail:
    """Which tasks the newest events were about: read once, however many tasks are waited for."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._events: deque[tuple[int, int | None]] = deque()
        self._from = self._upto = 0
        self._reading = asyncio.Lock()

    async def since(self, seq: int, commit: int) -> set[int] | None:
        async with self._reading:
            await self._read_up_to(commit)
        if seq < self._from:
            return None
        touched = set()
        for at, task in reversed(self._events):
            if at <= seq:
                break
            if task is not None:
                touched.add(task)
        return touched

    async def _read_up_to(self, commit: int) -> None:
        if commit <= self._upto:
            return
        if commit - self._upto > _REMEMBERED:
            self._events.clear()
            self._from = self._upto = commit
            return
        rows = await self._rows.read("changes", after=self._upto, limit=_REMEMBERED)
        self._events.extend((row["seq"], row["task"]) for row in rows)
        self._upto = max(commit, rows[-1]["seq"] if rows else 0)
        while len(self._events) > _REMEMBERED:
            self._from = self._events.popleft()[0]

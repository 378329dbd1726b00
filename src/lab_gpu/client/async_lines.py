"""Lines that a thread waits for, given to a program on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from threading import Thread


async def from_thread(lines: Iterator[str], on_end: Callable[[], object]) -> AsyncGenerator[str, None]:
    """The thread is a daemon: nobody's end waits for the next line."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | BaseException | None]()

    def put(item: str | BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody listens any more
            pass

    def read() -> None:
        end: BaseException | None = None
        try:
            for line in lines:
                put(line)
        except Exception as error:
            end = error
        finally:
            on_end()
            put(end)

    Thread(target=read, name="lab-gpu log", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item

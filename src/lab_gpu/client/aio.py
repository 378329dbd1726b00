"""`from lab_gpu import AsyncClient`: the same conversations as Client's, over asyncio's own streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lab_gpu.client import cuda, http1, talks, transport, wishes
from lab_gpu.client.handles import AsyncHandle, Result
from lab_gpu.client.leases import AsyncLease, check_is_here
from lab_gpu.client.sdk import Command, Doc, Docs, Results, say
from lab_gpu.client.talks import Ask, Talk
from lab_gpu.client.transport import Api
from lab_gpu.client.wishes import Needs, Size, TaskOptions
from lab_gpu.core.errors import Broken
from lab_gpu.core.units import parse_priority

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
AsyncHandles = list[AsyncHandle]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient:
    """Client for programs that run on asyncio; finds, or starts, its master at the first question.

    >>> client = AsyncClient()
    >>> result = await client.run("python train.py", mem="10G")
    """

    def __init__(self, host: str | None = None, token: str | None = None) -> None:
        self._host = host
        self._token = token
        self._api: Api | None = None

    async def api(self) -> Api:
        """The master's address; looked for in a thread, because a master may have to be started first."""
        if self._api is None:
            self._api = await asyncio.to_thread(
                transport.connect, self._host, start=True, say=say, token=self._token
            )
            self._api.close()
        return self._api

    async def acquire(
        self,
        mem: Size | None = None,
        gpus: int = 1,
        timeout: float | None = None,
        name: str | None = None,
        priority: str | int = 0,
        **needs: Unpack[Needs],
    ) -> AsyncLease:
        """As Client.acquire; a wait that is cancelled leaves no lease behind.

        >>> async with await client.acquire(mem="10G", timeout=60) as lease:
        ...     print(lease.gpu_id)
        """
        cuda.check_not_started()
        await asyncio.to_thread(check_is_here, await self.api())
        request = wishes.lease_request({"mem": mem, "gpus": gpus, **needs})
        lease = await self._lease(request, timeout, name, priority, bound=True)
        try:
            cuda.check_not_started()
        except cuda.CudaStarted:
            await lease.release()
            raise
        return lease

    async def request_device(
        self,
        mem: Size | None = None,
        gpus: int = 1,
        timeout: float | None = None,
        name: str | None = None,
        priority: str | int = 0,
        **needs: Unpack[Needs],
    ) -> AsyncLease:
        """As Client.request_device.

        >>> placement = await client.request_device(mem="10G", timeout=30)
        """
        request = wishes.lease_request({"mem": mem, "gpus": gpus, **needs})
        return await self._lease(request, timeout, name, priority, bound=False)

    async def run(
        self,
        cmd: Command,
        mem: Size | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Result:
        """As Client.run.

        >>> (await client.run("python train.py", mem="10G")).exit_code
        0
        """
        body = wishes.submission([wishes.task_body(cmd, {"mem": mem, **options})])
        return Result.of(await self.ask(talks.run(body, timeout)))

    async def submit(
        self, cmd: Command, mem: Size | None = None, **options: Unpack[TaskOptions]
    ) -> AsyncHandle:
        """As Client.submit.

        >>> task = await client.submit("python train.py", mem="10G")
        """
        return (await self.map([cmd], mem=mem, **options))[0]

    async def map(
        self,
        commands: str | Iterable[Command],
        params: Iterable[Mapping[str, object]] | None = None,
        mem: Size | None = None,
        **options: Unpack[TaskOptions],
    ) -> AsyncHandles:
        """As Client.map.

        >>> tasks = await client.map("python train.py --lr {lr}", [{"lr": 0.1}, {"lr": 0.01}])
        """
        wanted = {"mem": mem, **options}
        tasks = [wishes.task_body(command, wanted) for command in wishes.commands_of(commands, params)]
        if not tasks:
            return []
        docs = await self.ask(talks.submit(wishes.submission(tasks)))
        return [AsyncHandle(self, doc["id"]) for doc in docs]

    async def gather(self, tasks: Iterable[AsyncHandle], timeout: float | None = None) -> Results:
        """As Client.gather.

        >>> results = await client.gather(tasks)
        """
        asked = [*tasks]
        if asked:
            await self.ask(talks.ended([task.id for task in asked], timeout))
        return [await task.result() for task in asked]

    async def task(self, task_id: int) -> AsyncHandle:
        """As Client.task.

        >>> await (await client.task(12)).cancel()
        """
        return AsyncHandle(self, (await self.ask(talks.task(task_id)))["id"])

    async def status(self) -> Doc:
        """As Client.status.

        >>> (await client.status())["counts"]["queued"]
        3
        """
        doc: Doc = await self._answer(Ask("GET", "/api/v1/status"))
        return doc

    async def why(self, task_id: int) -> str:
        """As Client.why.

        >>> print(await client.why(12))
        """
        return str((await self._answer(Ask("GET", f"/api/v1/tasks/{task_id}/why")))["text"])

    async def list(self, limit: int | None = 50, **filters: str | int | None) -> Docs:
        """As Client.list.

        >>> await client.list(state="failed", limit=10)
        """
        return await self.ask(talks.listed(filters, limit))

    async def ask(self, talk: Talk[T]) -> T:
        """Carry out a conversation with the master; a cancellation lets it take back what it began."""
        try:
            question = next(talk)
            while True:
                try:
                    answer = await self._answer(question)
                except BaseException as error:
                    question = talk.throw(error)
                else:
                    question = talk.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _answer(self, question: Ask) -> Any:
        return await answered(await self.api(), question)

    async def _lease(
        self, request: Doc, timeout: float | None, name: str | None, priority: str | int, bound: bool
    ) -> AsyncLease:
        api = await self.api()
        wish = talks.LeaseWish(request, name, parse_priority(priority), timeout, api.place.path is None)
        doc = await self.ask(talks.lease(wish))
        return AsyncLease(doc, api, bound, lambda number: self.ask(talks.released(number)))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


async def answered(api: Api, question: Ask) -> Any:
    """As Api.ask, over streams."""
    message = api.message(question.method, question.path, question.body, question.query)
    limit_s = transport.ANSWER_LIMIT_S if question.limit_s is None else question.limit_s
    give_up_at = time.monotonic() + question.patience_s
    while True:
        try:
            return await _answer(api, message, limit_s, question.patience_s)
        except Broken:
            if not transport.worth_another(question.patience_s, give_up_at):
                raise
        await asyncio.sleep(transport.AGAIN_S)


async def _answer(api: Api, message: bytes, limit_s: float, patience_s: float) -> Any:
    for last in (False, True):
        streams = await _dialled(api, patience_s)
        try:
            answer = await asyncio.wait_for(_exchanged(streams, message), limit_s)
            return transport.result_of(answer, api.place)
        except (asyncio.TimeoutError, TimeoutError):
            raise transport.silent(api.place, limit_s) from None
        except ConnectionError:
            if last:
                raise transport.broke_off(api.place) from None
        except http1.NotHttp as error:
            raise transport.foreign(api.place, str(error)) from None
        finally:
            streams[1].close()
    raise AssertionError("the last try answers or raises")


async def _exchanged(streams: Streams, message: bytes) -> http1.Answer:
    reader, writer = streams
    writer.write(message)
    await writer.drain()
    answer = http1.AnswerReader()
    while answer.answer is None:
        answer.feed(await reader.read(1 << 18))
    return answer.answer


async def _dialled(api: Api, patience_s: float) -> Streams:
    """As transport.dial: a master being restarted refuses for a moment."""
    until, pause_s = time.monotonic() + patience_s, 0.01
    while True:
        try:
            return await asyncio.wait_for(_streams(api), transport.CONNECT_LIMIT_S)
        except (ConnectionRefusedError, FileNotFoundError, BlockingIOError) as error:
            if time.monotonic() >= until:
                raise transport.unreachable(api.place, error) from None
        except asyncio.TimeoutError:
            raise transport.unreachable(api.place, OSError("no answer")) from None
        except OSError as error:
            raise transport.unreachable(api.place, error) from None
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.2)


async def _streams(api: Api) -> Streams:
    path = api.place.path
    if path is not None:
        reader, writer = await asyncio.open_unix_connection(path)
        transport.check_peer(writer.get_extra_info("socket"), path)
        return reader, writer
    return await asyncio.open_connection(api.place.host, api.place.port)

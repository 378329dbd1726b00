"""What a program holds of a task it submitted, and how the task ended."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lab_gpu.client import talks
from lab_gpu.client.async_lines import from_thread
from lab_gpu.client.logs import log_lines

if TYPE_CHECKING:
    from lab_gpu.client.aio import AsyncClient
    from lab_gpu.client.sdk import Client


@dataclass(frozen=True)
class Result:
    """How a task ended. `oom` and `ending` are its last attempt's; `exit_code` is None where none was seen."""

    task_id: int
    state: str
    exit_code: int | None
    oom: bool
    reason: str | None
    ending: str | None
    attempts: int
    log_path: str | None
    node: str | None
    gpu_ids: tuple[int, ...]
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def ok(self) -> bool:
        return self.state == "completed"

    @classmethod
    def of(cls, doc: dict[str, Any]) -> Result:
        attempts = sorted(doc.get("attempts") or (), key=lambda attempt: int(attempt["number"]))
        last: dict[str, Any] = attempts[-1] if attempts else {}
        gpus = doc["gpus"] or last.get("gpus") or ()
        return cls(
            task_id=doc["id"],
            state=doc["state"],
            exit_code=doc["exit_code"],
            oom=last.get("ending") == "oom",
            reason=doc["reason"],
            ending=last.get("ending"),
            attempts=doc["attempt"],
            log_path=doc.get("log_path") or last.get("log_path"),
            node=doc.get("node") or last.get("node"),
            gpu_ids=tuple(gpu["index"] for gpu in gpus if gpu.get("index") is not None),
            started_at=_instant(doc.get("started_at")),
            ended_at=_instant(doc.get("ended_at")),
        )


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


class Handle:
    """A task that was submitted.

    >>> task = client.submit("python train.py", mem="10G")
    >>> for line in task.logs(follow=True):
    ...     print(line, end="")
    >>> task.result().exit_code
    0
    """

    def __init__(self, client: Client, task_id: int) -> None:
        self._client = client
        self.id = task_id

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the task's end; LabGpuTimeoutError after `timeout` seconds, and the task goes on.

        >>> task.wait(timeout=3600).ok
        True
        """
        self._client.ask(talks.ended([self.id], timeout))
        return self.result()

    def result(self, timeout: float | None = None) -> Result:
        """How it ended, waiting for that; a failed task has a result too.

        >>> task.result().reason
        """
        doc = self._client.ask(talks.task(self.id))
        return Result.of(doc) if doc["state"] in talks.FINAL else self.wait(timeout)

    def status(self) -> dict[str, Any]:
        """The task as it is now, with its attempts.

        >>> task.status()["state"]
        'running'
        """
        return self._client.ask(talks.task(self.id))

    def cancel(self) -> None:
        """Take it out of the queue, or stop it by the steps the policy names; `wait()` waits for its end.

        >>> task.cancel()
        """
        self._client.ask(talks.acted("cancel", self.id))

    def logs(self, follow: bool = False, attempt: str | int = "all") -> Iterator[str]:
        """The lines of its log; with `follow` also those to come, across retries and until the task has ended.

        >>> print("".join(task.logs(attempt="last")))
        """
        return log_lines(self._client.api, self.id, attempt, follow)

    def __repr__(self) -> str:
        return f"<Handle of task {self.id}>"


class AsyncHandle:
    """A task that was submitted by an AsyncClient.

    >>> task = await client.submit("python train.py", mem="10G")
    >>> (await task.result()).exit_code
    0
    """

    def __init__(self, client: AsyncClient, task_id: int) -> None:
        self._client = client
        self.id = task_id

    async def wait(self, timeout: float | None = None) -> Result:
        """Wait for the task's end; LabGpuTimeoutError after `timeout` seconds, and the task goes on.

        >>> (await task.wait(timeout=3600)).ok
        True
        """
        await self._client.ask(talks.ended([self.id], timeout))
        return await self.result()

    async def result(self, timeout: float | None = None) -> Result:
        """How it ended, waiting for that; a failed task has a result too.

        >>> (await task.result()).reason
        """
        doc = await self._client.ask(talks.task(self.id))
        return Result.of(doc) if doc["state"] in talks.FINAL else await self.wait(timeout)

    async def status(self) -> dict[str, Any]:
        """The task as it is now, with its attempts.

        >>> (await task.status())["state"]
        'running'
        """
        return await self._client.ask(talks.task(self.id))

    async def cancel(self) -> None:
        """Take it out of the queue, or stop it by the steps the policy names; `wait()` waits for its end.

        >>> await task.cancel()
        """
        await self._client.ask(talks.acted("cancel", self.id))

    async def logs(self, follow: bool = False, attempt: str | int = "all") -> AsyncGenerator[str, None]:
        """The lines of its log; with `follow` also those to come, across retries and until the task has ended.

        >>> async for line in task.logs(follow=True):
        ...     print(line, end="")
        """
        api = await self._client.api()
        stop_reading, stop_writing = os.pipe()
        lines = log_lines(api, self.id, attempt, follow, stop=stop_reading)
        try:
            async for line in from_thread(lines, on_end=lambda: os.close(stop_reading)):
                yield line
        finally:
            os.close(stop_writing)

    def __repr__(self) -> str:
        return f"<AsyncHandle of task {self.id}>"

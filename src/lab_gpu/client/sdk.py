"""`from lab_gpu import Client`: ask for GPUs, or hand over a command and wait for it.

The timeouts of acquire, request_device and run are for the wait for GPUs, never for the run: None waits for ever, 0
fails at once, more are seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lab_gpu.client import cuda, talks, wishes
from lab_gpu.client.handles import Handle, Result
from lab_gpu.client.leases import Lease, check_is_here
from lab_gpu.client.talks import Ask, Talk
from lab_gpu.client.transport import Api, connect
from lab_gpu.client.wishes import Needs, Size, TaskOptions
from lab_gpu.core.units import parse_priority

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Doc = dict[str, Any]
Docs = list[Doc]
Handles = list[Handle]
Results = list[Result]
Command = str | Sequence[str]


def say(text: str) -> None:
    print(text, file=sys.stderr)


class Client:
    """The way from a program to the master; starts one of its own where none runs. Threads may share it.

    >>> client = Client()
    >>> placement = client.acquire(mem="10G")
    >>> print(placement.node, placement.gpu_id)
    """

    def __init__(self, host: str | None = None, token: str | None = None) -> None:
        self.api: Api = connect(host, start=True, say=say, token=token)

    def acquire(
        self,
        mem: Size | None = None,
        gpus: int = 1,
        timeout: float | None = None,
        name: str | None = None,
        priority: str | int = 0,
        **needs: Unpack[Needs],
    ) -> Lease:
        """Get GPUs of this host for this process and bind it to them, before CUDA looks for any.

        Sets CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and NVIDIA_VISIBLE_DEVICES until the release; raises CudaStarted
        (a RuntimeError) where CUDA is initialised already. Without `mem` the GPUs are taken whole.

        >>> with client.acquire(mem="10G", timeout=60) as lease:
        ...     print(lease.gpu_id)
        """
        cuda.check_not_started()
        check_is_here(self.api)
        request = wishes.lease_request({"mem": mem, "gpus": gpus, **needs})
        lease = self._lease(request, timeout, name, priority, bound=True)
        try:
            cuda.check_not_started()
        except cuda.CudaStarted:
            lease.release()
            raise
        return lease

    def request_device(
        self,
        mem: Size | None = None,
        gpus: int = 1,
        timeout: float | None = None,
        name: str | None = None,
        priority: str | int = 0,
        **needs: Unpack[Needs],
    ) -> Lease:
        """The same without touching this process's environment: the caller passes the GPU on.

        >>> placement = client.request_device(mem="10G", timeout=30)
        >>> model.to(f"cuda:{placement.gpu_id}")
        """
        request = wishes.lease_request({"mem": mem, "gpus": gpus, **needs})
        return self._lease(request, timeout, name, priority, bound=False)

    def run(
        self,
        cmd: Command,
        mem: Size | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Result:
        """Submit a command with this directory and environment, wait for its end and say how it ended.

        A failure is a result, not an error. With a `timeout`, a task that has not started by then is cancelled and
        LabGpuTimeoutError raised. Interrupting the wait leaves the task in the queue.

        >>> result = client.run(cmd="python train.py", mem="10G", log_root="/tmp")
        >>> print(result.exit_code, result.oom)
        """
        body = wishes.submission([wishes.task_body(cmd, {"mem": mem, **options})])
        return Result.of(self.ask(talks.run(body, timeout)))

    def submit(self, cmd: Command, mem: Size | None = None, **options: Unpack[TaskOptions]) -> Handle:
        """Put a command into the queue and go on.

        >>> task = client.submit("python train.py", mem="10G", priority="high", retries=2)
        """
        return self.map([cmd], mem=mem, **options)[0]

    def map(
        self,
        commands: str | Iterable[Command],
        params: Iterable[Mapping[str, object]] | None = None,
        mem: Size | None = None,
        **options: Unpack[TaskOptions],
    ) -> Handles:
        """Put many commands into the queue, all or none; handles come in their order.

        >>> tasks = client.map("python train.py --lr {lr}", [{"lr": 0.1}, {"lr": 0.01}], mem="10G")
        >>> [result.exit_code for result in client.gather(tasks)]
        [0, 0]
        """
        wanted = {"mem": mem, **options}
        tasks = [wishes.task_body(command, wanted) for command in wishes.commands_of(commands, params)]
        if not tasks:
            return []
        return [Handle(self, doc["id"]) for doc in self.ask(talks.submit(wishes.submission(tasks)))]

    def gather(self, tasks: Iterable[Handle], timeout: float | None = None) -> Results:
        """Wait for all of them; results come in the order given.

        >>> client.gather(tasks, timeout=3600)
        """
        asked = [*tasks]
        if asked:
            self.ask(talks.ended([task.id for task in asked], timeout))
        return [task.result() for task in asked]

    def task(self, task_id: int) -> Handle:
        """The handle of a task that was submitted elsewhere.

        >>> client.task(12).cancel()
        """
        return Handle(self, self.ask(talks.task(task_id))["id"])

    def status(self) -> Doc:
        """GPUs, open tasks and leases, as `lab-gpu status --json` prints them.

        >>> client.status()["counts"]["queued"]
        3
        """
        doc: Doc = self.api.get("/api/v1/status")
        return doc

    def why(self, task_id: int) -> str:
        """What a task waits for, or what has become of it.

        >>> print(client.why(12))
        """
        return str(self.api.get(f"/api/v1/tasks/{task_id}/why")["text"])

    def list(self, limit: int | None = 50, **filters: str | int | None) -> Docs:
        """Tasks, the newest first; filters are those of the API: state, name, queue, owner, batch, text, ids.

        >>> client.list(state="failed", limit=10)
        """
        return self.ask(talks.listed(filters, limit))

    def ask(self, talk: Talk[T]) -> T:
        """Carry out a conversation with the master."""
        try:
            question = next(talk)
            while True:
                try:
                    answer = self._answer(question)
                except BaseException as error:
                    question = talk.throw(error)
                else:
                    question = talk.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def _answer(self, question: Ask) -> Any:
        return self.api.ask(
            question.method,
            question.path,
            question.body,
            question.query,
            timeout_s=question.limit_s,
            patience_s=question.patience_s,
        )

    def _lease(
        self, request: Doc, timeout: float | None, name: str | None, priority: str | int, bound: bool
    ) -> Lease:
        over_tcp = self.api.place.path is None
        wish = talks.LeaseWish(request, name, parse_priority(priority), timeout, over_tcp)
        return Lease(
            self.ask(talks.lease(wish)), self.api, bound, lambda number: self.ask(talks.released(number))
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.close()

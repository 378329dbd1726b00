"""Leases as a program holds them: GPUs that are this process's until it releases them or ends.

On the Unix socket the kernel tells the master of our end; over TCP a heartbeat says that we are still there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import Any

from lab_gpu.client import cuda
from lab_gpu.client.transport import Api
from lab_gpu.core.errors import Broken, LabGpuError, NoMaster, Refused

HEARTBEAT_S = 30.0
OF_THE_ATTEMPT = 0  # inside an attempt its own GPUs are given, which end with it: there is no lease to keep


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str | None = None


@dataclass(eq=False)
class Placement:
    """The node and GPUs that were granted. `gpu_id` is the first one's index, as nvidia-smi counts."""

    node: str
    gpus: tuple[Gpu, ...]
    vram_mib: int | None
    virtual: bool

    @property
    def gpu_id(self) -> int:
        return self.gpus[0].index

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in self.gpus)

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def visible_names(self) -> list[str]:
        """What CUDA is told: indices, UUIDs for MIG slices, nothing where the GPU is imagined beside real ones."""
        if self.virtual and os.path.exists("/dev/nvidiactl"):
            return []
        return [gpu.uuid if gpu.uuid.startswith("MIG-") else str(gpu.index) for gpu in self.gpus]


class _Held(Placement):
    """What both kinds of lease are."""

    def __init__(self, doc: dict[str, Any], api: Api, bound: bool) -> None:
        gpus = tuple(Gpu(_index(gpu), gpu["uuid"], gpu.get("name")) for gpu in doc["gpus"])
        super().__init__(doc["node"], gpus, doc.get("vram_mib"), bool(doc.get("virtual")))
        self.id: int = doc["id"]
        self._holder_pid = os.getpid()
        self._over = False
        beats = api.place.path is None and self.id != OF_THE_ATTEMPT
        self._heartbeat = Heartbeat(api, self.id) if beats else None
        if bound:
            cuda.BOUND.add(self, self.visible_names(), self.gpu_uuids)

    def _let_go(self) -> bool:
        """Whether to tell the master: not twice, and not from a forked child of the process that holds it."""
        if self._over or os.getpid() != self._holder_pid:
            return False
        self._over = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        cuda.BOUND.remove(self)
        return self.id != OF_THE_ATTEMPT

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self.node}: GPU {', '.join(map(str, self.gpu_ids))}>"


class Lease(_Held):
    """GPUs held by this process, until `release()`, the end of a `with`, or the end of the process.

    >>> with client.acquire(mem="10G") as lease:
    ...     train(device="cuda:0")
    """

    def __init__(self, doc: dict[str, Any], api: Api, bound: bool, give_back: Callable[[int], None]) -> None:
        super().__init__(doc, api, bound)
        self._give_back = give_back

    def release(self) -> None:
        """Give the GPUs back; they are granted again once their memory is free. Again: nothing happens."""
        if self._let_go():
            self._give_back(self.id)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class AsyncLease(_Held):
    """The same for AsyncClient.

    >>> async with await client.acquire(mem="10G") as lease:
    ...     await train(device="cuda:0")
    """

    def __init__(
        self, doc: dict[str, Any], api: Api, bound: bool, give_back: Callable[[int], Awaitable[None]]
    ) -> None:
        super().__init__(doc, api, bound)
        self._give_back = give_back

    async def release(self) -> None:
        """Give the GPUs back; they are granted again once their memory is free. Again: nothing happens."""
        if self._let_go():
            await self._give_back(self.id)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


def _index(gpu: dict[str, Any]) -> int:
    return -1 if gpu.get("index") is None else int(gpu["index"])


def check_is_here(api: Api) -> None:
    """GPUs can be bound to this process only where they are."""
    if api.place.path is not None or api.place.loopback:
        return
    host = api.get("/api/v1/server")["host"]
    if host != os.uname().nodename:
        raise Refused(
            f"cannot bind GPUs of {host} to a process on {os.uname().nodename}: run the program there, "
            "or submit it with run()"
        )


class Heartbeat:
    """A thread, because the program may compute for hours without a pause; it keeps nobody from ending."""

    def __init__(self, api: Api, lease_id: int) -> None:
        self._api = api
        self._lease_id = lease_id
        self._over = Event()
        Thread(target=self._beat, name=f"lab-gpu lease {lease_id}", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            try:
                self._api.post(f"/api/v1/leases/{self._lease_id}/heartbeat")
            except (NoMaster, Broken):
                continue  # it may be back before the lease runs out
            except LabGpuError as error:
                if not self._over.is_set():
                    print(f"lab-gpu: lease {self._lease_id} is lost: {error}", file=sys.stderr)
                return

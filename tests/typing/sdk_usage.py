"""A program as a user of the SDK writes it. Never run: a type checker must pass it, and know every result's type."""

from collections.abc import Iterator
from datetime import datetime

from typing_extensions import assert_type

import lab_gpu
from lab_gpu import (
    AsyncClient,
    AsyncHandle,
    AsyncLease,
    Client,
    Handle,
    LabGpuError,
    LabGpuTimeoutError,
    Lease,
    Placement,
    Result,
)


def leases(client: Client) -> None:
    placement: Placement = client.acquire(mem="10G")
    assert_type(placement.node, str)
    assert_type(placement.gpu_id, int)
    assert_type(placement.gpu_ids, tuple[int, ...])
    assert_type(placement.gpu_uuids, tuple[str, ...])
    with client.request_device(10, gpus=2, timeout=30, gpu_type="A100", exclusive=True) as lease:
        assert_type(lease, Lease)
    try:
        client.acquire(mem="10G", timeout=0)
    except LabGpuTimeoutError as error:
        late: TimeoutError = error
        ours: LabGpuError = error
        print(late, ours)


def tasks(client: Client) -> None:
    result = client.run(
        cmd="python train.py", mem="10G", log_root="/tmp", timeout=60, env={"A": "b"}, retries=2
    )
    assert_type(result, Result)
    assert_type(result.exit_code, int | None)
    assert_type(result.oom, bool)
    assert_type(result.ended_at, datetime | None)
    first = client.submit(["python", "prepare.py"], gpus=0)
    assert_type(first, Handle)
    assert_type(first.logs(follow=True), Iterator[str])
    later = client.map("train --lr {lr}", [{"lr": 0.1}], mem="10G", after=first, time_limit="2h")
    assert_type(later, list[Handle])
    assert_type(client.gather(later), list[Result])


def mistakes(client: Client) -> None:
    client.submit("a", mem=["10G"])  # type: ignore[arg-type]
    client.submit("a", retry=2)  # type: ignore[call-arg]
    client.acquire(exclusive="yes")  # type: ignore[arg-type]


async def at_once(client: AsyncClient) -> None:
    async with await client.acquire(mem="10G", timeout=5) as lease:
        assert_type(lease, AsyncLease)
        assert_type(lease.gpu_id, int)
    task = await client.submit("python train.py", mem="10G")
    assert_type(task, AsyncHandle)
    async for line in task.logs(follow=True):
        assert_type(line, str)
    assert_type(await task.result(timeout=5), Result)
    assert_type(await client.gather([task]), list[Result])


def version() -> str:
    return lab_gpu.__version__

"""AsyncClient: the same conversations, and what asyncio adds: cancellation, and an end that nobody waits for."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator

import pytest
from fake_master import FakeMaster, Problem, hang_up, http_answer, short_folder

from lab_gpu import AsyncClient, LabGpuTimeoutError, NoMaster, NotFound


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    with short_folder() as home:
        monkeypatch.setenv("LAB_GPU_HOME", home)
        monkeypatch.setenv("LAB_GPU_AUTOSTART", "0")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with FakeMaster(f"{home}/lab-gpu.sock") as each:
            yield each


def test_a_run_from_end_to_end(master: FakeMaster) -> None:
    async def scene() -> None:
        async with AsyncClient() as client:
            running = asyncio.create_task(client.run("python train.py", "10G", timeout=20))
            await asyncio.to_thread(master.wait_until, lambda: master.tasks)
            master.begin(1, "/logs/1.log")
            master.end(1, "failed", "oom", exit_code=1)
            result = await running
            assert (result.exit_code, result.oom) == (1, True)

    asyncio.run(scene())


def test_leases_bind_and_are_given_back(master: FakeMaster) -> None:
    async def scene() -> None:
        client = AsyncClient()
        async with await client.acquire(mem="10G", timeout=5) as lease:
            assert os.environ["CUDA_VISIBLE_DEVICES"] == str(lease.gpu_id) == "0"
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        lease = await client.request_device(gpus=2)
        with pytest.raises(LabGpuTimeoutError):
            await client.request_device(timeout=0)
        await lease.release()
        assert {each["state"] for each in master.leases.values()} == {"released"}

    asyncio.run(scene())


def test_a_cancelled_wait_leaves_no_lease(master: FakeMaster) -> None:
    async def scene() -> None:
        master.free = []
        waiting = asyncio.create_task(AsyncClient().acquire())
        await asyncio.to_thread(master.wait_until, lambda: master.leases.get(1, {}).get("reason"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert master.leases[1]["state"] == "released"

    asyncio.run(scene())


def test_many_waits_at_once(master: FakeMaster) -> None:
    async def scene() -> None:
        client = AsyncClient()
        tasks = await client.map("train {lr}", [{"lr": number} for number in range(20)])
        waits = [asyncio.create_task(task.wait()) for task in tasks]
        for task in tasks:
            master.end(task.id, "completed", exit_code=task.id)
        assert [result.exit_code for result in await asyncio.gather(*waits)] == list(range(1, 21))
        assert len(await client.gather(tasks)) == 20
        assert await client.gather([]) == [] and await client.map([]) == []

    asyncio.run(scene())


def test_other_questions(master: FakeMaster) -> None:
    async def scene() -> None:
        client = AsyncClient()
        task = await client.submit("a")
        assert repr(task) == "<AsyncHandle of task 1>"
        assert (await task.status())["state"] == "queued"
        assert await client.why(1) == "task 1 waits"
        assert (await client.status())["counts"] == {"queued": 1}
        assert len(await client.list()) == 1
        assert (await client.task(1)).id == 1
        await task.cancel()
        assert (await task.result()).state == "cancelled"
        with pytest.raises(NotFound):
            await client.task(9)

    asyncio.run(scene())


def test_a_broken_answer_is_asked_for_again(master: FakeMaster) -> None:
    async def scene() -> None:
        client = AsyncClient()
        await client.api()
        master.faults.append(hang_up)
        assert (await client.submit("a")).id == 1
        assert len(master.tasks) == 1

    asyncio.run(scene())


def test_a_wait_outlives_a_restart_of_the_master(master: FakeMaster) -> None:
    async def scene() -> None:
        task = await AsyncClient().submit("a")
        waiting = asyncio.create_task(task.wait())
        await asyncio.to_thread(master.wait_until, lambda: "/api/v1/wait" in master.paths("POST"))
        await asyncio.to_thread(master.stop)
        master.end(1, "completed", exit_code=0)
        master.start()
        assert (await waiting).ok

    asyncio.run(scene())


def test_a_wait_goes_on_when_the_master_says_that_it_stops(master: FakeMaster) -> None:
    async def scene() -> None:
        task = await AsyncClient().submit("a")
        stopping = json.dumps(
            Problem(503, "broken", "cannot wait any longer: the master stops; ask again").doc
        )
        master.faults.append(lambda connection: connection.sendall(http_answer(503, stopping.encode())))
        master.end(1, "completed", exit_code=0)
        assert (await task.wait()).ok

    asyncio.run(scene())


def test_a_master_that_is_gone_is_an_error(master: FakeMaster) -> None:
    async def scene() -> None:
        client = AsyncClient()
        await client.api()
        await asyncio.to_thread(master.stop)
        with pytest.raises(NoMaster):
            await client.status()

    asyncio.run(scene())


def test_a_log_is_followed_to_its_end(master: FakeMaster) -> None:
    with short_folder() as folder:

        async def scene() -> list[str]:
            task = await AsyncClient().submit("a")
            with open(f"{folder}/1.log", "w") as file:
                master.begin(1, f"{folder}/1.log")
                print("one", file=file, flush=True)
                seen = []
                async for line in task.logs(follow=True):
                    seen.append(line)
                    if len(seen) == 1:
                        print("two", file=file, flush=True)
                        master.end(1, "completed", exit_code=0)
            return seen

        assert asyncio.run(scene()) == ["one\n", "two\n"]


def test_who_stops_reading_a_log_leaves_nobody_waiting(master: FakeMaster) -> None:
    with short_folder() as folder:

        async def scene() -> None:
            task = await AsyncClient().submit("a")
            with open(f"{folder}/1.log", "w") as file:
                print("one", file=file)
            master.begin(1, f"{folder}/1.log")
            lines = task.logs(follow=True)
            assert await anext(lines) == "one\n"
            await lines.aclose()

        before = time.monotonic()
        asyncio.run(scene())
        readers = [thread for thread in threading.enumerate() if thread.name == "lab-gpu log"]
        for reader in readers:
            reader.join(10)
            assert not reader.is_alive()
        assert time.monotonic() - before < 10


def test_a_log_that_cannot_be_shown_is_an_error_where_it_is_read(master: FakeMaster) -> None:
    async def scene() -> None:
        task = await AsyncClient().submit("a")
        with pytest.raises(NotFound, match="cannot show attempt 3"):
            async for _ in task.logs(attempt=3):
                pass

    asyncio.run(scene())

"""What one waits for and follows: ends of tasks, events, logs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request

from lab_gpu.api.front import Front, Json, front_of
from lab_gpu.api.live import LONGEST_WAIT_S
from lab_gpu.core.errors import NotFound, Refused
from lab_gpu.service.log_files import read_part
from lab_gpu.service.views import event_docs, no_task
from lab_gpu.wire import tasks as wire
from lab_gpu.wire.base import LARGEST_ID

router = APIRouter(prefix="/api/v1")
TaskPath = Annotated[int, Path(ge=1, le=LARGEST_ID)]
OPEN = frozenset({"queued", "running"})
MOST_IDS = 100_000


@router.post("/wait", responses={200: {"model": wire.Waited}})
async def wait(request: Request, body: wire.WaitBody) -> Json:
    """Wait until all or any of the tasks are final, at most 60 s; `done` tells whether they are."""
    front = front_of(request)
    done = await wait_for(request, body.ids, body.for_, body.timeout_s, OPEN)
    return Json({"tasks": await front.views.by_ids(body.ids, front.clock()), "done": done})


async def wait_for(
    request: Request, ids: list[int], how: str, wait_s: float, while_in: frozenset[str] | set[str]
) -> bool:
    """Whether all (or any) of the tasks have left those states in time."""
    front = front_of(request)
    async with front.live.patience(request, wait_s) as patience:
        seen = front.live.commit
        left = await _still_in(front, ids, while_in, must_exist=True)
        total = len(set(ids))
        while left and not (how == "any" and len(left) < total):
            if not await patience.more():
                return False
            newest = front.live.commit
            touched = await front.live.touched_since(seen)
            looked_at = left if touched is None else left & touched
            if looked_at:
                left = (left - looked_at) | await _still_in(
                    front, list(looked_at), while_in, must_exist=False
                )
            seen = newest
    return True


async def _still_in(
    front: Front, ids: list[int], states: frozenset[str] | set[str], must_exist: bool
) -> set[int]:
    if len(ids) > MOST_IDS:
        raise Refused(f"cannot wait for {len(ids)} tasks at once: {MOST_IDS} are the most; wait in parts")
    rows = await front.rows.read("states", ids=ids)
    if must_exist and len(rows) < len(set(ids)):
        raise no_task(sorted(set(ids) - {row["id"] for row in rows}))
    return {row["id"] for row in rows if row["state"] in states}


@router.get("/events", responses={200: {"model": wire.Events}})
async def events(
    request: Request,
    after: Annotated[int | None, Query(ge=0, le=LARGEST_ID)] = None,
    timeout_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 30,
    task: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> Json:
    """What happened after event `after`, else the next that does. Without `after`: the newest's number."""
    front = front_of(request)
    if after is None:
        return Json({"events": [], "last": await _newest(front)})
    async with front.live.patience(request, timeout_s) as patience:
        while True:
            newest = await _newest(front)
            found = await _events(front, task, after, newest, limit)
            if found or not await patience.more():
                break
    last = found[-1]["seq"] if len(found) == limit else max(newest, after)
    return Json({"events": event_docs(found), "last": last})


async def _newest(front: Front) -> int:
    [row] = await front.rows.read("newest_event")
    return int(row["seq"])


async def _events(
    front: Front, task: int | None, after: int, until: int, limit: int
) -> list[dict[str, object]]:
    if task is None:
        return await front.rows.read("events", after=after, until=until, limit=limit)
    return await front.rows.read("events_of", task=task, after=after, until=until, limit=limit)


@router.get("/tasks/{id}/history", responses={200: {"model": wire.History}})
async def history(request: Request, id: TaskPath) -> Json:
    """Who did what to a task, and what became of it: the newest thousand events."""
    front = front_of(request)
    if not await front.rows.read("states", ids=[id]):
        raise no_task([id])
    return Json({"events": event_docs(await front.rows.read("history_of", task=id, limit=1000))})


@router.get("/tasks/{id}/logs", responses={200: {"model": wire.LogPart}})
async def logs(
    request: Request,
    id: TaskPath,
    attempt: Annotated[str, Query(pattern=r"^(last|\d{1,9})$")] = "last",
    offset: Annotated[int, Query(ge=-LARGEST_ID, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=1 << 20)] = 65536,
) -> Json:
    """A part of an attempt's log, by bytes; a negative offset counts from the end."""
    front = front_of(request)
    rows = await front.rows.read("log_of", task=id, number=None if attempt == "last" else int(attempt))
    if not rows:
        if not await front.rows.read("states", ids=[id]):
            raise no_task([id])
        if attempt != "last":
            raise NotFound(
                f"cannot find attempt {attempt} of task {id}: there is none; see `lab-gpu show {id}`"
            )
        return Json({"attempt": 0, "offset": 0, "next": 0, "size": 0, "text": "", "ended": False})
    [row] = rows
    # `ended` was read before the file, so that a reader who sees it has seen all.
    part = await asyncio.get_running_loop().run_in_executor(
        front.workers, read_part, row["log_path"], offset, limit
    )
    return Json(
        {
            "attempt": row["number"],
            "offset": part.offset,
            "next": part.next,
            "size": part.size,
            "text": part.text,
            "ended": row["state"] == "ended",
        }
    )

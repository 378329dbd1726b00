"""Runs in somebody's own terminal that count as attempts of a task."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request

from lab_gpu.api.front import Json, caller_of, front_of
from lab_gpu.api.processes import start_of
from lab_gpu.core.errors import Refused
from lab_gpu.service.log_names import LogNames
from lab_gpu.service.requests import MOST_MIB
from lab_gpu.wire import tasks as wire
from lab_gpu.wire.base import LARGEST_ID

router = APIRouter(prefix="/api/v1")


@router.post("/tasks/{id}/outside-attempts", status_code=201, responses={201: {"model": wire.OutsideAttempt}})
async def begin(
    request: Request, id: Annotated[int, Path(ge=1, le=LARGEST_ID)], body: wire.OutsideBody
) -> Json:
    """A run begins. It counts for as long as its process lives: the one named, else the calling one."""
    front, caller = front_of(request), caller_of(request)
    if body.mem_mib is not None and not 1 <= body.mem_mib <= MOST_MIB:
        raise Refused(
            f"cannot add a run to task {id}: mem_mib must be a size that a GPU can have, not {body.mem_mib}"
        )
    pid = caller.pid if body.pid is None else body.pid
    started = None if pid is None else start_of(pid)
    if pid is not None and started is None:
        raise Refused(f"cannot add a run to task {id}: there is no process {pid} here; name a living one")
    args = body.model_dump() | {"task_id": id, "pid": pid, "pid_started": started}
    answer = await front.act(caller, "outside_begin", args)
    root = LogNames(front.settings.home, "", "").default_root(front.policy.log_root)
    return Json(answer | {"log_root_default": root}, 201)


@router.post("/outside-attempts/{id}/end", responses={200: {"description": "It is counted as ended."}})
async def end(
    request: Request, id: Annotated[int, Path(ge=1, le=LARGEST_ID)], body: wire.OutsideEndBody
) -> Json:
    """A run ended, and how."""
    args = body.model_dump() | {"attempt_id": id}
    return Json(await front_of(request).act(caller_of(request), "outside_end", args))

"""The master itself: how it is, its policy, one pass by hand, its end."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from lab_gpu.api.front import Front, Json, caller_of, front_of
from lab_gpu.core.night import is_night
from lab_gpu.core.policy import Policy
from lab_gpu.service.views import with_iso_moments
from lab_gpu.wire import server as wire

router = APIRouter()
_BRIEF = ("pid", "version", "host", "url", "socket", "manual_tick", "warnings")
_LAST_ENDED = 10


@router.get("/api/health", responses={200: {"model": wire.Health}})
async def health() -> Json:
    """Whether anybody is there."""
    return Json({"status": "ok"})


@router.get("/api/v1/server", responses={200: {"model": wire.Server}})
async def server(request: Request) -> Json:
    """What the running master says of itself."""
    return Json(with_iso_moments(await front_of(request).loop.ask(caller_of(request), "server", {})))


@router.post("/api/v1/server/stop", responses={200: {"description": "It stops; tasks run on."}})
async def stop(request: Request) -> Json:
    """Stop the master. Running tasks are not touched."""
    return Json(await front_of(request).act(caller_of(request), "stop", {}))


@router.post("/api/v1/server/tick", responses={200: {"model": wire.Ticked}})
async def tick(request: Request) -> Json:
    """Run one pass now and tell what was decided and why."""
    return Json(with_iso_moments(await front_of(request).act(caller_of(request), "tick", {})))


@router.get("/api/v1/status", responses={200: {"model": wire.Status}})
async def status(request: Request, limit: Annotated[int, Query(ge=0, le=1000)] = 200) -> Json:
    """Everything at a glance: all that runs, the head of the queue, the last that ended."""
    front, now = front_of(request), front_of(request).clock()
    about, readings, leases, tasks, counts = await asyncio.gather(
        front.live.answer("server"),
        front.live.answer("live"),
        front.live.answer("leases"),
        _tasks(front, limit, now),
        front.counts.read(now),
    )
    shown = {
        "server": {key: about[key] for key in _BRIEF},
        "nodes": with_iso_moments(readings["nodes"]),
        "tasks": tasks,
        "counts": counts,
        "leases": with_iso_moments(leases["leases"]),
    }
    return Json(shown)


async def _tasks(front: Front, limit: int, now: float) -> list[dict[str, Any]]:
    running = await front.rows.read("running")
    queued = await front.rows.read("queued", limit=limit)
    ended = await front.rows.read("ended", limit=_LAST_ENDED)
    return await front.views.tasks([*running, *queued, *ended], now)


@router.get("/api/v1/policy", responses={200: {"model": wire.PolicyDoc}})
async def policy(request: Request) -> Json:
    """The policy in force, and whether it is night by it."""
    front = front_of(request)
    about = await front.live.answer("server")
    return Json(
        {
            "policy": dict(front.settings.policy),
            "path": about["policy_path"],
            "night": _night(front.policy, front.clock()),
        }
    )


def _night(policy: Policy, now: float) -> bool:
    return is_night(now, policy.night_start, policy.night_end, _offset_s(policy.timezone, now))


def _offset_s(zone: str | None, now: float) -> float:
    if zone is None:
        return time.localtime(now).tm_gmtoff
    from datetime import datetime
    from zoneinfo import ZoneInfo

    offset = datetime.fromtimestamp(now, ZoneInfo(zone)).utcoffset()
    return offset.total_seconds() if offset else 0.0


@router.post("/api/v1/policy/reload", responses={200: {"model": wire.Reloaded}})
async def reload(request: Request, body: wire.ReloadBody) -> Json:
    """Read the policy file again, or another one. One that does not parse changes nothing."""
    front = front_of(request)
    answer = await front.act(caller_of(request), "policy_reload", {"text": None, "path": body.path})
    front.set_policy(answer["policy"])
    return Json(answer)

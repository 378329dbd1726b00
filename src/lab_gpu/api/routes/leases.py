"""Leases: GPUs held by a process of the caller's, with no task of ours on them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request

from lab_gpu.api.front import Front, Json, caller_of, front_of
from lab_gpu.api.live import LONGEST_WAIT_S, ClientGone, Patience
from lab_gpu.api.processes import start_of
from lab_gpu.core.errors import Refused
from lab_gpu.service.changes import lease_request_doc
from lab_gpu.service.views import with_iso_moments
from lab_gpu.wire import nodes as wire
from lab_gpu.wire.base import LARGEST_ID
from lab_gpu.wire.inside import Caller

router = APIRouter(prefix="/api/v1/leases")
LeasePath = Annotated[int, Path(ge=1, le=LARGEST_ID)]
TTL_S = 90.0  # three heartbeats


@router.post("", status_code=201, responses={201: {"model": wire.Lease}})
async def ask(request: Request, body: wire.LeaseBody) -> Json:
    """Ask for GPUs. It ends with the calling process on a Unix socket, and without heartbeats elsewhere."""
    front, caller = front_of(request), caller_of(request)
    args = {
        "request": lease_request_doc(body),
        "name": body.name,
        "priority": body.priority,
        "inside_uni_id": body.inside_uni_id,
        **_life(caller, body.ttl_s),
    }
    async with front.live.patience(request, body.wait_s) as patience:
        lease = await front.act(caller, "lease_ask", args)
        try:
            lease = await _granted(request, lease, patience)
        except ClientGone:
            # Whoever asked never learned its number, so nobody else could give it back.
            await front.act(caller, "lease_release", {"id": lease["id"]})
            raise
    return Json(with_iso_moments(lease), 201)


def _life(caller: Caller, ttl_s: float | None) -> dict[str, Any]:
    if caller.pid is None or ttl_s is not None:
        return {"pid": None, "pid_started": None, "ttl_s": ttl_s or TTL_S}
    started = start_of(caller.pid)
    if started is None:
        raise Refused("cannot hold GPUs: the process that asks is gone; ask from the one that will use them")
    return {"pid": caller.pid, "pid_started": started, "ttl_s": None}


async def _granted(request: Request, lease: dict[str, Any], patience: Patience) -> dict[str, Any]:
    """The lease once it no longer waits, or as it stands when the time is up.

    `patience` is older than `lease`: a push that came with the answer is then not missed.
    """
    front: Front = front_of(request)
    while lease["state"] == "waiting" and await patience.more():
        lease = await front.loop.ask(caller_of(request), "lease", {"id": lease["id"]})
    return lease


@router.get("", responses={200: {"model": wire.Leases}})
async def listing(request: Request) -> Json:
    """All leases that are held or waited for."""
    return Json(with_iso_moments(await front_of(request).live.answer("leases")))


@router.get("/{id}", responses={200: {"model": wire.Lease}})
async def one(
    request: Request, id: LeasePath, wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0
) -> Json:
    """One lease; `wait_s` waits for it to be granted."""
    async with front_of(request).live.patience(request, wait_s) as patience:
        lease = await front_of(request).loop.ask(caller_of(request), "lease", {"id": id})
        return Json(with_iso_moments(await _granted(request, lease, patience)))


@router.delete("/{id}", responses={200: {"model": wire.Lease}})
async def release(request: Request, id: LeasePath) -> Json:
    """Give the GPUs back."""
    return Json(
        with_iso_moments(await front_of(request).act(caller_of(request), "lease_release", {"id": id}))
    )


@router.post("/{id}/heartbeat", responses={200: {"model": wire.Lease}})
async def heartbeat(request: Request, id: LeasePath) -> Json:
    """Say that the holder lives, every 30 s."""
    return Json(
        with_iso_moments(await front_of(request).loop.ask(caller_of(request), "lease_beat", {"id": id}))
    )

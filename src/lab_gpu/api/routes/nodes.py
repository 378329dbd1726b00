"""GPUs and the nodes they are in."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from lab_gpu.api.front import Json, caller_of, front_of
from lab_gpu.service.views import with_iso_moments
from lab_gpu.wire import nodes as wire

router = APIRouter(prefix="/api/v1")


@router.get("/gpus", responses={200: {"model": wire.Readings}})
async def gpus(request: Request) -> Json:
    """Every GPU: what it has, who uses it, who holds it."""
    return Json(with_iso_moments(await front_of(request).live.answer("live")))


@router.post("/nodes", responses={200: {"model": wire.AddedNode}})
async def add(request: Request, body: wire.NodeBody) -> Json:
    """Declare a node: a limit on this host's own GPUs, or a virtual one."""
    return Json(await front_of(request).act(caller_of(request), "add_node", body.model_dump()))


@router.delete("/nodes/{name}", responses={200: {"description": "It is forgotten."}})
async def remove(request: Request, name: str) -> Json:
    """Forget a declared node."""
    return Json(await front_of(request).act(caller_of(request), "remove_node", {"name": name}))


@router.post("/nodes/{name}/drain", responses={200: {"description": "Nothing more starts there."}})
async def drain(request: Request, name: str, body: wire.DrainBody) -> Json:
    """Let nothing more start on a node, or on one GPU of it."""
    args = {"node": name, "gpu": body.gpu, "reason": body.reason}
    return Json(await front_of(request).act(caller_of(request), "drain", args))


@router.post("/nodes/{name}/undrain", responses={200: {"description": "Tasks start there again."}})
async def undrain(request: Request, name: str, body: wire.UndrainBody) -> Json:
    """Let tasks start there again."""
    args = {"node": name, "gpu": body.gpu}
    return Json(await front_of(request).act(caller_of(request), "undrain", args))

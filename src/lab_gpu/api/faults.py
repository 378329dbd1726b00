"""Every error as application/problem+json: a sentence for people, a slug for programs, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from lab_gpu.api.live import ClientGone
from lab_gpu.core.errors import LabGpuError, NotFound, Refused
from lab_gpu.core.nearest import nearest_first
from lab_gpu.wire.mistakes import mistakes

_SHOWN = 1  # in the sentence; all of them stand in `problems`


def problem(
    status: int,
    slug: str,
    detail: str,
    problems: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "slug": slug,
        "problems": list(problems),
    }
    return Response(json.dumps(body), status, headers, "application/problem+json")


def of_error(error: LabGpuError) -> Response:
    headers = {"www-authenticate": "Bearer"} if error.http_status == 401 else None
    return problem(error.http_status, error.slug, str(error), error.problems, headers)


def install(app: FastAPI) -> None:
    app.add_exception_handler(LabGpuError, _known)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _protocol)
    app.add_exception_handler(ClientGone, _nobody)
    app.add_exception_handler(Exception, _unexpected)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, LabGpuError)
    return of_error(error)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    field = getattr(request.scope.get("route"), "body_field", None)
    found = mistakes(errors, field.field_info.annotation if field else None)
    if _brings_one_task(error.body):
        found = tuple(each.removeprefix("task 1: ") for each in found)
    more = len(found) - _SHOWN
    rest = f" (and {more} more mistake{'s' if more > 1 else ''})" if more > 0 else ""
    status = 400 if errors[0]["type"] == "json_invalid" else 422
    return problem(status, Refused.slug, f"cannot read the request: {found[0]}{rest}", found)


def _brings_one_task(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("tasks"), list) and len(body["tasks"]) == 1


async def _protocol(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return problem(
            404, NotFound.slug, f"cannot {what}: there is no such address; /openapi.json lists them all"
        )
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"cannot {what}: this address knows {allowed}; use one of them"
        return problem(405, Refused.slug, detail, headers={"allow": allowed})
    if error.status_code == 400:
        return problem(
            400, Refused.slug, f"cannot {what}: the body is not JSON in UTF-8; correct it and send it again"
        )
    return problem(error.status_code, Refused.slug, str(error.detail), headers=error.headers)


def _methods(request: Request) -> list[str]:
    """All that the address knows, whichever of its routes was looked at first."""
    found: set[str] = set()
    for route in request.app.state.addresses:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)


async def _unexpected(request: Request, error: Exception) -> Response:
    # The server raises it again after this answer, and so its traceback gets into the log.
    detail = f"cannot answer {request.method} {request.url.path}: a mistake of Lab-GPU's own; see its log"
    return problem(500, LabGpuError.slug, detail)


async def known_query(request: Request) -> None:
    """A query parameter that nobody reads is a mistyped one."""
    if not request.scope["query_string"]:
        return
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        near = nearest_first(unknown[0], known)
        hint = f"the nearest is '{near[0]}'" if near else "this address takes none"
        found = tuple(f"there is no parameter '{name}'" for name in unknown)
        raise Refused(f"cannot read the request: {found[0]}; {hint}", found)

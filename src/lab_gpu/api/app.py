"""The application: all routes, every fault in one form, and the door in front of them."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from lab_gpu.api import faults
from lab_gpu.api.access import Access
from lab_gpu.api.front import Front
from lab_gpu.api.routes import leases, nodes, outside, server, tasks, waits
from lab_gpu.wire.server import Problem

_ROUTERS = (server, tasks, waits, nodes, leases, outside)


def create_app(front: Front) -> Access:
    app = FastAPI(
        title="Lab-GPU",
        version=front.settings.version,
        docs_url=None,  # the page would come from somebody else's server
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
        # Nobody collects traces from here, and each of them costs every request.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.front = front
    app.state.addresses = [route for each in _ROUTERS for route in each.router.routes]
    faults.install(app)
    for each in _ROUTERS:
        app.include_router(each.router, dependencies=[Depends(faults.known_query)])
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return Access(app, front)


def _document(app: FastAPI) -> dict[str, Any]:
    """Made at the first question. Every operation may answer with a Problem, which is written in here."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = Problem.model_json_schema()
        reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
        fault = {
            "description": "What went wrong",
            "content": {"application/problem+json": reference},
        }
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"] |= {"422": fault, "400": fault, "default": fault}
        app.openapi_schema = document
    return app.openapi_schema

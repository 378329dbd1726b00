"""What every route shares, and the two things each asks of its request: who calls, and the front itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lab_gpu.api.live import Live, Loop
from lab_gpu.core.policy import Policy, parse_policy
from lab_gpu.service.counts import Counts
from lab_gpu.service.submit import Desk
from lab_gpu.service.views import Rows, Views
from lab_gpu.wire.inside import Caller, Settings


@dataclass(slots=True)
class Front:
    """`workers` is for what may block: file systems, shells."""

    settings: Settings
    policy: Policy
    owner: str
    loop: Loop
    rows: Rows
    live: Live
    desk: Desk
    views: Views
    counts: Counts
    workers: Executor
    clock: Callable[[], float]

    def renew(self, settings: Settings) -> None:
        self.settings = settings
        self.policy = parse_policy(dict(settings.policy))

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        self.renew(replace(self.settings, policy=policy))

    async def act(self, who: Caller, op: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """An operation that may change what there is to see: what was kept of it is forgotten."""
        try:
            return await self.loop.ask(who, op, args)
        finally:
            self.live.forget()


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def front_of(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller

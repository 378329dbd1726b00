"""Who may come in. On the Unix socket the kernel says who calls, on TCP a token does; a page is nobody."""

from __future__ import annotations

import ipaddress
import pwd
import socket
from collections.abc import Mapping
from functools import lru_cache
from secrets import compare_digest
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lab_gpu.api.faults import of_error, problem
from lab_gpu.api.front import Front
from lab_gpu.core.errors import Forbidden, LabGpuError, Refused, Unauthorized
from lab_gpu.wire.inside import Caller

MOST_BODY_BYTES = 32 << 20
_MOST_DRAINED_BYTES = 8 * MOST_BODY_BYTES
OPEN_PATHS = frozenset({"/api/health"})
_OUR_NAMES = frozenset({"localhost", "unix", "lab-gpu", ""})
_METHODS = "GET, POST, PATCH, DELETE"
_HEADERS = "authorization, content-type, idempotency-key"
_TOO_LARGE = "cannot take the body: it is larger than 32 MiB; send it in parts"


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Access:
    """Wraps the whole application; what gets through has `state.caller`, the open paths excepted."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front
        self._hostname = socket.gethostname().lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            origin = self._check_names(headers)
            if origin:
                send = _with_origin(send, origin)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(send)
                return
            if scope["path"] not in OPEN_PATHS:
                scope["state"]["caller"] = self._identify(scope, headers)
            _check_body(headers)
        except LabGpuError as error:
            refusal = of_error(error)
        except HTTPException as error:
            refusal = problem(error.status_code, Refused.slug, error.detail)
        else:
            await self._app(scope, _limited(receive), send)
            return
        if "expect" not in headers:
            await _drain(receive)
        await refusal(scope, receive, send)

    def _check_names(self, headers: Mapping[str, str]) -> str | None:
        """A page that got its name to point here, or that posts here from elsewhere, is not a user."""
        host = headers.get("host", "")
        origins = self._front.policy.cors_origins
        if not self._is_ours(_name_of(host), origins):
            raise Forbidden(
                f"cannot answer to the name '{host}': it is not this master's; use localhost,"
                " or list it in the policy's cors_origins"
            )
        origin = headers.get("origin")
        if origin is None or origin in origins or origin in self._own_origins():
            return origin
        raise Forbidden(
            f"cannot answer a page of '{origin}': it is not one of ours; list it in the policy's cors_origins"
        )

    def _is_ours(self, name: str, origins: tuple[str, ...]) -> bool:
        if name in _OUR_NAMES or name == self._hostname:
            return True
        named = {urlsplit(each).hostname for each in (*origins, self._front.settings.url or "")}
        if name in named:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # nobody can make an address point elsewhere

    def _own_origins(self) -> set[str]:
        ports = self._front.settings.ports
        return {f"http://{name}:{port}" for port in ports for name in ("localhost", "127.0.0.1")}

    def _identify(self, scope: Scope, headers: Mapping[str, str]) -> Caller:
        peer = scope["state"].get("peer")
        return self._by_token(headers) if peer is None else self._by_peer(*peer)

    def _by_peer(self, pid: int, uid: int) -> Caller:
        if uid not in (self._front.settings.owner_uid, 0):
            raise Forbidden(
                f"cannot let {user_name(uid)} in: this master belongs to {self._front.owner};"
                " start your own with `lab-gpu server start`"
            )
        return Caller(uid, user_name(uid), pid or None, "unix")

    def _by_token(self, headers: Mapping[str, str]) -> Caller:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = self._front.settings.token
        if not token or scheme.lower() != "bearer":
            raise Unauthorized(
                "cannot tell who asks: no token came along; send the one in the file `token` of its home"
            )
        if not compare_digest(given.strip().encode(), token.encode()):
            raise Unauthorized(
                "cannot let you in: the token is not this master's; set LAB_GPU_TOKEN to the right one"
            )
        return Caller(self._front.settings.owner_uid, self._front.owner, None, "token")


def _name_of(host: str) -> str:
    """The host without its port; an IPv6 address without its brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _check_body(headers: Mapping[str, str]) -> None:
    length = headers.get("content-length", "0")
    if int(length) > MOST_BODY_BYTES:  # the parser has let only numbers through
        raise HTTPException(413, _TOO_LARGE)
    if length == "0" and "transfer-encoding" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(415, f"cannot read the body: it is {kind or 'of no kind'}; send application/json")


def _limited(receive: Receive) -> Receive:
    """A body that does not say how long it is may not be longer either."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST_BODY_BYTES:
            if message.get("more_body"):
                await _drain(receive)
            raise HTTPException(413, _TOO_LARGE)
        return message

    return limited


async def _drain(receive: Receive) -> None:
    """Whoever is still sending would not see an answer: the connection would be reset under them."""
    left = _MOST_DRAINED_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _with_origin(send: Send, origin: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = ((b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin"))
            message["headers"] = [*message.get("headers", ()), *allowed]
        await send(message)

    return sending


async def _preflight(send: Send) -> None:
    headers = [
        (b"access-control-allow-methods", _METHODS.encode()),
        (b"access-control-allow-headers", _HEADERS.encode()),
        (b"access-control-max-age", b"600"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

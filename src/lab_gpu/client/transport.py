"""How a client speaks to the master: one question, one connection; asked once more where that broke off.

On the cold path of every command, so it stands on the C socket module and imports nothing it can do without.
"""

from __future__ import annotations

import os
import sys
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket

from lab_gpu.client import http1, whereabouts
from lab_gpu.client.whereabouts import Place
from lab_gpu.core import places
from lab_gpu.core.errors import BY_SLUG, Broken, LabGpuError, NoMaster, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from lab_gpu.client.http1 import Query

ANSWER_LIMIT_S = 30.0
CONNECT_LIMIT_S = 5.0
AGAIN_S = 0.3
RESTART_S = 1.0  # how long a master that has just been there may be away
NO_MASTER = "no master runs: start one with `lab-gpu server start`"
_PRIMED_S = 2.0  # servers drop connections on which nothing is asked


class Pending:
    """A question whose answer is still to come: `fileno()` gets readable when something came."""

    def __init__(self, sock: socket, place: Place) -> None:
        self._sock = sock
        self._place = place
        self._reader = http1.AnswerReader()

    def fileno(self) -> int:
        return self._sock.fileno()

    def read(self) -> bool:
        """Take what came; true once the answer is whole."""
        try:
            return self._reader.feed(self._sock.recv(1 << 18)) is not None
        except http1.NotHttp as error:
            raise foreign(self._place, str(error)) from None

    def finish(self) -> Any:
        """Wait for the whole answer and give its JSON, or raise the error it carries."""
        try:
            while self._reader.answer is None:
                self.read()
        finally:
            self.close()
        return result_of(self._reader.answer, self._place)

    def close(self) -> None:
        self._sock.close()


class Api:
    """The master's HTTP API at one address. Holds no connection open, so threads may share it."""

    def __init__(self, place: Place, token: str | None = None) -> None:
        self.place = place
        self.token = token
        self._primed: list[tuple[socket, int, float]] = []

    def get(self, path: str, query: Query | None = None, timeout_s: float | None = None) -> Any:
        return self.ask("GET", path, query=query, timeout_s=timeout_s)

    def post(
        self,
        path: str,
        body: Any = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        return self.ask("POST", path, body, query, headers, timeout_s)

    def patch(
        self, path: str, body: Any = None, query: Query | None = None, timeout_s: float | None = None
    ) -> Any:
        return self.ask("PATCH", path, body, query, None, timeout_s)

    def delete(self, path: str, query: Query | None = None, timeout_s: float | None = None) -> Any:
        return self.ask("DELETE", path, query=query, timeout_s=timeout_s)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        patience_s: float = RESTART_S,
    ) -> Any:
        """One question, and the JSON of its answer; `patience_s` is for a master that is away for a moment.

        Asked again where the connection broke before an answer; its key lets the master know it again.
        """
        message = self.message(method, path, body, query, headers)
        limit_s = ANSWER_LIMIT_S if timeout_s is None else timeout_s
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                return self._answer(message, limit_s, patience_s)
            except Broken:
                if not worth_another(patience_s, give_up_at):
                    raise
            time.sleep(AGAIN_S)

    def _answer(self, message: bytes, limit_s: float, patience_s: float) -> Any:
        for last in (False, True):
            try:
                return Pending(self._send(message, limit_s, patience_s), self.place).finish()
            except TimeoutError:
                raise silent(self.place, limit_s) from None
            except ConnectionError:
                if last:
                    raise broke_off(self.place) from None
        raise AssertionError("the last try answers or raises")

    def begin(
        self,
        path: str,
        query: Query | None = None,
        timeout_s: float | None = None,
        patience_s: float = RESTART_S,
    ) -> Pending:
        """Ask without waiting, for those who wait for something else at the same time."""
        limit_s = ANSWER_LIMIT_S if timeout_s is None else timeout_s
        return Pending(self._send(self.message("GET", path, None, query), limit_s, patience_s), self.place)

    def message(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        ours = {"Host": "localhost" if self.place.path is not None else self.place.authority}
        if self.token:
            ours["Authorization"] = f"Bearer {self.token}"
        if method != "GET":
            ours["Idempotency-Key"] = os.urandom(16).hex()
        ours.update(headers or {})
        return http1.question(method, http1.target(self.place.prefix + path, query), ours, body)

    def open(self, patience_s: float = 0.0) -> None:
        """Make sure that somebody listens; the first question takes this connection."""
        self._primed.append((dial(self.place, patience_s), os.getpid(), time.monotonic()))

    def _send(self, message: bytes, limit_s: float, patience_s: float) -> socket:
        sock = self._fresh() or dial(self.place, patience_s)
        try:
            sock.settimeout(limit_s)
            sock.sendall(message)
        except BaseException:
            sock.close()
            raise
        return sock

    def _fresh(self) -> socket | None:
        while self._primed:
            sock, pid, opened_at = self._primed.pop()
            if pid == os.getpid() and time.monotonic() - opened_at < _PRIMED_S:
                return sock
            sock.close()
        return None

    def close(self) -> None:
        while self._primed:
            self._primed.pop()[0].close()

    def __del__(self) -> None:
        self.close()


def worth_another(patience_s: float, give_up_at: float) -> bool:
    """Whoever waits anyway also waits for a master that says that it is stopping, or whose disk is full."""
    return patience_s > RESTART_S and time.monotonic() < give_up_at


def result_of(answer: http1.Answer | None, place: Place) -> Any:
    """The JSON of a good answer; a refusal becomes the error its slug names."""
    assert answer is not None
    from json import loads

    try:
        content = loads(answer.body) if answer.body.strip() else None
    except ValueError:
        raise foreign(place, f"HTTP {answer.status}") from None
    if 200 <= answer.status < 300:
        return content
    raise _error(content, answer.status, place)


def _error(content: Any, status: int, place: Place) -> LabGpuError:
    if not isinstance(content, dict) or not isinstance(content.get("detail"), str):
        return foreign(place, f"HTTP {status}")
    kind = BY_SLUG.get(str(content.get("slug"))) or _by_status(status)
    return kind(content["detail"], tuple(str(problem) for problem in content.get("problems") or ()))


def _by_status(status: int) -> type[LabGpuError]:
    kinds = [kind for kind in BY_SLUG.values() if kind.http_status == status]
    return kinds[0] if kinds else LabGpuError


def dial(place: Place, patience_s: float) -> socket:
    """Connect. A master being restarted refuses, or has no socket, for a moment: `patience_s`."""
    now = time.monotonic()
    away_until, full_until = now + patience_s, now + ANSWER_LIMIT_S
    pause_s = 0.01
    while True:
        try:
            return _dial_unix(place.path) if place.path is not None else _dial_tcp(place)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            if time.monotonic() >= away_until:
                raise unreachable(place, error) from None
        except BlockingIOError as error:  # so many wait to be let in that the kernel takes no more
            if time.monotonic() >= full_until:
                raise unreachable(place, error) from None
        except OSError as error:
            raise unreachable(place, error) from None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.2)


def _dial_unix(path: str) -> socket:
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_LIMIT_S)
        sock.connect(path)
        check_peer(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def check_peer(sock: socket, path: str) -> None:
    """In /tmp a path proves nothing: the kernel says who listens there."""
    if not path.startswith("/tmp/"):
        return
    credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    uid = int.from_bytes(credentials[4:8], sys.byteorder)
    if uid not in (os.getuid(), 0) and os.getuid() != 0:
        raise Refused(f"cannot trust {path}: user {uid} listens there; name another home in LAB_GPU_HOME")


def _dial_tcp(place: Place) -> socket:
    failure: OSError = OSError("the name has no address")
    for family, kind, protocol, _, address in getaddrinfo(place.host, place.port, 0, SOCK_STREAM):
        sock = socket(family, kind, protocol)
        try:
            sock.settimeout(CONNECT_LIMIT_S)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def unreachable(place: Place, error: OSError) -> NoMaster:
    if place.own and isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return NoMaster(NO_MASTER)
    why = error.strerror or str(error)
    advice = "start one there with `lab-gpu server start`, or name another with --host or LAB_GPU_HOST"
    return NoMaster(f"cannot reach a master at {place}: {why}; {advice}")


def silent(place: Place, limit_s: float) -> Broken:
    return Broken(
        f"cannot wait longer for the master at {place}: no answer within {limit_s:g} s; see its log"
    )


def broke_off(place: Place) -> Broken:
    return Broken(
        f"cannot read the answer of the master at {place}: it broke off twice; see `lab-gpu server status`"
    )


def foreign(place: Place, seen: str) -> Broken:
    return Broken(
        f"cannot read the answer of {place} ({seen}): it is no Lab-GPU master; check --host and LAB_GPU_HOST"
    )


def find_master(
    host: str | None = None, environ: Mapping[str, str] | None = None, token: str | None = None
) -> Api:
    """The master these settings name, with somebody listening there; else NoMaster."""
    environ = os.environ if environ is None else environ
    named = host or environ.get("LAB_GPU_HOST")
    place = whereabouts.place_of(named) if named else None
    if place is None:
        return _own_or_machine(environ)
    api = Api(place, whereabouts.token_for(place, environ, token))
    api.open(RESTART_S if place.path is not None else 0.0)
    return api


def _own_or_machine(environ: Mapping[str, str]) -> Api:
    home = whereabouts.own_home(environ)
    try:
        return _own(home)
    except NoMaster:
        if not os.path.exists(places.MACHINE_SOCKET):
            raise
    api = Api(Place(path=places.MACHINE_SOCKET))
    try:
        api.open()
    except NoMaster:
        raise NoMaster(NO_MASTER) from None
    return api


def _own(home: str) -> Api:
    api = Api(Place(path=whereabouts.own_socket(home), own=True))
    try:
        api.open()
    except NoMaster:
        note = whereabouts.running_note(home)
        if note is None or not whereabouts.is_alive(note.get("pid")):
            raise
        api.open(RESTART_S)  # its process is there: it is coming up, or making place for the next one
    return api


def connect(
    host: str | None = None,
    start: bool = False,
    say: Callable[[str], object] | None = None,
    token: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Api:
    """`find_master`; with `start` also the one that makes there be a master, and a new one."""
    environ = os.environ if environ is None else environ
    try:
        api = find_master(host, environ, token)
    except NoMaster:
        if not (start and _may_start(host, environ)):
            raise
        from lab_gpu.client import launch

        launch.start_private(whereabouts.own_home(environ), say)
        return find_master(host, environ, token)
    return _renewed(api, environ, say) if start and api.place.own else api


def _may_start(host: str | None, environ: Mapping[str, str]) -> bool:
    named = host or environ.get("LAB_GPU_HOST")
    return environ.get("LAB_GPU_AUTOSTART") != "0" and (not named or whereabouts.place_of(named) is None)


def _renewed(api: Api, environ: Mapping[str, str], say: Callable[[str], object] | None) -> Api:
    """An autostarted master older than this program is replaced; tasks run on."""
    home = whereabouts.own_home(environ)
    if environ.get("LAB_GPU_AUTOSTART") == "0" or not whereabouts.is_outdated(home):
        return api
    from lab_gpu.client import launch

    api.close()
    launch.restart(home, say)
    return find_master(None, environ)

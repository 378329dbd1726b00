"""The conversations behind the SDK, each told once: it yields what to ask, and is sent the answers.

Client and AsyncClient carry them out, each in its own way. What is thrown in (a caller who gives up, a master
that is gone) lets a conversation take back what it began.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lab_gpu.core.errors import BY_SLUG, Broken, LabGpuError, LabGpuTimeoutError, Refused

Doc = dict[str, Any]
T = TypeVar("T")

FINAL = ("completed", "failed", "cancelled")
POLL_S = 50.0  # how long one question may wait at the master
AWAY_S = 60.0  # how long one who waits anyway waits for a master that restarts
VERDICT_LIMIT_S = 2.0  # how long a new lease may be without a verdict before it counts as not granted
HEARTBEAT_TTL_S = 90.0


@dataclass(frozen=True)
class Ask:
    """One question. `limit_s` None is the transport's own; `patience_s` is for a master that is away."""

    method: str
    path: str
    body: Any = None
    query: Mapping[str, str | int | float | bool | None] | None = None
    limit_s: float | None = None
    patience_s: float = 1.0


Talk = Generator[Ask, Any, T]


def _polled(method: str, path: str, wait_s: float, body: Doc | None = None, query: Doc | None = None) -> Ask:
    return Ask(method, path, body, query, limit_s=wait_s + 30, patience_s=AWAY_S)


class Deadline:
    """None waits for ever, 0 is over at once."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        return POLL_S if self._end is None else min(POLL_S, max(0.0, self._end - time.monotonic()))

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


def checked_timeout(timeout: float | None) -> float | None:
    try:
        sound = timeout is None or timeout >= 0
    except TypeError:  # a text, a timedelta
        sound = False
    if not sound:
        raise Refused(
            f"cannot wait {timeout!r} s: a timeout is 0 or more seconds, or None to wait for ever; give a number"
        )
    return timeout


# ---- tasks


def submit(body: Doc) -> Talk[list[Doc]]:
    answer = yield Ask("POST", "/api/v1/tasks", body, limit_s=120)
    tasks: list[Doc] = answer["tasks"]
    return tasks


def task(task_id: int) -> Talk[Doc]:
    answer: Doc = yield Ask("GET", f"/api/v1/tasks/{task_id}", patience_s=AWAY_S)
    return answer


def ended(ids: Sequence[int], timeout_s: float | None) -> Talk[None]:
    """Until all of them are final."""
    deadline = Deadline(checked_timeout(timeout_s))
    while True:
        wait_s = deadline.left_s()
        answer = yield _polled("POST", "/api/v1/wait", wait_s, {"ids": list(ids), "timeout_s": wait_s})
        if answer["done"]:
            return
        if deadline.over:
            open_ids = [str(doc["id"]) for doc in answer["tasks"] if doc["state"] not in FINAL]
            words = f"task {open_ids[0]} is" if len(open_ids) == 1 else f"{len(open_ids)} tasks are"
            raise LabGpuTimeoutError(
                f"cannot wait longer: {words} not over after {timeout_s:g} s; wait again"
            )


def started(task_id: int, timeout_s: float) -> Talk[None]:
    """Until it has begun; one that has not in time is taken out of the queue."""
    deadline = Deadline(timeout_s or VERDICT_LIMIT_S)
    last = (yield Ask("GET", "/api/v1/events"))["last"]
    while True:
        doc = yield from task(task_id)
        if doc["state"] != "queued" or doc["attempt"] > 0:
            return
        if deadline.over or (timeout_s == 0 and doc.get("reason")):
            break
        wait_s = deadline.left_s()
        query = {"after": last, "timeout_s": wait_s, "task": task_id}
        last = (yield _polled("GET", "/api/v1/events", wait_s, query=query))["last"]
    reason = doc.get("reason")
    if (yield from _taken_back(task_id)):
        raise LabGpuTimeoutError(
            f"cannot run task {task_id}: it had not started after {timeout_s:g} s"
            f"{f' ({reason})' if reason else ''}; it was cancelled"
        )


def _taken_back(task_id: int) -> Talk[bool]:
    """Held first: what cannot be held has begun at the last moment, and is left to run."""
    held = yield from act("hold", task_id)
    if held["errors"]:
        return False
    yield from act("cancel", task_id)
    return True


def act(action: str, task_id: int, wait_s: float = 0.0) -> Talk[Doc]:
    body = {"action": action, "ids": [task_id], "wait_s": wait_s}
    answer: Doc = yield Ask("POST", "/api/v1/tasks/actions", body, limit_s=wait_s + 30)
    return answer


def acted(action: str, task_id: int) -> Talk[None]:
    """The same, where a refusal is an error."""
    answer = yield from act(action, task_id)
    for error in answer["errors"]:
        raise BY_SLUG.get(error["slug"], LabGpuError)(error["text"])


def run(body: Doc, timeout_s: float | None) -> Talk[Doc]:
    checked_timeout(timeout_s)
    tasks = yield from submit(body)
    task_id: int = tasks[0]["id"]
    if timeout_s is not None:
        yield from started(task_id, timeout_s)
    yield from ended([task_id], None)
    return (yield from task(task_id))


def listed(query: Doc, limit: int | None) -> Talk[list[Doc]]:
    """All pages up to the limit."""
    found: list[Doc] = []
    cursor: str | None = None
    while True:
        size = 500 if limit is None else min(500, limit - len(found))
        page = yield Ask("GET", "/api/v1/tasks", query={**query, "limit": size, "cursor": cursor})
        found += page["tasks"]
        cursor = page.get("next")
        if cursor is None or (limit is not None and len(found) >= limit):
            return found[:limit]


# ---- leases


@dataclass
class LeaseWish:
    request: Doc
    name: str | None
    priority: int
    timeout_s: float | None
    over_tcp: bool

    def body(self) -> Doc:
        ttl_s = HEARTBEAT_TTL_S if self.over_tcp else None
        inside = os.environ.get("LAB_GPU_UNI_ID") or None
        wish = {"request": self.request, "name": self.name, "priority": self.priority}
        return {**wish, "wait_s": 0, "ttl_s": ttl_s, "inside_uni_id": inside}


_known_leases: set[int] = set()


def lease(wish: LeaseWish) -> Talk[Doc]:
    """Until it is held; a caller who gives up before, for whatever reason, leaves none behind."""
    checked_timeout(wish.timeout_s)
    deadline = Deadline(wish.timeout_s)
    doc = yield from _asked_for_lease(wish)
    try:
        if wish.timeout_s == 0:
            doc = yield from _verdict(doc)
        while doc["state"] == "waiting" and not deadline.over:
            doc = yield from _lease_after(doc["id"], deadline.left_s())
    except GeneratorExit:
        raise
    except BaseException:
        yield from released(doc["id"])
        raise
    if doc["state"] == "held":
        return doc
    yield from released(doc["id"])
    raise _not_granted(doc, wish)


def _asked_for_lease(wish: LeaseWish) -> Talk[Doc]:
    """A question whose answer was lost may have been granted: such a lease of this process is taken over."""
    try:
        doc: Doc = yield Ask("POST", "/api/v1/leases", wish.body())
    except Broken:
        orphan = None if wish.over_tcp else (yield from _orphan())
        if orphan is not None:
            doc = orphan
        else:
            doc = yield Ask("POST", "/api/v1/leases", wish.body())
    _known_leases.add(doc["id"])
    return doc


def _orphan() -> Talk[Doc | None]:
    answer = yield Ask("GET", "/api/v1/leases", patience_s=AWAY_S)
    for doc in answer["leases"]:
        mine = doc["pid"] == os.getpid() and doc["id"] not in _known_leases
        if mine and doc["state"] != "released":
            return dict(doc)
    return None


def _verdict(doc: Doc) -> Talk[Doc]:
    """ "At once" means: as soon as the master has looked, which a reason shows."""
    deadline = Deadline(VERDICT_LIMIT_S)
    while doc["state"] == "waiting" and not doc.get("reason") and not deadline.over:
        doc = yield from _lease_after(doc["id"], 0.1)
    return doc


def _lease_after(lease_id: int, wait_s: float) -> Talk[Doc]:
    answer: Doc = yield _polled("GET", f"/api/v1/leases/{lease_id}", wait_s, query={"wait_s": wait_s})
    return answer


def released(lease_id: int) -> Talk[None]:
    """It counts as released even where the master is gone: it ends with this process at the latest."""
    try:
        yield Ask("DELETE", f"/api/v1/leases/{lease_id}")
    except LabGpuError:
        pass
    _known_leases.discard(lease_id)


def _not_granted(doc: Doc, wish: LeaseWish) -> LabGpuError:
    reason = doc.get("reason")
    if doc["state"] == "waiting":
        why = f": {reason}" if reason else ""
        waited = (
            "no GPU is free for it now"
            if wish.timeout_s == 0
            else f"none was granted within {wish.timeout_s:g} s"
        )
        return LabGpuTimeoutError(f"cannot lease GPUs: {waited}{why}; wait longer or ask for less")
    return Refused(f"cannot lease GPUs: {reason or 'the lease was taken back'}; ask again")

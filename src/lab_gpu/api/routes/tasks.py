"""Tasks: submit, look, change, steer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request

from lab_gpu.api.front import Front, Json, caller_of, front_of
from lab_gpu.api.memory import give_back_soon
from lab_gpu.api.routes.waits import wait_for
from lab_gpu.core.documents import new_task_to_doc
from lab_gpu.core.errors import Refused, TooLate
from lab_gpu.core.model import NewTask, TaskState
from lab_gpu.core.units import parse_ids
from lab_gpu.service.changes import changes_doc
from lab_gpu.service.views import MANY, iso, no_task, queued_brief, state_text, with_iso_moments
from lab_gpu.wire import tasks as wire
from lab_gpu.wire.base import LARGEST_ID

router = APIRouter(prefix="/api/v1/tasks")
TaskPath = Annotated[int, Path(ge=1, le=LARGEST_ID)]
_STATES = [state.value for state in TaskState]
_WAIT_STATES = {"cancel": {"queued", "running"}, "preempt": {"running"}}


@router.post(
    "",
    responses={
        201: {"model": wire.Submitted},
        200: {"model": wire.Previewed, "description": "dry_run: what would happen"},
    },
)
async def submit(
    request: Request,
    body: wire.SubmitBody,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Json:
    """Submit tasks: all of them are accepted and on disk, or none is."""
    front, now = front_of(request), front_of(request).clock()
    checked = await _at_desk(front, front.desk.accept, body, front.policy, now)
    docs = await _at_desk(front, _docs, checked.tasks)
    if body.dry_run:
        answer = await front.loop.ask(caller_of(request), "preview", {"tasks": docs})
        return Json(with_iso_moments(answer))
    args = {"tasks": docs, "environment": checked.environment, "idempotency_key": idempotency_key}
    answer = await front.act(caller_of(request), "add_tasks", args)
    return Json({"tasks": await _submitted(front, answer["ids"], now), "warnings": answer["warnings"]}, 201)


async def _at_desk(front: Front, work: Any, *args: Any) -> Any:
    """Off the event loop: a file system may hang, a shell dawdle, ten thousand tasks take their time."""
    return await asyncio.get_running_loop().run_in_executor(front.workers, work, *args)


def _docs(tasks: list[NewTask]) -> list[dict[str, Any]]:
    return [new_task_to_doc(task) for task in tasks]


async def _submitted(front: Front, ids: list[int], now: float) -> list[dict[str, Any]]:
    if len(ids) > MANY:
        give_back_soon()
        return [queued_brief(each, now) for each in ids]
    return await front.views.by_ids(ids, now)


@router.get("", responses={200: {"model": wire.TaskList}})
async def listing(
    request: Request,
    ids: str | None = None,
    state: str | None = None,
    owner: str | None = None,
    queue: str | None = None,
    batch: Annotated[int | None, Query(ge=0, le=LARGEST_ID)] = None,
    name: str | None = None,
    text: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[int | None, Query(ge=0, le=LARGEST_ID)] = None,
    order: Literal["new", "old"] = "new",
) -> Json:
    """Tasks by id, newest first; `next` is the cursor of the page that follows. Long commands are cut."""
    front = front_of(request)
    rows = await front.rows.read(
        "list",
        ids=parse_ids(ids) if ids else None,
        states=_states(state),
        owner=owner,
        queue=queue,
        batch=batch,
        name=name,
        text=text,
        cursor=cursor,
        newest_first=order == "new",
        limit=limit + 1,
    )
    more = str(rows[limit - 1]["id"]) if len(rows) > limit else None
    return Json({"tasks": await front.views.tasks(rows[:limit], front.clock()), "next": more})


def _states(words: str | None) -> list[str] | None:
    if words is None:
        return None
    found = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    unknown = [word for word in found if word not in _STATES]
    if unknown or not found:
        raise Refused(
            f"cannot list by state '{(unknown or [words])[0]}': there are {', '.join(_STATES)}; use those"
        )
    return found


@router.post("/actions", responses={200: {"model": wire.Acted}})
async def act(request: Request, body: wire.ActionsBody) -> Json:
    """Steer many tasks at once. `wait_s` waits for the effect of a cancel or preempt."""
    front = front_of(request)
    ids = list(dict.fromkeys(body.ids))
    args = body.model_dump(exclude={"wait_s"}, exclude_none=True) | {"ids": ids}
    answer = await front.act(caller_of(request), "act", args)
    waited_for = _WAIT_STATES.get(body.action)
    if waited_for and body.wait_s > 0 and answer["done"]:
        await wait_for(request, answer["done"], "all", body.wait_s, waited_for)
    tasks = await front.views.by_ids(answer["done"], front.clock())
    return Json({"tasks": tasks, "errors": answer["errors"]})


@router.get("/{id}", responses={200: {"model": wire.TaskDetail}})
async def detail(request: Request, id: TaskPath) -> Json:
    """All there is to know of one task."""
    front = front_of(request)
    return Json(await front.views.detail(id, front.clock()))


@router.patch("/{id}", responses={200: {"model": wire.Task}})
async def edit(request: Request, id: TaskPath, body: wire.ChangesBody) -> Json:
    """Change a waiting task."""
    front, now = front_of(request), front_of(request).clock()
    current = await front.views.one(id, now)
    changes = changes_doc(id, body, current["request"], now)
    await front.act(caller_of(request), "edit", {"id": id, "changes": changes})
    return Json(await front.views.one(id, front.clock()))


@router.get("/{id}/why", responses={200: {"model": wire.Why}})
async def why(request: Request, id: TaskPath) -> Json:
    """Why it waits, until when as far as can be foreseen, and what would let it start; else what it does."""
    front = front_of(request)
    rows = await front.rows.read("states", ids=[id])
    if not rows:
        raise no_task([id])
    if rows[0]["state"] == "queued":
        try:
            answer = await front.loop.ask(caller_of(request), "why", {"id": id})
        except TooLate:  # it started just now
            answer = {}
        if answer:
            moments = {"earliest_start": iso(answer["earliest_start"])}
            return Json({"id": id, "state": "queued"} | answer | moments)
    doc = await front.views.one(id, front.clock())
    return Json(_NO_WAIT | {"id": id, "state": doc["state"], "text": _text(doc, front.clock())})


_NO_WAIT: dict[str, Any] = {
    "code": None,
    "gpus": [],
    "earliest_start": None,
    "behind": None,
    "advice": [],
    "position": None,
    "of": None,
}


def _text(doc: dict[str, Any], now: float) -> str:
    return doc["reason"] or "it is about to be planned" if doc["state"] == "queued" else state_text(doc, now)

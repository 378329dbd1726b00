"""What people are shown of tasks: rows of the ledger joined with what the loop knows at this moment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Protocol

from lab_gpu.core.documents import request_from_doc, request_to_full_doc, spec_from_doc
from lab_gpu.core.errors import NotFound
from lab_gpu.core.model import Activation, TaskSpec
from lab_gpu.core.units import format_duration

Doc = dict[str, Any]
Row = Mapping[str, Any]

MANY = 200  # above this, an answer tells of each task only what a waiting program needs
DAY_S = 86400
_HIDDEN = "********"
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE
)
_MOMENTS = frozenset(
    ("started_at", "asked_at", "granted_at", "expires_at", "earliest_start", "estimated_start", "since", "at")
)


class Rows(Protocol):
    """The named questions of store.reader."""

    async def read(self, question: str, /, **args: Any) -> list[Doc]: ...


class Sight(Protocol):
    """What only the loop knows."""

    async def reasons(self, ids: Sequence[int]) -> Mapping[int, Mapping[str, Any]]: ...

    async def gpu_names(self, uuids: Iterable[str]) -> Mapping[str, str]: ...


def iso(at: float | None) -> str | None:
    """ISO 8601 in UTC with milliseconds."""
    if at is None:
        return None
    try:
        moment = datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_iso_moments(doc: Any) -> Any:
    """An answer of the loop as it is told over HTTP: its instants written out."""
    if isinstance(doc, list):
        return [with_iso_moments(each) for each in doc]
    if not isinstance(doc, dict):
        return doc
    return {
        key: iso(value) if key in _MOMENTS and isinstance(value, int | float) else with_iso_moments(value)
        for key, value in doc.items()
    }


def masked(setenv: Mapping[str, str]) -> dict[str, str]:
    return {name: _HIDDEN if _SECRET_NAME.search(name) else value for name, value in setenv.items()}


class Views:
    def __init__(self, rows: Rows, sight: Sight) -> None:
        self._rows = rows
        self._sight = sight

    async def by_ids(self, ids: Sequence[int], now: float) -> list[Doc]:
        """In the order asked; ids nobody has are left out. Many tasks are told of briefly."""
        rows = await self._rows.read("tasks", ids=list(dict.fromkeys(ids)))
        docs = await (self.tasks(rows, now) if len(rows) <= MANY else self._brief(rows))
        by_id = {doc["id"]: doc for doc in docs}
        return [by_id[each] for each in dict.fromkeys(ids) if each in by_id]

    async def one(self, task: int, now: float) -> Doc:
        rows = await self._rows.read("tasks", ids=[task])
        if not rows:
            raise no_task([task])
        return (await self.tasks(rows, now))[0]

    async def tasks(self, rows: Sequence[Row], now: float) -> list[Doc]:
        reasons = await self._sight.reasons([row["id"] for row in rows if row["state"] == "queued"])
        names = await self._names(rows)
        # A task that has just started is no longer told of by a reason that was kept.
        waits = [reasons.get(row["id"]) if row["state"] == "queued" else None for row in rows]
        return [task_doc(row, reason, names, now) for row, reason in zip(rows, waits, strict=True)]

    async def _brief(self, rows: Sequence[Row]) -> list[Doc]:
        names = await self._names(rows)
        return [brief_doc(row, None, names) for row in rows]

    async def _names(self, rows: Sequence[Row]) -> Mapping[str, str]:
        texts = {row["gpus"] for row in rows if row["gpus"] and row["gpus"] != "[]"}
        return await self._sight.gpu_names({gpu["uuid"] for text in texts for gpu in json.loads(text)})

    async def detail(self, task: int, now: float) -> Doc:
        rows = await self._rows.read("tasks", ids=[task])
        if not rows:
            raise no_task([task])
        [doc] = await self.tasks(rows, now)
        [more] = await self._rows.read("detail", task=task)
        after = await self._rows.read("after_of", task=task)
        attempts = await self._rows.read("attempts_of", task=task)
        dependents = await self._rows.read("dependents_of", task=task)
        names = await self._names(attempts)
        return (
            doc
            | _rest_of_detail(rows[0], more)
            | {
                "after": after,
                "attempts": [_attempt_doc(each, names) for each in attempts],
                "dependents": [each["id"] for each in dependents],
            }
        )


def event_docs(events: Iterable[Row]) -> list[Doc]:
    return [{**event, "at": iso(event["at"]), "body": json.loads(event["body"])} for event in events]


def no_task(ids: Sequence[int]) -> NotFound:
    shown = ", ".join(map(str, ids[:10])) + (", …" if len(ids) > 10 else "")
    what = f"task {shown}" if len(ids) == 1 else f"tasks {shown}"
    return NotFound(f"cannot find {what}: no such id here; see `lab-gpu list`")


def queued_brief(task: int, submitted_at: float) -> Doc:
    """A task as it is at the instant of its submit, told without looking it up."""
    return {
        "id": task,
        "state": "queued",
        "reason": None,
        "attempt": 0,
        "exit_code": None,
        "gpus": [],
        "submitted_at": iso(submitted_at),
        "started_at": None,
        "ended_at": None,
    }


def brief_doc(row: Row, reason: Mapping[str, Any] | None, names: Mapping[str, str]) -> Doc:
    queued = row["state"] == "queued"
    return {
        "id": row["id"],
        "state": row["state"],
        "reason": reason["text"] if reason else row["reason"],
        "attempt": row["attempt"] or 0,
        "exit_code": None if row["state"] == "running" else row["exit_code"],
        "gpus": [] if queued else _gpu_docs(row["gpus"], row["node"], names),
        "submitted_at": iso(row["submitted_at"]),
        "started_at": iso(row["started_at"]),
        "ended_at": iso(row["ended_at"]),
    }


def task_doc(row: Row, reason: Mapping[str, Any] | None, names: Mapping[str, str], now: float) -> Doc:
    spec = _spec(row["spec"])
    return brief_doc(row, reason, names) | {
        "name": row["name"],
        "owner": row["owner"],
        "phase": _phase(row, spec, now),
        "reason_code": reason["code"] if reason else row["reason_code"],
        "max_retries": spec.retry.max_retries,
        "node": None if row["state"] == "queued" else row["node"],
        "command": row["command"],
        "priority": row["priority"],
        "queue": row["queue"],
        "batch": row["batch"],
        "array_index": row["array_index"],
        "request": request_doc(row),
        "not_before": iso(row["not_before"]),
        "log_path": row["log_path"],
        "estimated_start": iso(reason.get("earliest_start")) if reason else None,
        "version": row["version"],
    }


# Tasks that wait together were mostly submitted together, and say the same here.
@lru_cache(maxsize=512)
def _spec(text: str) -> TaskSpec:
    return spec_from_doc(json.loads(text))


@lru_cache(maxsize=512)
def _request(text: str) -> Doc:
    return request_to_full_doc(request_from_doc(json.loads(text)))


def request_doc(row: Row) -> Doc:
    full = _request(row["request"])
    return {**full, "gpu_ids": list(full["gpu_ids"])}


def state_text(doc: Doc, now: float) -> str:
    """What a task that does not wait is doing, and since when."""
    state, attempt = doc["state"], doc["attempt"]
    if state == "running":
        where = f" on {doc['node']}" if doc["node"] else ""
        phase = {"starting": "is starting", "stopping": "is being stopped"}.get(doc["phase"] or "", "runs")
        over = ", beyond its time limit" if doc["phase"] == "overdue" else ""
        return f"it {phase}{where} in attempt {attempt}{_since(doc['started_at'], now, ', for ')}{over}"
    code = f" with exit code {doc['exit_code']}" if doc["exit_code"] is not None else ""
    why = f": {doc['reason']}" if doc["reason"] else ""
    return f"it {_ENDED[state]}{code}{_since(doc['ended_at'], now, ' ', ' ago')}{why}"


_ENDED = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}


def _since(moment: str | None, now: float, before: str, behind: str = "") -> str:
    if moment is None:
        return ""
    at = datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
    return f"{before}{format_duration(max(0.0, round(now - at)))}{behind}"


def _phase(row: Row, spec: TaskSpec, now: float) -> str | None:
    if row["state"] != "running":
        return None
    if row["attempt_state"] == "launching":
        return "starting"
    if row["attempt_state"] == "stopping":
        return "stopping"
    began, limit_s = row["attempt_started_at"], row["time_limit_s"]
    late = began is not None and limit_s is not None and now > began + limit_s
    return "overdue" if late and not spec.kill_at_limit else None


def _gpu_docs(text: str | None, node: str | None, names: Mapping[str, str]) -> list[Doc]:
    return [
        {"node": node, "index": gpu.get("index"), "uuid": gpu["uuid"], "name": names.get(gpu["uuid"])}
        for gpu in json.loads(text or "[]")
    ]


def _rest_of_detail(row: Row, more: Row) -> Doc:
    spec = _spec(row["spec"])
    return {
        "command": more["command"],
        "workdir": more["workdir"],
        "env": _env_name(spec.activation),
        "setenv": masked(spec.setenv),
        "submit_dir": spec.submit_dir,
        "time_limit_s": row["time_limit_s"],
        "estimate_s": more["estimate_s"],
        "kill_at_limit": spec.kill_at_limit,
        "never_twice": spec.never_twice,
        "no_output_limit_s": spec.no_output_limit_s,
        "held": bool(more["held"]),
        "retry": {
            "max_retries": spec.retry.max_retries,
            "pause_s": spec.retry.pause_s,
            "before_backoff": spec.retry.before_backoff,
            "backoff_s": spec.retry.backoff_s,
        },
    }


def _env_name(activation: Activation | None) -> str | None:
    return activation.path if activation else None


def _attempt_doc(row: Row, names: Mapping[str, str]) -> Doc:
    moments = {"started_at": iso(row["started_at"]), "ended_at": iso(row["ended_at"])}
    gpus = _gpu_docs(row["gpus"], row["node"], names)
    return {**row, **moments, "gpus": gpus, "outside": bool(row["outside"])}

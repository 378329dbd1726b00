"""What a person wants changed of a waiting task, or holds with a lease, checked before the loop is asked."""

from __future__ import annotations

from typing import Any

from lab_gpu.core.documents import request_to_full_doc
from lab_gpu.core.errors import Refused
from lab_gpu.core.model import PRIORITY_MAX, PRIORITY_MIN, Request
from lab_gpu.core.units import LONGEST_S
from lab_gpu.service.requests import problems as request_problems
from lab_gpu.service.requests import request_of
from lab_gpu.wire.nodes import LeaseBody
from lab_gpu.wire.tasks import ChangesBody

_NEVER_NULL = ("priority", "kill_at_limit", "request")
_WITHOUT = {"gpus": 1, "exclusive": False, "gpu_ids": []}  # what null means where nothing is not an option


def changes_doc(task: int, body: ChangesBody, request: dict[str, Any], now: float) -> dict[str, Any]:
    """`request` is the task's as it stands, whole."""
    changes = body.model_dump(exclude_unset=True)
    found = [f"{name} must not be null" for name in _NEVER_NULL if name in changes and changes[name] is None]
    found += [] if found else _value_problems(body, now)
    if body.request is not None:
        asked = {
            name: _WITHOUT.get(name) if value is None else value for name, value in changes["request"].items()
        }
        changes["request"] = request | asked
        whole = Request(**{**changes["request"], "gpu_ids": tuple(changes["request"]["gpu_ids"])})
        found += request_problems(whole)
    if not changes:
        found.append("nothing is to be changed; name what shall be different")
    if found:
        raise Refused(f"cannot change task {task}: {found[0]}", tuple(found))
    return changes


def _value_problems(body: ChangesBody, now: float) -> list[str]:
    found = []
    if body.priority is not None and not PRIORITY_MIN <= body.priority <= PRIORITY_MAX:
        found.append(_priority_sentence(body.priority))
    for name, seconds in (("time_limit_s", body.time_limit_s), ("estimate_s", body.estimate_s)):
        if seconds is not None and not 0 < seconds <= LONGEST_S:
            found.append(f"{name} must be more than 0 and at most ten years, not {seconds:g}")
    if body.not_before is not None and not 0 <= body.not_before <= now + LONGEST_S:
        found.append("not_before must be seconds since 1970, within the next ten years")
    if body.max_retries is not None and not 0 <= body.max_retries <= 1_000_000:
        found.append("max_retries must be from 0 to 1000000, or null for no limit")
    if body.name is not None and (not body.name.isprintable() or len(body.name) > 200):
        found.append("name must be one line of at most 200 characters")
    return found


def lease_request_doc(body: LeaseBody) -> dict[str, Any]:
    request = request_of(body.request)
    found = request_problems(request)
    if request.gpus == 0:
        found.append("a lease holds at least one GPU; ask for one")
    if not PRIORITY_MIN <= body.priority <= PRIORITY_MAX:
        found.append(_priority_sentence(body.priority))
    if body.ttl_s is not None and not 5 <= body.ttl_s <= 86400:
        found.append("ttl_s must be from 5 to 86400 seconds")
    if found:
        raise Refused(f"cannot lease GPUs: {found[0]}", tuple(found))
    return request_to_full_doc(request)


def _priority_sentence(priority: int) -> str:
    return f"priority must be from {PRIORITY_MIN} to {PRIORITY_MAX}, not {priority}"

"""What the doors really say has exactly the fields that the description of the API promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from lab_gpu.testing.fake_loop import LEASE, Doors, doors, task
from lab_gpu.wire import nodes, server, tasks


@pytest.fixture(scope="module")
def house() -> Iterator[Doors]:
    with doors() as found:
        queued, running, done = found.loop.write(task(), task(), task())
        found.loop.sql("insert into dependency values (?, ?, 'ok')", queued, running)
        found.loop.sql("update task set state = 'running', started_at = 5.0 where id = ?", running)
        found.loop.sql(
            "update task set state = 'failed', ended_at = unixepoch(), exit_code = 1 where id = ?", done
        )
        for one, state, ending in ((running, "running", None), (done, "ended", "error")):
            ended = (ending, 5.0) if ending else (None, None)
            found.loop.sql(ATTEMPT, one, f"u{one}", state, GPUS, *ended)
        found.loop.answers |= ANSWERS | {"add_tasks": found.loop.add_tasks}
        found.loop.push()
        yield found


GPUS = '[{"uuid": "GPU-0", "index": 0}]'
ATTEMPT = """insert into attempt (task_id, number, uni_id, state, node, gpus, directory, log_path, created_at, ending,
  ended_at) values (?, 1, ?, ?, 'n1', ?, '/d', '/l', 1.0, ?, ?)"""
WOULD = {"start": True, "node": "n1", "gpus": LEASE["gpus"], "reason": None, "reason_code": None}
ANSWERS: dict[str, Any] = {
    "preview": {"would": [WOULD | {"earliest_start": None, "advice": []}]},
    "act": {"done": [2], "errors": [{"id": 9, "slug": "not_found", "text": "no"}]},
    "edit": {"id": 1},
    "why": {
        "code": "gpus_busy",
        "text": "busy",
        "gpus": [{"node": "n1", "index": 0, "code": "gpus_busy", "text": "busy"}],
        "earliest_start": 5.0,
        "behind": None,
        "advice": ["ask for less"],
        "position": 1,
        "of": 1,
    },
    "tick": {"started": [], "waiting": [{"id": 1, "code": "gpus_busy", "text": "busy"}]},
    "policy_reload": {"policy": {}, "path": None, "changed": []},
    "add_node": {"name": "v", "created": True, "text": "added"},
    "lease_ask": LEASE,
    "lease": LEASE,
    "lease_release": LEASE,
    "outside_begin": {"attempt_id": 1, "number": 1, "uni_id": "u", "log_name": "1.log", "gpus": []},
}
ONE = {"tasks": [{"command": "true"}], "environment": {}, "workdir": "/"}
MANY = {"tasks": [{"command": "true"}] * 201, "environment": {}, "workdir": "/"}
CALLS: list[tuple[str, str, Any, type[BaseModel]]] = [
    ("GET", "/api/health", None, server.Health),
    ("GET", "/api/v1/server", None, server.Server),
    ("GET", "/api/v1/status", None, server.Status),
    ("GET", "/api/v1/policy", None, server.PolicyDoc),
    ("POST", "/api/v1/policy/reload", {}, server.Reloaded),
    ("POST", "/api/v1/server/tick", None, server.Ticked),
    ("GET", "/api/v1/nope", None, server.Problem),
    ("POST", "/api/v1/tasks", ONE, tasks.Submitted),
    ("POST", "/api/v1/tasks", MANY, tasks.Submitted),
    ("POST", "/api/v1/tasks", ONE | {"dry_run": True}, tasks.Previewed),
    ("GET", "/api/v1/tasks", None, tasks.TaskList),
    ("GET", "/api/v1/tasks/1", None, tasks.TaskDetail),
    ("GET", "/api/v1/tasks/2", None, tasks.TaskDetail),
    ("GET", "/api/v1/tasks/3", None, tasks.TaskDetail),
    ("PATCH", "/api/v1/tasks/1", {"priority": 1}, tasks.Task),
    ("GET", "/api/v1/tasks/1/why", None, tasks.Why),
    ("GET", "/api/v1/tasks/2/why", None, tasks.Why),
    ("GET", "/api/v1/tasks/1/history", None, tasks.History),
    ("GET", "/api/v1/tasks/2/logs", None, tasks.LogPart),
    ("POST", "/api/v1/tasks/actions", {"action": "cancel", "ids": [2, 9]}, tasks.Acted),
    ("POST", "/api/v1/wait", {"ids": [3]}, tasks.Waited),
    ("GET", "/api/v1/events?after=0", None, tasks.Events),
    ("POST", "/api/v1/tasks/1/outside-attempts", {"command": "x"}, tasks.OutsideAttempt),
    ("GET", "/api/v1/gpus", None, nodes.Readings),
    ("POST", "/api/v1/nodes", {"name": "v"}, nodes.AddedNode),
    ("POST", "/api/v1/leases", {"request": {}}, nodes.Lease),
    ("GET", "/api/v1/leases", None, nodes.Leases),
    ("GET", "/api/v1/leases/1", None, nodes.Lease),
    ("DELETE", "/api/v1/leases/1", None, nodes.Lease),
]


@pytest.mark.parametrize(("method", "path", "body", "shape"), CALLS, ids=lambda each: str(each)[:40])
def test_an_answer_is_what_was_promised(
    house: Doors, method: str, path: str, body: Any, shape: type[BaseModel]
) -> None:
    _, answer, _ = house.unix.ask(method, path, body)
    shape.model_validate(answer, strict=True)


def test_every_answer_has_a_shape(house: Doors) -> None:
    described = house.unix.get("/openapi.json")[1]["paths"]
    called = {(method.lower(), path.split("?")[0]) for method, path, *_ in CALLS}
    without = {"stop", "drain", "undrain", "heartbeat", "end", "{name}"}  # no content, or that of a lease
    for path, operations in described.items():
        for method in operations:
            named = any(verb == method and _is(path, called_path) for verb, called_path in called)
            assert named or path.rsplit("/", 1)[1] in without, (method, path)


def _is(template: str, path: str) -> bool:
    pairs = zip(template.split("/"), path.split("/"), strict=False)
    return template.count("/") == path.count("/") and all(a == b or a.startswith("{") for a, b in pairs)

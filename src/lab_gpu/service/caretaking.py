"""What the caretaker asks of the master itself: a pass now, another policy, to stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lab_gpu.core.errors import Refused
from lab_gpu.core.model import TaskState
from lab_gpu.core.policy import Policy, changed, parse_policy, policy_to_doc
from lab_gpu.service.answers import waiting_for
from lab_gpu.service.house import Answer, House
from lab_gpu.service.planning import gpus_doc, run_pass
from lab_gpu.wire.inside import Caller

MOST_LISTED = 1000


def tick(house: House, who: Caller, args: Mapping[str, Any]) -> Callable[[], Answer]:
    """One pass now. What was decided is told after it was written."""
    placed = run_pass(house)

    def told() -> Answer:
        started = [
            {"id": each.id, "node": each.grant.node, "gpus": gpus_doc(house, each.grant)}
            for each in placed
            if each.kind == "task"
        ]
        return {"started": started, "waiting": _waiting(house)}

    return told


def _waiting(house: House) -> list[Answer]:
    found: list[Answer] = []
    for task in house.projection.tasks.values():
        if task.state is TaskState.QUEUED and len(found) < MOST_LISTED:
            refusal = waiting_for(house, task)
            if refusal:
                found.append({"id": task.id, "code": refusal.code.value, "text": refusal.text})
    return found


def policy_reload(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """A policy that does not parse never replaces the one in force."""
    path = args.get("path") or house.standing.policy_path
    if path is None:
        raise Refused(
            "cannot reload the policy: no file is in force; name one: `lab-gpu policy reload policy.yaml`"
        )
    policy = parse_policy(house.read_policy(path), house.knows_zone)
    differences = changed(house.policy, policy)
    house.ledger.put_meta("policy_path", path)
    house.ledger.put_meta("policy", json.dumps(policy_to_doc(policy)))
    house.standing.policy_path = path
    use_policy(house, policy)
    house.after_commit.append(house.tell_doors)
    house.ledger.event(house.now, "policy_reloaded", who=who.user, path=path, changed=differences)
    return {"policy": policy_to_doc(policy), "path": path, "changed": differences}


def use_policy(house: House, policy: Policy) -> None:
    house.policy = policy
    house.book.foreign_memory_mib = house.policy.foreign_memory_mib
    house.changed = True


def stop(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """The master ends; what runs goes on, and is found again by the next one."""
    house.after_commit.append(house.end)
    house.ledger.event(house.now, "master_stopped", who=who.user)
    return {"running": house.projection.running}

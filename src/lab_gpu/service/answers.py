"""What only the loop knows, told to whoever asks: live GPUs, why a task waits, the master itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lab_gpu.core.eligible import eligible
from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import TaskState
from lab_gpu.core.snapshot import GpuFacts, GpuView, NodeView, Refusal
from lab_gpu.service.gpu_book import Holder
from lab_gpu.service.house import Answer, House
from lab_gpu.service.planning import explain_task
from lab_gpu.service.projection import OpenTask


def reasons(house: House, args: Mapping[str, Any]) -> Answer:
    found = {}
    for number in args["ids"]:
        task = house.projection.tasks.get(TaskId(number))
        if task is not None and task.state is TaskState.QUEUED:
            refusal = waiting_for(house, task)
            found[str(number)] = (
                {"code": refusal.code.value, "text": refusal.text} if refusal else _next_pass(house)
            )
    return found


def _next_pass(house: House) -> Answer:
    if house.standing.manual_tick:
        return {"code": "tick", "text": "waiting for `lab-gpu server tick`: this master schedules by hand"}
    return {"code": "gpus_busy", "text": "about to be planned"}


def waiting_for(house: House, task: OpenTask) -> Refusal | None:
    """The short answer: what keeps it out of line, else what the last pass said of its group."""
    return _out_of_line(house, task) or house.refusal_of(task.group)


def _out_of_line(house: House, task: OpenTask) -> Refusal | None:
    head = house.projection.queue_head(task.queue) if task.queue else None
    turn = None
    if task.queue and head is not None and head != task.id:
        turn = (int(head), _doing(house, house.projection.tasks[head]))
    return eligible(
        now=house.now,
        held=task.held,
        held_why=(task.reason[1] or "").removeprefix("held ").removeprefix("held: ") or None,
        waits_on=[(on, kind, _state_of(house, on)) for on, kind in task.waits_on.items()],
        not_before=task.not_before,
        tries_before=task.attempts,
        queue=task.queue[1] if task.queue else None,
        queue_turn=turn,
    )


def _doing(house: House, task: OpenTask) -> str:
    if task.state is TaskState.RUNNING:
        return "running"
    if task.held:
        return "held"
    return "backing off" if task.not_before is not None and task.attempts else "queued"


def _state_of(house: House, task_id: TaskId) -> TaskState:
    task = house.projection.tasks.get(task_id)
    return task.state if task else house.ledger.tasks.state(task_id) or TaskState.FAILED


def why(house: House, args: Mapping[str, Any]) -> Answer:
    """The long answer for a queued task: each GPU's own reason, when it may start, what would let it start now."""
    task = house.projection.tasks.get(TaskId(args["id"]))
    if task is None or task.state is not TaskState.QUEUED:
        return {}
    refusal = _out_of_line(house, task)
    if refusal is None and task.group is not None:
        refusal = explain_task(house, task)
    if refusal is None:
        return _unplanned(house)
    place = house.projection.place_in_line(task)
    return {
        "code": refusal.code.value,
        "text": refusal.text,
        "gpus": [
            {"node": gpu.node, "index": gpu.index, "code": gpu.code.value, "text": gpu.text}
            for gpu in refusal.gpus
        ],
        "earliest_start": refusal.earliest_start,
        "behind": refusal.behind,
        "advice": list(refusal.advice),
        "position": place[0] if place else None,
        "of": place[1] if place else None,
    }


def _unplanned(house: House) -> Answer:
    """Its time has just come; the next pass says more."""
    empty: Answer = {
        "gpus": [],
        "earliest_start": None,
        "behind": None,
        "advice": [],
        "position": None,
        "of": None,
    }
    return _next_pass(house) | empty


def live(house: House) -> Answer:
    nodes = house.book.nodes()
    return {
        "nodes": [_node_doc(house, node) for node in nodes.values()],
        "source": house.book.facts.source,
        "problem": house.book.facts.problem,
    }


def _node_doc(house: House, node: NodeView) -> Answer:
    facts = {gpu.uuid: gpu for gpu in house.book.facts_of(node.name)}
    return {
        "name": node.name,
        "host": house.standing.hostname,
        "virtual": node.virtual,
        "closed": node.closed,
        "gpus": [_gpu_doc(house, node, gpu, facts[gpu.uuid]) for gpu in node.gpus],
    }


def _gpu_doc(house: House, node: NodeView, gpu: GpuView, facts: GpuFacts) -> Answer:
    foreign = house.book.foreign.get(gpu.uuid)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "total_mib": gpu.total_mib,
        "used_mib": gpu.used_mib,
        "free_mib": gpu.free_mib,
        "promised_mib": gpu.promised_mib,
        "foreign_mib": gpu.foreign_mib,
        "utilization": gpu.utilization,
        "temperature_c": facts.temperature_c,
        "power_w": facts.power_w,
        "closed": gpu.closed,
        "holders": [_holder_doc(each, facts) for each in house.book.holders_of_gpu(gpu.uuid)],
        "foreign": [
            {"pid": each.pid, "owner": each.owner, "command": each.command, "mib": each.mib}
            for each in (foreign.processes if foreign else ())
        ],
    }


def _holder_doc(holder: Holder, gpu: GpuFacts) -> Answer:
    return {
        "kind": holder.kind,
        "id": holder.id,
        "owner": holder.owner,
        "name": holder.name,
        "mib": holder.promised_mib(gpu),
        "since": holder.since,
    }


def server(house: House) -> Answer:
    standing = house.standing
    return {
        "pid": standing.pid,
        "version": standing.version,
        "started_at": standing.started_at,
        "home": standing.home,
        "host": standing.hostname,
        "url": standing.url,
        "socket": standing.socket,
        "log": standing.log,
        "policy_path": standing.policy_path,
        "manual_tick": standing.manual_tick,
        "autostarted": standing.autostarted,
        "epoch": standing.epoch,
        "commit": house.ledger.newest_event,
        "passes": house.passes,
        "running": house.projection.running,
        "queued": house.projection.waiting(),
        "leases": len(house.leases),
        "database_bytes": _size(house.ledger.database.path),
        "warnings": warnings(house),
    }


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def warnings(house: House) -> list[str]:
    found = list(house.standing.warnings)
    if not house.book.nodes():
        found.append(
            "no GPU was found and no node is declared: `lab-gpu server add-node --name node-1 --gpus 2 --vram 24"
            ' --gpu-type "RTX 3090"` declares a virtual one'
        )
    stuck_s = house.observer.stuck_s()
    if stuck_s:
        found.append(
            f"a reading of the GPUs has not come back for {stuck_s:.0f} s: nothing starts on them until it does;"
            " look at `nvidia-smi`"
        )
    if house.book.facts.problem:
        found.append(house.book.facts.problem)
    return found

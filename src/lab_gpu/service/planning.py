"""One pass: what is seen goes to the planner, what it proposes is checked against the ledger's truth and written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lab_gpu.core.attempts import LaunchFailed
from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.documents import new_task_from_doc
from lab_gpu.core.errors import Broken, Refused
from lab_gpu.core.explain import explain
from lab_gpu.core.ids import GpuUuid, LeaseId, TaskId
from lab_gpu.core.inventory import impossible
from lab_gpu.core.lifecycle import move_task
from lab_gpu.core.model import AttemptState, Grant, LeaseState, NewTask, TaskState
from lab_gpu.core.snapshot import AskGroup, GroupKey, Placement, Refusal, RefusalCode, Snapshot
from lab_gpu.service.gpu_book import Holder
from lab_gpu.service.house import Answer, House, Live
from lab_gpu.service.launch import Ready
from lab_gpu.service.observe import FRESH_S
from lab_gpu.service.projection import OpenTask
from lab_gpu.service.promises import current_claims
from lab_gpu.service.settle import launch_failed
from lab_gpu.service.stop import begin_stop

ARMED_MOST = 16


def snapshot(house: House) -> Snapshot:
    now = house.now
    return Snapshot(
        now=now,
        nodes=house.book.nodes(),
        groups=[*house.projection.groups(), *_lease_groups(house)],
        running=house.book.running(now),
        rooms=house.projection.rooms(),
    )


def _lease_groups(house: House) -> list[AskGroup]:
    lines: dict[GroupKey, list[tuple[int, int]]] = {}
    for lease in house.leases.values():
        if lease.state is LeaseState.WAITING:
            key = GroupKey("lease", lease.owner, lease.request)
            lines.setdefault(key, []).append((0, lease.id))
    return [AskGroup(key, sorted(line)) for key, line in lines.items()]


def run_pass(house: House) -> list[Placement]:
    """Plans, and writes what still fits into the open transaction. What could not start is planned again."""
    house.changed = False
    house.passes += 1
    house.planned_at = house.now
    plan = house.plan = house.planner.plan(snapshot(house), house.policy, _offset(house))
    placed = [each for each in plan.placements if _stale(house, each) is None]
    if not _claimed(house, placed):
        placed = [each for each in placed if not house.book.is_real(each.grant)]
    if len(placed) < len(plan.placements):
        house.pass_after_reading = True  # a start on a real GPU waits for a reading of now
        house.observer.want()
    for each in placed:
        _place(house, each)
    for eviction in plan.evictions:
        live = house.live.get(eviction.task)
        if live and live.stop_began_at is None:
            begin_stop(house, live, "preempted", f"task {eviction.for_task}")
    return placed


def _offset(house: House) -> float:
    return house.standing.utc_offset_s(house.now)


def _stale(house: House, placement: Placement) -> Placement | None:
    if house.book.is_real(placement.grant) and house.now - house.book.facts.at > FRESH_S:
        return placement
    return None


def _claimed(house: House, placed: Sequence[Placement]) -> bool:
    """Tells the other masters of this host what we are about to take; false where one of them was faster."""
    wanted = [each.grant for each in placed if house.book.is_real(each.grant)]
    if not wanted:
        return True
    mine = [*current_claims(house), *_claims_of(house, wanted)]
    try:
        return house.claims.exchange(mine, lambda others: _still_fits(house, wanted, others))
    except Broken as error:
        house.warn(str(error))
        return False


def _still_fits(house: House, wanted: Sequence[Grant], others: Sequence[OthersClaim]) -> bool:
    """Whether what others hold now leaves the room the plan counted on."""
    known, now = _held_by(house.book.others), _held_by(others)
    for uuid in {uuid for grant in wanted for uuid in grant.gpus}:
        grants = [grant for grant in wanted if uuid in grant.gpus]
        if any(grant.vram_mib is None for grant in grants) and now.get(uuid):
            return False
        more = now.get(uuid, 0) - known.get(uuid, 0)
        asked = sum(grant.vram_mib or 0 for grant in grants)
        if more > 0 and house.book.free_mib(uuid) - asked < more:
            return False
    return True


def _held_by(claims: Iterable[OthersClaim]) -> dict[GpuUuid, int]:
    held: dict[GpuUuid, int] = {}
    for each in claims:
        held[each.claim.gpu] = held.get(each.claim.gpu, 0) + each.claim.mib
    return held


def _claims_of(house: House, grants: Iterable[Grant]) -> list[Claim]:
    totals = {gpu.uuid: gpu.total_mib for gpu in house.book.facts.gpus}
    return [
        Claim(uuid, grant.vram_mib or totals.get(uuid, 0), house.standing.pid, 0)
        for grant in grants
        for uuid in grant.gpus
    ]


# --- what was placed -------------------------------------------------------------------------------


def _place(house: House, placement: Placement) -> None:
    if placement.kind == "lease":
        grant_lease(house, LeaseId(placement.id), placement.grant)
        return
    task = house.projection.tasks.get(TaskId(placement.id))
    if task is None or task.state is not TaskState.QUEUED:
        house.changed = True
        return
    ready = house.launcher.ready.get(task.id)
    try:
        ready = ready or house.launcher.arm(task, house.now)
    except LaunchFailed as failure:
        launch_failed(house, task, str(failure))
        return
    _commit_launch(house, task, house.launcher.take(task.id), placement.grant)


def _commit_launch(house: House, task: OpenTask, ready: Ready, grant: Grant) -> None:
    now = house.now
    order = ready.armed.order
    move_task(task.state, "launch")
    house.ledger.attempts.launch(ready.attempt, grant, order.log_path)
    house.ledger.tasks.launch(task.id, order.number, now)
    gpus = [{"node": grant.node, "index": index} for index in grant.indices]
    house.ledger.event(now, "started", task.id, order.number, gpus=gpus)
    house.projection.started(task, order.number)
    live = Live(
        id=ready.attempt,
        task=task.id,
        number=order.number,
        uni_id=order.uni_id,
        state=AttemptState.LAUNCHING,
        grant=grant,
        directory=order.directory,
        log_path=order.log_path,
        spec=ready.spec,
        runner=ready.armed.process,
        started_at=now,
        limit_at=now + task.time_limit_s if task.time_limit_s else None,
    )
    house.live[task.id] = live
    house.book.hold(holder_of(house, live, task))
    house.to_start.append((live, ready))


def holder_of(house: House, live: Live, task: OpenTask) -> Holder:
    expected = house.projection.expected_s(task)
    since = live.started_at or house.now
    return Holder(
        kind="task",
        id=task.id,
        owner=task.owner,
        name=task.name,
        grant=live.grant,
        since=since,
        uni_id=live.uni_id,
        process=live.runner,
        priority=task.priority,
        ends_at=since + expected if expected else None,
        limit_at=live.limit_at,
    )


def grant_lease(house: House, ident: LeaseId, grant: Grant) -> None:
    lease = house.leases[ident]
    now = house.now
    house.ledger.leases.grant(ident, grant, now)
    house.ledger.event(now, "lease_granted", who=lease.owner, lease=ident)
    house.leases[ident] = replace(lease, state=LeaseState.HELD, grant=grant, granted_at=now)
    house.book.hold(Holder("lease", ident, lease.owner, lease.name, grant, now, process=lease.process))


# --- what is made beforehand -----------------------------------------------------------------------


def arm_next(house: House) -> bool:
    """Makes the attempts that would start next, at most one for each busy GPU. True where something was written."""
    wanted = _next_to_start(house)
    wrote = False
    for task_id in [each for each in house.launcher.ready if each not in wanted]:
        house.launcher.revoke(task_id)
        wrote = True
    for task_id in wanted:
        task = house.projection.tasks.get(task_id)
        if task is None or task.state is not TaskState.QUEUED or task_id in house.launcher.ready:
            continue
        try:
            house.launcher.arm(task, house.now)
            wrote = True
        except LaunchFailed:
            continue  # it is told when its turn comes: the reason may be gone by then
    return wrote


def _next_to_start(house: House) -> list[TaskId]:
    planned = [TaskId(ident) for kind, ident in house.plan.next_in_line if kind == "task"]
    return list(dict.fromkeys([*planned, *house.projection.next_of_queues()]))[:ARMED_MOST]


# --- questions -------------------------------------------------------------------------------------


def explain_task(house: House, task: OpenTask) -> Refusal:
    """The full reason; a task that nothing keeps any more says so."""
    found = explain(snapshot(house), house.policy, _offset(house), "task", task.id)
    return found or Refusal(RefusalCode.BEHIND, "about to start")


def preview(house: House, docs: Sequence[Answer]) -> Answer:
    """Where each task would go now, behind all that wait, without writing anything."""
    would = []
    for doc in docs:
        task = new_task_from_doc(doc)
        verdict = impossible(task.request, house.book.nodes())
        if verdict:
            raise Refused(f"cannot submit: {verdict}")
        would.append(_explain_new(house, task))
    return {"would": would}


def _explain_new(house: House, task: NewTask) -> Answer:
    expected = task.time_limit_s or task.estimate_s
    key = GroupKey("task", task.owner, task.request, task.priority, expected_s=expected)
    seen = snapshot(house)
    newcomer = AskGroup(key, [(house.projection.next_position, 0)])
    others = [each for each in seen.groups if each.key != key]
    same = [each for each in seen.groups if each.key == key]
    if same:
        newcomer = AskGroup(key, [*same[0].asks, *newcomer.asks])
    seen = replace(seen, groups=[*others, newcomer])
    plan = house.planner.plan(seen, house.policy, _offset(house))
    placed = next((each for each in plan.placements if each.kind == "task" and each.id == 0), None)
    if placed:
        return {
            "start": True,
            "node": placed.grant.node,
            "gpus": gpus_doc(house, placed.grant),
        } | _no_reason()
    refusal = explain(seen, house.policy, _offset(house), "task", 0)
    assert refusal is not None
    return {
        "start": False,
        "node": None,
        "gpus": [],
        "reason": refusal.text,
        "reason_code": refusal.code.value,
        "earliest_start": refusal.earliest_start,
        "advice": list(refusal.advice),
    }


def _no_reason() -> Answer:
    return {"reason": None, "reason_code": None, "earliest_start": None, "advice": []}


def gpus_doc(house: House, grant: Grant) -> list[Answer]:
    names = {gpu.uuid: gpu.name for gpu in house.book.facts_of(grant.node)}
    return [
        {"node": grant.node, "index": index, "uuid": uuid, "name": names.get(uuid)}
        for uuid, index in zip(grant.gpus, grant.indices, strict=True)
    ]

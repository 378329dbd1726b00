"""What the planner must never do, tried on random worlds."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lab_gpu.core.capacity import taking
from lab_gpu.core.feasible import barred, is_candidate, terms_of, usable
from lab_gpu.core.ids import NodeName
from lab_gpu.core.order import effective_priority, night_now
from lab_gpu.core.plan import Planner, plan
from lab_gpu.core.policy import Policy
from lab_gpu.core.refusals import Refusals
from lab_gpu.core.snapshot import AskGroup, GroupKey, NodeView, Plan, RefusalCode, Snapshot
from lab_gpu.testing.builders import GIB, NOON, gpu, group, holder, node
from lab_gpu.testing.scenes import Scene

MANY = settings(max_examples=80, deadline=None)
SIZES = (8, 16, 24)
TYPES = ("NVIDIA RTX 4090", "NVIDIA A100-SXM4-80GB")


@st.composite
def nodes(draw: st.DrawFn, plain: bool = False) -> list[NodeView]:
    """Up to six nodes; a `plain` one has no readings or closures that time would have to change."""
    made = []
    for number in range(draw(st.integers(1, 6))):
        name = f"n{number}"
        gpus = []
        for index in range(draw(st.integers(1, 4))):
            gib = draw(st.sampled_from(SIZES))
            fields: dict[str, Any] = {} if plain else draw(readings(gib))
            gpus.append(gpu(index, gib, node=name, name=draw(st.sampled_from(TYPES)), **fields))
        closed = None if plain else draw(st.sampled_from([None] * 6 + ["drained"]))
        made.append(node(name, gpus, virtual=draw(st.booleans()), closed=closed))
    return made


@st.composite
def readings(draw: st.DrawFn, gib: int) -> dict[str, Any]:
    foreign = draw(st.sampled_from([0] * 5 + [512, 4 * GIB, gib * GIB]))
    return {
        "foreign_mib": foreign,
        "foreign_busy_mib": draw(st.sampled_from([0, foreign])),
        "used_mib": foreign,
        "utilization": draw(st.sampled_from([None, 0, 0, 0, 3, 15, 90])),
        "shareable": draw(st.sampled_from([True] * 5 + [False])),
        "closed": draw(st.sampled_from([None] * 8 + ["sick"])),
    }


@st.composite
def asks(draw: st.DrawFn, first_id: int = 1, most: int = 12) -> list[AskGroup]:
    """Groups of one to four asks, up to 30 in all."""
    made, ident = [], first_id
    for _ in range(draw(st.integers(1, most))):
        count = draw(st.integers(1, 4))
        ids = list(range(ident, min(ident + count, first_id + 30)))
        ident += count
        if ids:
            made.append(draw(one_group(ids)))
    return made


@st.composite
def one_group(draw: st.DrawFn, ids: Sequence[int]) -> AskGroup:
    gib = draw(st.sampled_from([None, None, 2, 5, 8, 12, 20]))
    return group(
        ids,
        gib,
        draw(st.sampled_from([0, 1, 1, 1, 2, 4])),
        kind=draw(st.sampled_from(["task", "task", "task", "lease"])),
        priority=draw(st.sampled_from([-100, 0, 0, 100])),
        front=draw(st.sampled_from([0, 0, 0, 1, -1])),
        expected_s=draw(st.sampled_from([None, 50.0, 300.0, 2000.0, 9000.0])),
        room_key=draw(st.sampled_from([None, None, 1, 2])),
        exclusive=draw(st.sampled_from([False, False, True])),
        gpu_type=draw(st.sampled_from([None, None, None, "A100", "RTX 4090", "H100"])),
        gpu_ids=draw(st.sampled_from([(), (), (), (0, 1)])),
        node=draw(st.sampled_from([None, None, None, "n0", "n9"])),
        min_free_mib=draw(st.sampled_from([None, None, None, 6 * GIB])),
        max_util=draw(st.sampled_from([None, None, None, 0, 50])),
    )


@st.composite
def plain_groups(draw: st.DrawFn, first_id: int, most: int) -> list[AskGroup]:
    """Asks without conditions on readings."""
    return [
        group(
            number,
            draw(st.sampled_from([None, 2, 5, 8, 12])),
            draw(st.sampled_from([1, 1, 2, 3])),
            expected_s=draw(st.sampled_from([None, 50.0, 300.0, 2000.0])),
        )
        for number in range(first_id, first_id + draw(st.integers(1, most)))
    ]


@st.composite
def scenes(draw: st.DrawFn, plain: bool = False) -> Scene:
    """Nodes with holders on them that fit."""
    scene = Scene(*draw(nodes(plain)), policy=draw(policies()))
    scene.rooms = {1: draw(st.integers(0, 3))}
    for number in range(draw(st.integers(0, 8))):
        name = NodeName(f"n{draw(st.integers(0, len(scene.nodes) - 1))}")
        where = scene.nodes[name]
        index = draw(st.integers(0, len(where.gpus) - 1))
        gib = draw(st.sampled_from([None, 3, 6]))
        spot = where.gpus[index]
        fits = spot.holders == 0 if gib is None else not spot.taken_whole and spot.free_mib >= gib * GIB
        if fits and (spot.shareable or not spot.holders):
            ends_at = draw(st.sampled_from([None, NOON + 40, NOON + 400, NOON + 5000]))
            priority = draw(st.sampled_from([-100, 0, 100]))
            scene.hold(holder(1000 + number, where, [index], gib, ends_at=ends_at, priority=priority))
    return scene


def policies() -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        preemption=st.booleans(),
        backfill_time_limit_s=st.sampled_from([0.0, 100.0, 3600.0]),
        night_start=st.sampled_from(["00:00", "11:00"]),
        night_end=st.sampled_from(["08:00", "13:00"]),
    )


# --- one pass ----------------------------------------------------------------------------------


@MANY
@given(scenes(), asks())
def test_a_pass_is_legal_and_complete(scene: Scene, waiting: list[AskGroup]) -> None:
    scene.ask(*waiting)
    snapshot = scene.snapshot()
    planned = scene.plan()
    for_each_placement_check_its_gpus(snapshot, scene.policy, planned)
    everybody_is_answered(snapshot, planned)
    nobody_is_passed_by_his_like(snapshot, scene.policy, planned)
    nothing_that_fits_is_left(planned)
    rooms_hold(snapshot, planned)


def keys_by_id(snapshot: Snapshot) -> dict[tuple[str, int], GroupKey]:
    return {(each.key.kind, ident): each.key for each in snapshot.groups for _, ident in each.asks}


def for_each_placement_check_its_gpus(snapshot: Snapshot, policy: Policy, planned: Plan) -> None:
    """By replaying the plan on the views it was made from."""
    views, keys = dict(snapshot.nodes), keys_by_id(snapshot)
    night = night_now(snapshot.now, policy, 0)
    for placed in planned.placements:
        key = keys[placed.kind, placed.id]
        request, grant = key.request, placed.grant
        assert len(grant.gpus) == len(set(grant.gpus)) == request.gpus
        if not request.gpus:
            continue
        where = views[grant.node]
        terms = terms_of(request, key.kind, policy, night)
        assert where.closed is None
        chosen = [each for each in where.gpus if each.uuid in grant.gpus]
        assert tuple(each.index for each in chosen) == grant.indices
        for each in chosen:
            assert is_candidate(each, terms) and barred(each, terms) is None
            assert each.foreign_mib + each.promised_mib + (request.vram_mib or 0) <= each.total_mib or (
                request.vram_mib is None and each.holders == 0
            )
            assert not (request.whole and each.holders), "a whole GPU is never shared"
            assert not each.taken_whole
        views[grant.node] = taking(where, grant.gpus, grant.vram_mib)


def everybody_is_answered(snapshot: Snapshot, planned: Plan) -> None:
    placed = {(each.kind, each.id) for each in planned.placements}
    assert len(placed) == len(planned.placements), "nothing is started twice"
    for ask, key in keys_by_id(snapshot).items():
        if ask not in placed:
            assert planned.refusals[key].text
            assert "None" not in planned.refusals[key].text


def nobody_is_passed_by_his_like(snapshot: Snapshot, policy: Policy, planned: Plan) -> None:
    """Of two asks of one need, the later is not placed before the earlier unless it goes ahead as backfill."""
    night = night_now(snapshot.now, policy, 0)
    placed = {(each.kind, each.id): each for each in planned.placements}
    asked = [(key, place, ident) for key, asks in _lines(snapshot) for place, ident in asks]

    def turn(entry: tuple[GroupKey, int, int]) -> tuple[float, ...]:
        key, place, ident = entry
        return (-key.front, -effective_priority(key.priority, policy, night), place, ident)

    refused_needs: set[tuple[str, Any]] = set()
    for key, _, ident in sorted(asked, key=turn):
        need = (key.kind, key.request)
        found = placed.get((key.kind, ident))
        if found is None:
            if planned.refusals[key].code is not RefusalCode.ROOM:
                refused_needs.add(need)
        elif need in refused_needs:
            assert found.backfilled and key.expected_s is not None
            assert key.expected_s <= policy.backfill_time_limit_s


def _lines(snapshot: Snapshot) -> list[tuple[GroupKey, list[tuple[int, int]]]]:
    return [(each.key, list(each.asks)) for each in snapshot.groups]


def nothing_that_fits_is_left(planned: Plan) -> None:
    refusals = planned.refusals
    assert isinstance(refusals, Refusals)
    scene = refusals.scene
    for key, refusal in refusals.items():
        if key.request.gpus and refusal.code is not RefusalCode.ROOM:
            terms = terms_of(key.request, key.kind, scene.policy, scene.night)
            for where in scene.kept.values():
                assert len(usable(where, terms, key.request.vram_mib or 0)) < key.request.gpus


def rooms_hold(snapshot: Snapshot, planned: Plan) -> None:
    keys = keys_by_id(snapshot)
    for room, left in snapshot.rooms.items():
        assert sum(keys[each.kind, each.id].room_key == room for each in planned.placements) <= left


@MANY
@given(scenes(), asks())
def test_the_same_world_gives_the_same_plan_and_is_left_as_it_was(
    scene: Scene, waiting: list[AskGroup]
) -> None:
    scene.ask(*waiting)
    snapshot = scene.snapshot()
    before = deepcopy(snapshot)
    first, second = (plan(snapshot, scene.policy, 0) for _ in range(2))
    assert first == second
    assert snapshot == before


@MANY
@given(scenes(), asks())
def test_preemption_hits_lower_classes_only_and_makes_room(scene: Scene, waiting: list[AskGroup]) -> None:
    scene.policy = replace(scene.policy, preemption=True)
    scene.ask(*waiting)
    planned = scene.plan()
    keys = keys_by_id(scene.snapshot())
    scene.start(planned)
    for eviction in planned.evictions:
        gone = scene.running["task", eviction.task]
        assert gone.priority < keys["task", eviction.for_task].priority
        assert not gone.stopping
    if planned.evictions:
        scene.end(*(eviction.task for eviction in planned.evictions))
        started = {(each.kind, each.id) for each in scene.plan().placements}
        assert ("task", planned.evictions[0].for_task) in started


# --- many passes -------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(scenes(), asks(), st.lists(asks(first_id=100, most=2), max_size=3), st.data())
def test_a_planner_with_a_memory_answers_like_one_without(
    scene: Scene, waiting: list[AskGroup], later: list[list[AskGroup]], data: st.DataObject
) -> None:
    scene.ask(*waiting)
    for number, more in enumerate([[], *later]):
        scene.ask(
            *(AskGroup(each.key, [(p + number * 50, i + number * 50) for p, i in each.asks]) for each in more)
        )
        snapshot = scene.snapshot()
        planned = scene.plan()
        assert planned == plan(snapshot, scene.policy, 0)
        scene.start(planned)
        for kind, ident in sorted(scene.running)[:: data.draw(st.integers(2, 5))]:
            scene.end(ident, kind=kind)
        _change_something(scene, data)
        scene.now += data.draw(st.sampled_from([1.0, 100.0, 3600.0]))


def _change_something(scene: Scene, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(scene.nodes)))
    where = scene.nodes[name]
    match data.draw(st.sampled_from(["leave", "reading", "close", "nothing"])):
        case "leave" if not any(each.grant.node == name for each in scene.running.values()):
            del scene.nodes[name]
            if not scene.nodes:
                scene.nodes[name] = where
        case "reading":
            gpus = tuple(replace(each, utilization=data.draw(st.integers(0, 100))) for each in where.gpus)
            scene.nodes[name] = replace(where, gpus=gpus)
        case "close":
            scene.nodes[name] = replace(where, closed=None if where.closed else "drained")


@MANY
@given(scenes(plain=True), plain_groups(1, 10))
def test_the_first_blocked_is_not_delayed_by_those_that_go_ahead(
    scene: Scene, waiting: list[AskGroup]
) -> None:
    """Everybody ends when they said, or never: then what is reserved begins by the time it was reserved for."""
    scene.policy = Policy(night_start="00:00", night_end="00:00", backfill_time_limit_s=3600)
    scene.ask(*waiting)
    planned = scene.plan()
    first = planned.reservation
    if first is None or first.at is None:
        return
    scene.start(planned)
    while scene.now < first.at:
        ends = [each.ends_at for each in scene.running.values() if each.ends_at is not None]
        scene.now = min(each for each in ends if each > scene.now)
        for (kind, ident), each in list(scene.running.items()):
            if each.ends_at is not None and each.ends_at <= scene.now:
                scene.end(ident, kind=kind)
        if first.id in scene.start():
            return
    raise AssertionError(f"task {first.id} was to begin at {first.at - NOON}")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_a_large_task_is_not_starved_by_small_ones_without_end(seed: int, in_any_order: bool) -> None:
    """Small tasks of unknown length keep coming. Those it has to wait for only become fewer, until it begins."""
    dice = Random(seed)
    sizes = [[dice.choice(SIZES) for _ in range(dice.randint(1, 4))] for _ in range(dice.randint(1, 6))]
    scene = Scene(
        *(
            node(f"n{number}", [gpu(index, gib, node=f"n{number}") for index, gib in enumerate(gibs)])
            for number, gibs in enumerate(sizes)
        )
    )
    scene.ask(*(group(10_000 + number, dice.choice([2, 3, 6])) for number in range(60)))
    scene.start()
    for ident in scene.waiting():
        scene.withdraw(ident)
    large = group(1, None, dice.randint(1, max(len(gibs) for gibs in sizes)))
    scene.ask(large)
    before = 1000
    for step in range(150):
        scene.ask(*(group(20_000 + step * 4 + each, dice.choice([2, 3])) for each in range(4)))
        planned = scene.plan()
        if 1 in scene.start(planned):
            return
        assert planned.reservation is not None and planned.reservation.id == 1
        kept = set(planned.reservation.grant.gpus)
        in_the_way = sum(1 for each in scene.running.values() if kept & set(each.grant.gpus))
        assert in_the_way <= before
        before = in_the_way
        held = sorted(scene.running)
        scene.end(dice.choice(held)[1] if in_any_order else held[0][1])
    assert in_any_order, "every holder of the beginning has ended and it did not start"


@settings(max_examples=40, deadline=None)
@given(scenes(), asks())
def test_a_memory_that_was_trimmed_still_answers_alike(scene: Scene, waiting: list[AskGroup]) -> None:
    """Groups come and go until the planner forgets those that are gone."""
    scene.ask(*waiting)
    planner = Planner()
    for number in range(4):
        crowd = [group(1000 + number * 100 + each, 1 + each / 10) for each in range(60)]
        snapshot = scene.snapshot()
        crowded = replace(snapshot, groups=[*snapshot.groups, *crowd])
        planner.plan(crowded, scene.policy, 0)
        assert planner.plan(snapshot, scene.policy, 0) == plan(snapshot, scene.policy, 0)

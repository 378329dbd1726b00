"""The planner in small scenes: who goes first, onto which GPUs, and why the others wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab_gpu.core.plan import plan
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import Plan, RefusalCode
from lab_gpu.testing.builders import GIB, NOON, gpu, group, holder, node, snapshot
from lab_gpu.testing.scenes import Scene

MIDNIGHT = NOON - 12 * 3600 + 1


def where(planned: Plan) -> dict[int, tuple[str, tuple[int, ...]]]:
    return {each.id: (each.grant.node, each.grant.indices) for each in planned.placements}


def ids(planned: Plan) -> list[int]:
    return [each.id for each in planned.placements]


# --- order -------------------------------------------------------------------------------------


def test_first_come_first_served() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group(2), group(1))
    assert scene.start() == [1]
    scene.end(1)
    assert scene.start() == [2]


def test_priority_goes_before_place_and_the_front_before_priority() -> None:
    scene = Scene(node(gpus=3))
    scene.ask(group(1), group(2, priority=100), group(3, priority=-100, front=1), group(4, front=-1))
    assert ids(scene.plan()) == [3, 2, 1]


def test_groups_are_merged_by_place_in_line() -> None:
    scene = Scene(node(gpus=8))
    scene.ask(group([1, 4, 5], owner="ann"), group([2, 3, 6], owner="bob"))
    assert ids(scene.plan()) == [1, 2, 3, 4, 5, 6]


def test_the_night_lifts_low_tasks_but_not_past_normal_ones() -> None:
    policy = Policy()
    groups = [group(1, priority=-100), group(2, priority=-60), group(3, priority=0)]
    by_day = plan(snapshot([node(gpus=3)], groups), policy, 0)
    assert ids(by_day) == [3, 2, 1]
    by_night = plan(snapshot([node(gpus=3)], groups, now=MIDNIGHT), replace(policy, night_low_bonus=1.0), 0)
    assert ids(by_night) == [1, 2, 3]


def test_no_end_to_the_line_is_read_before_its_turn() -> None:
    scene = Scene(node(gpus=2))
    scene.ask(group(range(1, 10_001)))
    assert ids(scene.plan()) == [1, 2]


# --- sharing and whole GPUs --------------------------------------------------------------------


def test_tasks_share_a_gpu_as_long_as_they_fit() -> None:
    scene = Scene(node(gpus=1, gib=24))
    scene.ask(group([1, 2, 3], 10))
    assert scene.start() == [1, 2]
    assert scene.nodes[scene.snapshot().nodes["n1"].name].gpus[0].free_mib == 4 * GIB


def test_what_others_hold_is_not_free() -> None:
    planned = plan(
        snapshot([node(gpus=[gpu(foreign_mib=20 * GIB)])], [group(1, 5), group(2, 4)]), Policy(), 0
    )
    assert ids(planned) == [2]


def test_sharing_fills_the_fullest_gpu_that_fits_and_keeps_whole_ones_free() -> None:
    scene = Scene(node(gpus=3, gib=24))
    first = scene.nodes["n1"]
    scene.hold(holder(90, first, [1], 4))
    scene.hold(holder(91, first, [2], 12))
    scene.ask(group(1, 10), group(2, 10), group(3))
    assert where(scene.plan()) == {1: ("n1", (2,)), 2: ("n1", (1,)), 3: ("n1", (0,))}


def test_a_fresh_gpu_is_opened_where_it_is_smallest() -> None:
    planned = plan(snapshot([node("big", 1, 80), node("small", 1, 24)], [group(1, 10)]), Policy(), 0)
    assert where(planned) == {1: ("small", (0,))}


def test_whole_gpus_are_taken_where_the_fewest_are_left() -> None:
    nodes = [node("n1", 8), node("n2", 2), node("n3", 4)]
    planned = plan(snapshot(nodes, [group(1), group(2, gpus=2), group(3, gpus=8)]), Policy(), 0)
    assert where(planned) == {1: ("n2", (0,)), 2: ("n3", (0, 1)), 3: ("n1", tuple(range(8)))}


def test_a_whole_gpu_is_never_shared_either_way() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group(1), group(2, 1), group(3, 1, exclusive=True))
    assert scene.start() == [1]
    scene.end(1)
    assert scene.start() == [2]
    scene.end(2)
    assert scene.start() == [3]
    assert scene.running["task", 3].grant.vram_mib is None


def test_exclusive_with_memory_wants_that_much_on_a_gpu_of_its_own() -> None:
    planned = plan(
        snapshot([node("n1", 1, 24), node("n2", 1, 80)], [group(1, 40, exclusive=True)]), Policy(), 0
    )
    assert where(planned) == {1: ("n2", (0,))}


def test_exclusive_compute_mode_takes_one_at_a_time() -> None:
    scene = Scene(node(gpus=[gpu(shareable=False)]))
    scene.ask(group([1, 2], 4))
    assert scene.start() == [1]
    others = node(gpus=[gpu(shareable=False, foreign_mib=300, foreign_busy_mib=300)])
    assert ids(plan(snapshot([others], [group(1, 4)]), Policy(), 0)) == []


def test_many_gpus_come_from_one_node() -> None:
    scene = Scene(node("n1", 2), node("n2", 2))
    scene.ask(group(1, gpus=3), group(2, gpus=2))
    planned = scene.plan()
    assert where(planned) == {2: ("n1", (0, 1))}
    assert "at most 2 on one node" in planned.refusals[group(1, gpus=3).key].text


def test_real_nodes_go_before_virtual_ones() -> None:
    planned = plan(
        snapshot([node("a", 1, virtual=True), node("b", 1)], [group(1, 4), group([2, 3])]), Policy(), 0
    )
    assert where(planned) == {1: ("b", (0,)), 2: ("a", (0,))}


# --- what a request may name -------------------------------------------------------------------


def test_type_node_and_indices() -> None:
    nodes = [
        node("n1", [gpu(i, 24, node="n1") for i in range(4)]),
        node("n2", [gpu(i, 80, node="n2", name="NVIDIA A100-SXM4-80GB") for i in range(4)]),
    ]
    groups = [
        group(1, gpu_type="a100"),
        group(2, gpu_ids=(2, 3), node="n1"),
        group(3, gpus=2, gpu_ids=(0, 1, 3), node="n2"),
        group(4, gpu_type="A10"),
    ]
    planned = plan(snapshot(nodes, groups), Policy(), 0)
    assert where(planned) == {1: ("n2", (0,)), 2: ("n1", (2,)), 3: ("n2", (1, 3))}
    assert planned.refusals[groups[3].key].code is RefusalCode.IMPOSSIBLE


def test_leases_are_for_this_host() -> None:
    nodes = [node("far", 1, local=False), node("here", 1)]
    planned = plan(snapshot(nodes, [group([1, 2], kind="lease"), group(3)]), Policy(), 0)
    assert where(planned) == {1: ("here", (0,)), 3: ("far", (0,))}


def test_closed_nodes_and_gpus_are_left_alone() -> None:
    nodes = [node("n1", 2, closed="drained by ann"), node("n2", [gpu(0, node="n2", closed="it is sick")])]
    planned = plan(snapshot(nodes, [group(1, 4)]), Policy(), 0)
    (refusal,) = planned.refusals.values()
    assert refusal.code is RefusalCode.CLOSED
    assert "n1 GPU 0 is set aside (drained by ann)" in refusal.text
    assert "n2 GPU 0 is set aside (it is sick)" in refusal.text
    assert planned.reservation is None


def test_no_gpu_is_needed_for_none() -> None:
    asked = group(1, gpus=0)
    assert where(plan(snapshot([], [asked]), Policy(), 0)) == {1: ("local", ())}
    nodes = [node("b", 1), node("a", 1, virtual=True)]
    assert where(plan(snapshot(nodes, [asked, group(2, gpus=0, node="a")]), Policy(), 0)) == {
        1: ("b", ()),
        2: ("a", ()),
    }


def test_without_a_gpu_a_drained_host_still_counts() -> None:
    planned = plan(snapshot([node("b", 1, closed="drained")], [group(1, gpus=0)]), Policy(), 0)
    (refusal,) = planned.refusals.values()
    assert (refusal.code, refusal.text) == (
        RefusalCode.CLOSED,
        "waiting for a node: b is set aside (drained)",
    )


# --- live readings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "starts"),
    [
        ({"utilization": 5}, True),
        ({"utilization": 6}, False),
        ({"utilization": None}, True),
        ({"foreign_mib": 1024, "foreign_busy_mib": 1024}, True),
        ({"foreign_mib": 1025, "foreign_busy_mib": 1025}, False),
        ({"foreign_mib": 3000, "foreign_busy_mib": 0}, True),
    ],
)
def test_whole_gpus_are_idle_ones(reading: dict[str, int], starts: bool) -> None:
    assert ids(plan(snapshot([node(gpus=[gpu(**reading)])], [group(1)]), Policy(), 0)) == [1] * starts


def test_the_night_takes_busier_ones_as_idle() -> None:
    world = [node(gpus=[gpu(utilization=15)])]
    by_day = plan(snapshot(world, [group(1)]), Policy(), 0)
    (refusal,) = by_day.refusals.values()
    assert refusal.code is RefusalCode.NOT_IDLE
    assert refusal.text == "waiting for a whole GPU: n1 GPU 0 is 15 % busy (at most 5 %)"
    assert ids(plan(snapshot(world, [group(1)], now=MIDNIGHT), Policy(), 0)) == [1]
    assert by_day.due_at == NOON + 12 * 3600


def test_a_limit_of_ones_own_replaces_the_idle_threshold() -> None:
    world = [node(gpus=[gpu(utilization=50)])]
    assert ids(plan(snapshot(world, [group(1, max_util=50)]), Policy(), 0)) == [1]
    refused = plan(snapshot(world, [group(1, max_util=49)]), Policy(), 0)
    assert [each.code for each in refused.refusals.values()] == [RefusalCode.CONDITION]
    assert ids(plan(snapshot([node()], [group(1, max_util=0)]), Policy(), 0)) == [1]


def test_shared_ones_do_not_ask_for_an_idle_gpu_but_keep_their_own_limit() -> None:
    world = [node(gpus=[gpu(utilization=90)])]
    assert ids(plan(snapshot(world, [group(1, 4)]), Policy(), 0)) == [1]
    assert ids(plan(snapshot(world, [group(1, 4, max_util=80)]), Policy(), 0)) == []


def test_really_free_memory_is_a_condition_on_the_reading() -> None:
    asked = group(1, 2, min_free_mib=10 * GIB)
    assert ids(plan(snapshot([node(gpus=[gpu(used_mib=14 * GIB)])], [asked]), Policy(), 0)) == [1]
    planned = plan(snapshot([node(gpus=[gpu(used_mib=15 * GIB)])], [asked]), Policy(), 0)
    assert "has 9 GiB really free (at least 10 GiB)" in planned.refusals[asked.key].text


def test_time_changes_nothing_where_no_answer_depends_on_the_night() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group([1, 2], 20))
    assert scene.plan().due_at is None
    scene.ask(group(3, 20, priority=-100))
    assert scene.plan().due_at == NOON + 12 * 3600


# --- arrays, what is next ----------------------------------------------------------------------


def test_an_array_starts_as_many_as_it_has_room_for() -> None:
    scene = Scene(node(gpus=8))
    scene.rooms = {7: 2}
    small, large = group([1, 2, 3], 4, room_key=7), group(4, 8, room_key=7)
    scene.ask(small, large, group(5, 4))
    planned = scene.plan()
    assert ids(planned) == [1, 2, 5]
    assert planned.refusals[small.key].code is planned.refusals[large.key].code is RefusalCode.ROOM
    assert planned.reservation is None
    assert planned.next_in_line == (("task", 3),)


def test_next_in_line_are_those_that_ours_keep_waiting_one_for_each_busy_gpu() -> None:
    scene = Scene(node(gpus=2))
    scene.ask(group([1, 2, 3, 4, 6]), group(5, priority=100, gpu_type="H100"), group(7, kind="lease"))
    planned = scene.plan()
    assert ids(planned) == [1, 2]
    assert planned.next_in_line == (("task", 3), ("task", 4))


def test_nobody_is_next_where_nothing_is_busy() -> None:
    planned = plan(snapshot([node(gpus=[gpu(foreign_mib=24 * GIB)])], [group(1, 4)]), Policy(), 0)
    assert planned.next_in_line == ()


# --- why ---------------------------------------------------------------------------------------


def refusal_text(scene: Scene, asked: int) -> tuple[RefusalCode, str]:
    planned = scene.plan()
    for each in scene.snapshot().groups:
        if any(ident == asked for _, ident in each.asks):
            return planned.refusals[each.key].code, planned.refusals[each.key].text
    raise AssertionError(f"{asked} does not wait")


def test_before_any_node_is_known() -> None:
    scene = Scene()
    scene.ask(group(1, 4))
    assert refusal_text(scene, 1) == (RefusalCode.NO_NODE, "no node is known yet that could run it")


def test_too_much_is_told_with_what_there_is() -> None:
    scene = Scene(node("n1", 2, 24), node("n2", 4, 80))
    scene.ask(group(1, 100), group(2, 30, gpus=4, node="n1"), group(3, 4, node="n3"))
    assert refusal_text(scene, 1) == (
        RefusalCode.IMPOSSIBLE,
        "no known node has a GPU with 100 GiB free; there are 4 x NVIDIA RTX 4090 with 80 GiB (at most 4 on one node),"
        " 2 x NVIDIA RTX 4090 with 24 GiB (at most 2 on one node)",
    )
    assert refusal_text(scene, 2)[1].startswith("node n1 lacks 4 GPUs with 30 GiB free on n1; there are")
    assert refusal_text(scene, 3) == (RefusalCode.IMPOSSIBLE, "there is no node n3; known are n1, n2")


def test_the_most_free_is_named_with_who_holds_the_rest() -> None:
    scene = Scene(node(gpus=[gpu(foreign_mib=GIB, foreign_note="bob's python")]))
    scene.hold(holder(7, scene.nodes["n1"], [0], 17))
    scene.ask(group(1, 10))
    assert refusal_text(scene, 1) == (
        RefusalCode.GPUS_BUSY,
        "waiting for a GPU with 10 GiB free: the most free is 6 GiB on n1 GPU 0"
        " (task 7 holds 17 GiB, others use 1 GiB (bob's python))",
    )


def test_who_runs_where_a_whole_gpu_is_wanted() -> None:
    scene = Scene(node(gpus=2))
    scene.hold(holder(7, scene.nodes["n1"], [0], 4))
    scene.hold(holder(8, scene.nodes["n1"], [0], 4))
    scene.hold(holder(2, scene.nodes["n1"], [1], kind="lease"))
    scene.ask(group(1), group(3, gpus=2))
    assert refusal_text(scene, 1)[1] == (
        "waiting for a whole GPU: task 7 and task 8 run on n1 GPU 0, lease 2 runs on n1 GPU 1"
    )
    assert refusal_text(scene, 3)[1] == "waiting for 2 whole GPUs on one node: no node has any"


def test_others_are_named_where_only_they_are_in_the_way() -> None:
    scene = Scene(
        node(gpus=[gpu(foreign_mib=20 * GIB, foreign_busy_mib=20 * GIB, foreign_note="bob's python")])
    )
    scene.ask(group(1), group(2, 10))
    why = "others use 20 GiB (bob's python) on n1 GPU 0"
    assert refusal_text(scene, 1) == (RefusalCode.FOREIGN, f"waiting for a whole GPU: {why}")
    assert refusal_text(scene, 2) == (RefusalCode.FOREIGN, f"waiting for a GPU with 10 GiB free: {why}")
    assert scene.plan().reservation is None


def test_refusals_are_a_mapping_by_equal_keys() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group([1, 2]), group(3, 30))
    planned = scene.plan()
    assert len(planned.refusals) == 2
    assert set(planned.refusals) == {group(2).key, group(3, 30).key}
    assert planned.refusals[group(2).key] is planned.refusals[group(2).key]
    assert group(1, 1).key not in planned.refusals
    assert "impossible" in repr(planned.refusals)


def test_a_read_plan_does_not_change_with_later_passes() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group([1, 2]))
    planned = scene.plan()
    scene.start(planned)
    scene.end(1)
    scene.start()
    assert planned.refusals[group(2).key].text == "waiting for a whole GPU: task 1 runs on n1 GPU 0"

"""The first blocked ask gets a reservation; who may go ahead of it, beside it or behind it."""

from __future__ import annotations

from dataclasses import replace

from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import RefusalCode
from lab_gpu.testing.builders import GIB, NOON, gpu, group, holder, node
from lab_gpu.testing.scenes import Scene


def half_taken(ends_at: float | None = NOON + 3000) -> Scene:
    """Two GPUs, one of them held; a task that wants both is the first in line."""
    scene = Scene(node(gpus=2))
    scene.hold(holder(90, scene.nodes["n1"], [0], ends_at=ends_at))
    scene.ask(group(1, gpus=2))
    return scene


def test_the_first_blocked_reserves_what_it_can_have_soonest() -> None:
    scene = Scene(node("n1", 2), node("n2", 2))
    for ident, name, ends_at in ((90, "n1", 500), (91, "n2", 400)):
        scene.hold(holder(ident, scene.nodes[name], [0], ends_at=NOON + ends_at))
    scene.ask(group(1, gpus=2), group(2, gpus=2))
    reservation = scene.plan().reservation
    assert reservation is not None
    assert (reservation.id, reservation.grant.node, reservation.at) == (1, "n2", NOON + 400)
    assert reservation.grant.indices == (0, 1)


def test_short_ones_go_ahead_when_they_end_in_time() -> None:
    scene = half_taken()
    scene.ask(group(2, expected_s=3000))
    (placed,) = scene.plan().placements
    assert (placed.id, placed.grant.indices, placed.backfilled) == (2, (1,), True)


def test_long_ones_and_those_of_unknown_length_wait_behind() -> None:
    scene = half_taken()
    late, unknown = group(2, expected_s=3001), group(3)
    scene.ask(late, unknown)
    planned = scene.plan()
    assert planned.placements == ()
    for key in (late.key, unknown.key):
        refusal = planned.refusals[key]
        assert (refusal.code, refusal.behind) == (RefusalCode.BEHIND, 1)
        assert refusal.text == "would fit now, but must not delay task 1, which is first in line"


def test_nobody_longer_than_the_backfill_limit_goes_ahead() -> None:
    scene = half_taken(NOON + 100_000)
    scene.ask(group(2, expected_s=3601), group(3, expected_s=3600))
    assert scene.start() == [3]
    scene.end(3)
    scene.policy = Policy(backfill_time_limit_s=4000)
    assert scene.start() == [2]


def test_gpus_the_first_does_not_need_are_free_for_all() -> None:
    scene = Scene(node("n1", 2), node("n2", 1))
    scene.hold(holder(90, scene.nodes["n1"], [0]))
    scene.ask(group(1, gpus=2), group(2), group(3))
    (placed,) = scene.plan().placements
    assert (placed.id, placed.grant.node) == (2, "n2")


def test_where_nobody_knows_an_end_the_fewest_holders_are_waited_for() -> None:
    scene = Scene(node("n1", 2), node("n2", 2))
    for ident, name, index in ((90, "n1", 0), (91, "n1", 1), (92, "n2", 0)):
        scene.hold(holder(ident, scene.nodes[name], [index]))
    scene.ask(group(1, gpus=2), group(2, expected_s=10), group(3, 4))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None
    assert (planned.reservation.grant.node, planned.reservation.at) == ("n2", None)


def test_a_known_end_is_better_than_an_unknown_one() -> None:
    scene = Scene(node("n1", 1), node("n2", 1))
    scene.hold(holder(90, scene.nodes["n1"]))
    scene.hold(holder(91, scene.nodes["n2"], ends_at=NOON + 9e6))
    scene.ask(group(1))
    reservation = scene.plan().reservation
    assert reservation is not None and reservation.grant.node == "n2"


def test_small_ones_run_beside_what_the_first_will_need() -> None:
    """24 GiB, 20 held until later; the first needs 16: then 8 are left, of which 4 are free now."""
    scene = Scene(node(gpus=1))
    scene.hold(holder(90, scene.nodes["n1"], [0], 20, ends_at=NOON + 9000))
    scene.ask(group(1, 16), group([2, 3, 4], 3), group(5, 1))
    assert scene.start() == [2, 5]
    scene.end(90)
    assert scene.start()[0] == 1


def test_what_stands_beside_the_reserved_need_uses_it_up() -> None:
    """24 GiB, 6 held: the first needs 20 and will leave 4, of 18 that are free now."""
    scene = Scene(node(gpus=1))
    scene.hold(holder(90, scene.nodes["n1"], [0], 6, ends_at=NOON + 9000))
    scene.ask(group(1, 20), group([2, 3, 4], 2))
    assert scene.start() == [2, 3]
    scene.end(90)
    assert scene.start() == [1]


def test_short_ones_use_more_than_is_left_beside_it() -> None:
    scene = Scene(node(gpus=1))
    scene.hold(holder(90, scene.nodes["n1"], [0], 6, ends_at=NOON + 3000))
    scene.ask(group(1, 20), group(2, 14, expected_s=2000), group(3, 14), group(4, 4))
    assert scene.start() == [2, 4]


def test_nobody_joins_where_the_first_waits_for_a_quiet_gpu() -> None:
    scene = Scene(node(gpus=1, virtual=True))
    scene.hold(holder(90, scene.nodes["n1"], [0], 6))
    scene.ask(group(1, 4, max_util=10), group(2, 4))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None and planned.reservation.id == 1


def test_only_the_first_blocked_reserves() -> None:
    scene = Scene(node("n1", 2), node("n2", 1))
    scene.hold(holder(90, scene.nodes["n1"], [0]))
    scene.hold(holder(91, scene.nodes["n2"], [0], 20))
    scene.ask(group(1, gpus=2), group(2, 10, node="n2"), group(3, 4, node="n2"))
    planned = scene.plan()
    assert planned.reservation is not None and planned.reservation.id == 1
    assert [each.id for each in planned.placements] == [3]


def test_what_nothing_of_ours_could_free_blocks_nobody() -> None:
    busy = gpu(0, node="n1", foreign_mib=20 * GIB, foreign_busy_mib=20 * GIB)
    scene = Scene(node("n1", [busy]), node("n2", 1, closed="drained"))
    scene.ask(group(1), group(2, 30), group(3, 4))
    planned = scene.plan()
    assert planned.reservation is None
    assert [(each.id, each.backfilled) for each in planned.placements] == [(3, False)]


def test_a_holder_beyond_its_time_is_waited_for_but_not_counted_on() -> None:
    scene = half_taken(NOON - 100)
    scene.ask(group(2, expected_s=10))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None and planned.reservation.at == NOON + 100


def test_one_that_stops_is_expected_gone_by_the_last_of_its_steps() -> None:
    scene = half_taken(None)
    scene.change("task", 90, stopping=True)
    scene.ask(group(2, expected_s=10))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None and planned.reservation.at == NOON + 330


def test_a_gpu_whose_memory_is_not_back_is_waited_for() -> None:
    settling = gpu(0, closed="the memory of task 5 is not back", settling=True)
    scene = Scene(node(gpus=[settling, gpu(1)]))
    scene.ask(group(1, gpus=2), group(2, 4))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None
    assert (planned.reservation.id, planned.reservation.at) == (1, NOON + 30)


def test_a_reading_that_lags_does_not_let_others_in() -> None:
    scene = Scene(node(gpus=[gpu(0, utilization=40), gpu(1)]))
    scene.ask(group(1, gpus=2), group(2, 4))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.reservation is not None and planned.reservation.at == NOON
    others = scene.nodes["n1"]
    scene.nodes[others.name] = replace(others, gpus=(gpu(0, utilization=40, foreign_mib=500), gpu(1)))
    assert [each.id for each in scene.plan().placements] == [2]


def test_holders_the_view_counts_but_nobody_told_us_of_are_unknown() -> None:
    scene = Scene(node(gpus=[gpu(0, holders=1, promised_mib=24 * GIB, taken_whole=True)]))
    scene.ask(group(1))
    reservation = scene.plan().reservation
    assert reservation is not None and reservation.at is None


def test_a_placement_of_this_pass_is_waited_for_as_well() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group(1, expected_s=600), group(2))
    reservation = scene.plan().reservation
    assert reservation is not None
    assert (reservation.id, reservation.at) == (2, NOON + 600)


def test_the_rest_of_an_array_leaves_the_first_blocked_its_place_in_it() -> None:
    scene = half_taken()
    scene.withdraw(1)
    scene.rooms = {5: 1}
    scene.ask(group(1, gpus=2, room_key=5), group(2, gpus=0, room_key=5))
    planned = scene.plan()
    assert planned.placements == ()
    assert planned.refusals[group(2, gpus=0, room_key=5).key].code is RefusalCode.ROOM

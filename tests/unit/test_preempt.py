"""Who is pushed out for whom: as few as it takes, and nobody for nothing."""

from __future__ import annotations

from lab_gpu.core.policy import Policy
from lab_gpu.testing.builders import NOON, gpu, group, holder, node
from lab_gpu.testing.scenes import Scene

ON = Policy(preemption=True)


def full(*holders: tuple[int, int, int, float | None], policy: Policy = ON, gpus: int = 2) -> Scene:
    """Holders as (id, index, priority, GiB) on one node."""
    scene = Scene(node(gpus=gpus), policy=policy)
    for ident, index, priority, gib in holders:
        scene.hold(holder(ident, scene.nodes["n1"], [index], gib, priority=priority))
    return scene


def pushed(scene: Scene) -> list[tuple[int, int]]:
    return [(each.task, each.for_task) for each in scene.plan().evictions]


def test_nobody_is_pushed_where_the_policy_does_not_say_so() -> None:
    scene = full((90, 0, -100, None), (91, 1, -100, None), policy=Policy())
    scene.ask(group(1, priority=100))
    assert pushed(scene) == []


def test_a_higher_class_pushes_the_lowest_that_was_submitted_last() -> None:
    scene = full((90, 0, 0, None), (91, 1, -100, None), (92, 2, -100, None), gpus=3)
    scene.ask(group(1, priority=100))
    assert pushed(scene) == [(92, 1)]


def test_the_same_class_is_left_alone() -> None:
    scene = full((90, 0, 0, None), (91, 1, 20, None))
    scene.ask(group(1, priority=99))
    assert pushed(scene) == []


def test_overdue_ones_go_first() -> None:
    scene = full((90, 0, 0, None), (91, 1, -100, None))
    scene.change("task", 90, overdue=True)
    scene.ask(group(1, priority=100))
    assert pushed(scene) == [(90, 1)]


def test_as_few_as_possible_go() -> None:
    scene = full((90, 0, -100, 8), (91, 0, -100, 8), (92, 1, -100, 12))
    scene.ask(group(1, 20, priority=0))
    assert pushed(scene) == [(92, 1)]


def test_as_many_as_it_takes_and_no_more() -> None:
    scene = full(*((90 + index, index, -100, None) for index in range(5)), gpus=5)
    scene.ask(group(1, gpus=3, priority=0))
    assert pushed(scene) == [(94, 1), (93, 1), (92, 1)]


def test_nobody_is_pushed_for_nothing() -> None:
    scene = full((90, 0, -100, None), (91, 1, 100, None))
    scene.ask(group(1, gpus=2, priority=0))
    assert pushed(scene) == []


def test_leases_stay() -> None:
    scene = Scene(node(gpus=1), policy=ON)
    scene.hold(holder(5, scene.nodes["n1"], kind="lease", priority=-100))
    scene.ask(group(1, priority=100))
    assert pushed(scene) == []


def test_one_is_pushed_once_and_its_place_is_kept() -> None:
    scene = full((90, 0, -100, None), (91, 1, -100, None))
    scene.ask(group(1, priority=100), group(2, 4, priority=50))
    planned = scene.plan()
    assert [each.task for each in planned.evictions] == [91]
    assert planned.reservation is not None
    assert (planned.reservation.id, planned.reservation.grant.indices) == (1, (1,))
    assert planned.reservation.at == NOON + 330
    scene.change("task", 91, stopping=True)
    assert pushed(scene) == []
    scene.end(91)
    assert scene.start()[:1] == [1]


def test_a_gpu_that_is_free_in_a_moment_is_no_reason_to_push() -> None:
    scene = Scene(node(gpus=[gpu(0), gpu(1, utilization=60)]), policy=ON)
    scene.hold(holder(90, scene.nodes["n1"], [0], priority=-100))
    scene.ask(group(1, priority=100))
    assert pushed(scene) == []


def test_a_lease_pushes_nobody() -> None:
    scene = full((90, 0, -100, None), (91, 1, -100, None))
    scene.ask(group(1, kind="lease", priority=100))
    assert pushed(scene) == []

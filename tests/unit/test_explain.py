"""What `why` says of each GPU, of the start to expect, and of what would let it start now."""

from __future__ import annotations

import pytest

from lab_gpu.core.errors import NotFound
from lab_gpu.core.explain import explain
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import Refusal, RefusalCode
from lab_gpu.testing.builders import GIB, NOON, gpu, group, holder, node
from lab_gpu.testing.scenes import Scene


def why(scene: Scene, ident: int, kind: str = "task") -> Refusal:
    found = explain(scene.snapshot(), scene.policy, 0, kind, ident)
    assert found is not None
    return found


def busy() -> Scene:
    """n1: task 90 shares GPU 0 until +600, 91 has GPU 1; n2: 92 has three of four until +3000."""
    scene = Scene(node("n1", 2), node("n2", 4, 80))
    scene.hold(holder(90, scene.nodes["n1"], [0], 18, ends_at=NOON + 600))
    scene.hold(holder(91, scene.nodes["n1"], [1]))
    scene.hold(holder(92, scene.nodes["n2"], [0, 1, 2], ends_at=NOON + 3000))
    return scene


def test_what_starts_next_needs_no_reason() -> None:
    scene = Scene(node())
    scene.ask(group(1))
    assert explain(scene.snapshot(), scene.policy, 0, "task", 1) is None


def test_what_does_not_wait_cannot_be_explained() -> None:
    with pytest.raises(NotFound, match="cannot explain task 5: it does not wait for GPUs"):
        explain(Scene(node()).snapshot(), Policy(), 0, "task", 5)


def test_each_gpu_says_why() -> None:
    scene = busy()
    scene.ask(group(1, gpus=4), group(2, 20))
    first, second = why(scene, 1), why(scene, 2)
    assert [(each.node, each.index, each.code.value, each.text) for each in first.gpus] == [
        ("n1", 0, "gpus_busy", "task 90 holds 18 GiB"),
        ("n1", 1, "gpus_busy", "task 91 holds all of it"),
        ("n2", 0, "gpus_busy", "task 92 holds all of it"),
        ("n2", 1, "gpus_busy", "task 92 holds all of it"),
        ("n2", 2, "gpus_busy", "task 92 holds all of it"),
        ("n2", 3, "gpus_busy", "free, and kept for it until the others are"),
    ]
    assert second.gpus[0].text == "6 GiB of 24 GiB free: task 90 holds 18 GiB"
    assert second.gpus[5].code is RefusalCode.BEHIND
    assert second.gpus[5].text == "free, but kept for task 1, which is first in line"


def test_readings_and_closures_of_each_gpu() -> None:
    gpus = [
        gpu(0, closed="drained by ann"),
        gpu(1, foreign_mib=9 * GIB, foreign_busy_mib=9 * GIB, foreign_note="bob's python"),
        gpu(2, utilization=44, foreign_mib=200, foreign_busy_mib=200),
    ]
    scene = Scene(node(gpus=gpus))
    scene.ask(group(1), group(2, 20, gpus=2), group(3, 22, gpus=3))
    assert [each.text for each in why(scene, 1).gpus] == [
        "set aside: drained by ann",
        "others use 9 GiB (bob's python)",
        "is 44 % busy (at most 5 %)",
    ]
    assert [each.text for each in why(scene, 2).gpus][1:] == [
        "15 GiB of 24 GiB free: others use 9 GiB (bob's python)",
        "free, but 2 are needed on one node",
    ]
    assert why(scene, 3).code is RefusalCode.CLOSED


def test_the_start_is_foreseen_through_those_in_front() -> None:
    scene = busy()
    scene.ask(group(1, gpus=4, expected_s=1000), group([2, 3], 20, expected_s=8000))
    assert why(scene, 1).earliest_start == NOON + 3000
    assert why(scene, 2).earliest_start == NOON + 600
    assert why(scene, 3).earliest_start == NOON + 4000


def test_nobody_foresees_an_end_that_nobody_knows() -> None:
    scene = Scene(node())
    scene.hold(holder(90, scene.nodes["n1"]))
    scene.ask(group(1))
    assert why(scene, 1).earliest_start is None


def test_a_long_line_is_played_to_its_end() -> None:
    scene = Scene(node(gpus=1))
    scene.ask(group(range(1, 101), expected_s=60))
    scene.start()
    assert why(scene, 100).earliest_start == NOON + 99 * 60


def test_the_play_knows_arrays_night_and_settling_memory() -> None:
    scene = Scene(node(gpus=2))
    scene.rooms = {1: 1}
    scene.ask(group([1, 2, 3], room_key=1, expected_s=100))
    assert why(scene, 3).earliest_start == NOON + 200
    settling = Scene(node(gpus=[gpu(closed="memory not back", settling=True)]))
    settling.ask(group(1))
    assert why(settling, 1).earliest_start == NOON + 30
    night = Scene(node(gpus=[gpu(utilization=12, foreign_mib=500)]))
    night.ask(group(1))
    assert why(night, 1).earliest_start == NOON + 12 * 3600


def test_the_play_counts_on_who_is_pushed_out() -> None:
    scene = Scene(node(), policy=Policy(preemption=True))
    scene.hold(holder(90, scene.nodes["n1"], priority=-100))
    scene.ask(group(1, priority=100))
    assert why(scene, 1).earliest_start == NOON + 330


def test_advice_is_what_would_start_it_now() -> None:
    scene = busy()
    scene.ask(
        group(1, gpus=4), group(2, 20), group(3, 10, node="n1"), group(4, 4, node="n1", gpu_type="H100")
    )
    assert why(scene, 1).advice == ("it would start now with --gpus 1",)
    assert why(scene, 2).advice == (
        "it would start now with --mem 6G",
        "it would start now with --time-limit 50m",
    )
    assert why(scene, 3).advice == ("it would start now with --mem 6G",)
    assert why(scene, 4).code is RefusalCode.IMPOSSIBLE
    assert why(scene, 4).advice == ()


def test_advice_drops_one_wish_at_a_time() -> None:
    nodes = [
        node("n1", [gpu(0, 24, node="n1"), gpu(1, 24, node="n1")]),
        node("n2", [gpu(0, 24, node="n2", name="NVIDIA A100-SXM4-80GB")]),
    ]
    scene = Scene(*nodes)
    scene.hold(holder(90, scene.nodes["n2"]))
    scene.hold(holder(91, scene.nodes["n1"], [0], 4))
    scene.ask(
        group(1, 22, gpu_type="A100"),
        group(2, 22, node="n2"),
        group(3, 10, exclusive=True, gpu_ids=(0,)),
        group(4, 10, max_util=0, gpu_ids=(0,), node="n2"),
    )
    assert "it would start now without --gpu-type" in why(scene, 1).advice
    assert "it would start now without --node" in why(scene, 2).advice
    assert why(scene, 3).advice == (
        "it would start now without --gpu-ids",
        "it would start now without --exclusive",
    )
    assert why(scene, 4).advice == ("it would start now without --node",)


def test_whole_gpus_may_be_shared_instead() -> None:
    scene = Scene(node(gpus=2))
    for index in (0, 1):
        scene.hold(holder(90 + index, scene.nodes["n1"], [index], 14.5))
    scene.ask(group(1))
    assert why(scene, 1).advice == ("it would start now with --mem 9G, sharing a GPU",)
    scene.withdraw(1)
    scene.ask(group(2, 10, gpus=2))
    assert why(scene, 2).advice == ("it would start now with --mem 9G",)


def test_without_a_gpu_there_is_no_gpu_to_name() -> None:
    scene = Scene(node(closed="drained"))
    scene.ask(group(1, gpus=0))
    found = why(scene, 1)
    assert (found.code, found.gpus, found.advice) == (RefusalCode.CLOSED, (), ())

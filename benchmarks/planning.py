"""What one planning pass costs: 10,000 asks that wait for 1,000 GPUs on 125 nodes, nearly all of them taken.

Two lines of asks: one as labs have it (60 kinds of task, many alike) and a harsh one (1,000 kinds). Each is
planned from nothing, and again after one event: a holder ended or a reading changed one node, and what the
pass before placed has been started.
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from figures import Figure, at_most, main, median
from lab_gpu.core.model import Request
from lab_gpu.core.plan import plan
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import AskGroup, GroupKey, Plan
from lab_gpu.testing.builders import GIB, NOON, gpu, holder, node
from lab_gpu.testing.scenes import Scene

NODES, GPUS_PER_NODE, ASKS = 125, 8, 10_000
KINDS = (
    ("NVIDIA RTX 4090", 24),
    ("NVIDIA A100-SXM4-80GB", 80),
    ("NVIDIA L40S", 48),
    ("NVIDIA H100 80GB HBM3", 80),
)
TYPES = (None, None, None, "RTX 4090", "A100", "L40S", "H100")
POLICY = Policy()


def full_cluster(dice: random.Random) -> Scene:
    """Every GPU is held whole or shared by two; some of the shared have a little left."""
    scene = Scene()
    ident = 1_000_000
    for number in range(NODES):
        kind, gib = KINDS[number % len(KINDS)]
        name = f"node-{number:03}"
        made = node(name, [gpu(i, gib, node=name, name=kind) for i in range(GPUS_PER_NODE)])
        scene.nodes[made.name] = made
        for index in range(GPUS_PER_NODE):
            for share in [None] if dice.random() < 0.6 else [gib / 2, gib / 2 - dice.choice([0, 0, 2, 4])]:
                ident += 1
                ends_at = None if dice.random() < 0.3 else NOON + dice.uniform(60, 86_400)
                scene.hold(holder(ident, made, [index], share, ends_at=ends_at))
    return scene


def asking(dice: random.Random, kinds: int) -> list[AskGroup]:
    """10,000 asks of so many kinds, at least one of each."""
    keys = [_key(dice, number) for number in range(kinds)]
    lines: list[list[tuple[int, int]]] = [[] for _ in keys]
    for ident in range(1, ASKS + 1):
        lines[ident % kinds if ident <= kinds else dice.randrange(kinds)].append((ident, ident))
    return [AskGroup(key, line) for key, line in zip(keys, lines, strict=True)]


def _key(dice: random.Random, number: int) -> GroupKey:
    request = Request(
        gpus=dice.choice([1, 1, 1, 1, 2, 4, 8]),
        vram_mib=None if dice.random() < 0.4 else dice.randrange(6 * GIB, 80 * GIB, 97),
        gpu_type=dice.choice(TYPES),
        max_util=dice.choice([None] * 9 + [80]),
    )
    expected_s = dice.choice([None, 600.0 + number, 3000.0 + number, 40_000.0 + number])
    return GroupKey("task", f"user{number % 40}", request, dice.choice([-100, 0, 0, 0, 100]), 0, expected_s)


def after_one_event(scene: Scene, number: int) -> float:
    """Milliseconds of the pass alone."""
    where = list(scene.nodes.values())[number * 7 % NODES]
    held = [each for each in scene.running.values() if each.grant.node == where.name]
    if number % 2:
        scene.end(held[0].id)
    else:
        scene.nodes[where.name] = replace(where, gpus=where.gpus)
    snapshot = scene.snapshot()
    snapshot = replace(snapshot, running=[replace(each) for each in snapshot.running])
    took_ms, planned = timed(lambda: scene.planner.plan(snapshot, POLICY, 0))
    scene.start(planned)
    return took_ms


def timed(run: Callable[[], Plan]) -> tuple[float, Plan]:
    gc.collect()
    began = perf_counter()
    planned = run()
    return (perf_counter() - began) * 1000, planned


def measure(asked: argparse.Namespace) -> list[Figure]:
    figures = []
    for words, kinds in (("60 kinds", 60), ("1,000 kinds", 1000)):
        dice = random.Random(7)
        scene = full_cluster(dice)
        scene.ask(*asking(dice, kinds))
        snapshot = scene.snapshot()
        nothing = [timed(lambda world=snapshot: plan(world, POLICY, 0))[0] for _ in range(asked.rounds)]
        scene.start(scene.plan())
        event = [after_one_event(scene, number) for number in range(asked.rounds * 4)]
        figures += [
            at_most(f"10,000 waiting ({words}), 1,000 GPUs, from nothing: median", median(nothing), "ms", 50),
            at_most(f"10,000 waiting ({words}), 1,000 GPUs, after one event: median", median(event), "ms", 5),
            Figure(f"10,000 waiting ({words}), 1,000 GPUs, after one event: worst", max(event), "ms"),
        ]
    return figures


if __name__ == "__main__":
    main("planning", __doc__, measure, rounds=(15, "passes from nothing; four times as many after an event"))

"""Why a queued task is not in the line for GPUs at all: held, or waiting for a task, its queue or a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from lab_gpu.core.model import After, TaskState
from lab_gpu.core.snapshot import Refusal, RefusalCode
from lab_gpu.core.units import format_ago

MOST_NAMED = 5
_WANTED = {After.OK: "to complete", After.FAIL: "to fail", After.ANY: "to end"}


def eligible(
    *,
    now: float,
    held: bool = False,
    held_why: str | None = None,
    waits_on: Sequence[tuple[int, After, TaskState]] = (),
    not_before: float | None = None,
    tries_before: int = 0,
    queue: str | None = None,
    queue_turn: tuple[int, str] | None = None,
) -> Refusal | None:
    """None: the task stands in line.

    `waits_on` lists the dependencies not met yet; `queue_turn` is whose turn it is, None where its own.
    `tries_before` tells a back-off (some attempt came before) from a time its owner chose.
    """
    if held:
        return held_refusal(held_why)
    if waits_on:
        return dependency_refusal(waits_on)
    if not_before is not None and not_before > now:
        return (
            backoff_refusal(not_before, now, tries_before) if tries_before else begin_refusal(not_before, now)
        )
    if queue is not None and queue_turn is not None:
        return queue_refusal(queue, *queue_turn)
    return None


def held_refusal(why: str | None = None) -> Refusal:
    text = "held"
    if why:
        text = f"held {why}" if why.startswith("by ") else f"held: {why}"
    return Refusal(RefusalCode.HELD, text, advice=("`lab-gpu release` lets it go",))


def dependency_refusal(waits_on: Sequence[tuple[int, After, TaskState]]) -> Refusal:
    named = [f"task {on} {_WANTED[kind]} ({state.value})" for on, kind, state in waits_on[:MOST_NAMED]]
    if len(waits_on) > MOST_NAMED:
        named.append(f"{len(waits_on) - MOST_NAMED} more")
    return Refusal(RefusalCode.DEPENDENCY, f"waiting for {joined(named)}", behind=waits_on[0][0])


def queue_refusal(queue: str, in_front: int, state: str) -> Refusal:
    """`state` says what the task in front is doing: running, held, backing off."""
    text = f"waiting for its turn in queue {queue}: task {in_front} is in front ({state})"
    return Refusal(RefusalCode.QUEUE, text, behind=in_front)


def backoff_refusal(until: float, now: float, tries: int) -> Refusal:
    tried = "1 try" if tries == 1 else f"{tries} tries"
    text = f"pausing after {tried}: it goes again {instant(until, now)}"
    return Refusal(RefusalCode.BACKOFF, text, earliest_start=until)


def begin_refusal(until: float, now: float) -> Refusal:
    return Refusal(RefusalCode.BEGIN, f"to begin {instant(until, now)}", earliest_start=until)


def instant(at: float, now: float) -> str:
    """ "in 2h (2026-11-20 08:00:00 UTC)"."""
    utc = datetime.fromtimestamp(at, timezone.utc)
    return f"{format_ago(at, now)} ({utc:%Y-%m-%d %H:%M:%S} UTC)"


def joined(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

"""How an attempt is stopped: what to send next and when to look again, from what was sent by now.

SIGUSR1 to those that catch it, a wait, SIGTERM to the whole tree, a wait, SIGKILL until nothing is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from signal import SIGKILL, SIGTERM, SIGUSR1

KILL_AGAIN_S = 0.2  # what was born while the tree was being killed


class Aim(str, Enum):
    NOBODY = "nobody"
    CATCHERS = "catchers"
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop that was decided: since when, and how long each wait may be."""

    began_at: float
    soft_timeout_s: float
    term_timeout_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What this master sent, and when. A restarted master knows of nothing, and may send it again."""

    soft_at: float | None = None
    term_at: float | None = None
    kill_at: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """`signal` goes to `aim`; `look_at` is when to ask again, should the tree not be gone before."""

    signal: int | None
    aim: Aim
    look_at: float


def next_step(stop: Stop, sent: Sent, catchers: bool, now: float) -> Step:
    """`catchers`: does a process of the tree catch SIGUSR1? Looked at only until SIGTERM is sent."""
    soft_ends = stop.began_at + stop.soft_timeout_s
    if sent.kill_at is not None or now >= _kill_due(stop, sent):
        return Step(int(SIGKILL), Aim.TREE, now + KILL_AGAIN_S)
    if sent.term_at is not None:
        return Step(None, Aim.NOBODY, _kill_due(stop, sent))
    if now >= soft_ends or (sent.soft_at is None and not catchers):
        return Step(int(SIGTERM), Aim.TREE, now + stop.term_timeout_s)
    if sent.soft_at is None:
        return Step(int(SIGUSR1), Aim.CATCHERS, soft_ends)
    return Step(None, Aim.NOBODY, soft_ends)


def after(sent: Sent, step: Step, now: float) -> Sent:
    """What has been sent once this step is done."""
    if step.signal == SIGUSR1:
        return replace(sent, soft_at=now)
    if step.signal == SIGTERM:
        return replace(sent, term_at=now)
    if step.signal == SIGKILL:
        return replace(sent, kill_at=now)
    return sent


def _kill_due(stop: Stop, sent: Sent) -> float:
    if sent.term_at is not None:
        return sent.term_at + stop.term_timeout_s
    # nothing sent by then: the master was away so long that all waits are over
    return stop.began_at + stop.soft_timeout_s + stop.term_timeout_s

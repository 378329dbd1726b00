"""Stops of attempts: decided and written here, carried out step by step after each commit."""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGUSR1

from lab_gpu.core.lifecycle import move_attempt
from lab_gpu.core.model import AttemptState, ProcessName
from lab_gpu.core.stop_steps import Aim, Step, Stop, after, next_step
from lab_gpu.service.house import House, Live

SWEEP_TERM_S = 5.0
STUCK_SHELL_S = 2.0


def begin_stop(
    house: House,
    live: Live,
    why: str,
    by: str,
    then: str = "queue",
    timeouts_s: tuple[float | None, float | None] = (None, None),
) -> None:
    """Writes the decision; its first signal follows the commit. A cancel beats a preemption that is under way."""
    if live.stop_began_at is not None and why != "cancelled":
        return
    now = house.now
    if live.stop_began_at is None:
        live.state = move_attempt(live.state, "stop")
        live.stop_began_at = now
        house.book.mark("task", live.task, stopping=True)
    live.stop_why, live.stop_by, live.stop_then = why, by, then
    live.timeouts_s = (
        timeouts_s[0] if timeouts_s[0] is not None else live.timeouts_s[0],
        timeouts_s[1] if timeouts_s[1] is not None else live.timeouts_s[1],
    )
    house.ledger.attempts.stop(live.id, live.stop_began_at, why, by, then, live.timeouts_s)
    house.ledger.event(now, "stopping", live.task, live.number, who=by, why=why)
    house.after_commit.append(lambda: go_on(house, live))


def _terms(house: House, live: Live) -> Stop:
    soft, term = live.timeouts_s
    assert live.stop_began_at is not None
    return Stop(
        live.stop_began_at,
        house.policy.soft_timeout_s if soft is None else soft,
        house.policy.term_timeout_s if term is None else term,
    )


def go_on(house: House, live: Live) -> None:
    """The next step of a stop whose shell still lives."""
    if house.live.get(live.task) is not live or live.state is AttemptState.ENDED:
        return
    now = house.now
    if live.runner_gone:
        return  # settle looks after what is left
    tree = tree_of(house, live)
    stop = _terms(house, live)
    catchers = house.engine.catchers(tree, SIGUSR1) if live.sent.term_at is None else ()
    step = next_step(stop, live.sent, bool(catchers), now)
    _send(house, live, step, catchers if step.aim is Aim.CATCHERS else tree)
    live.sent = after(live.sent, step, now)
    live.stop_due = step.look_at


def sweep(house: House, live: Live, tree: tuple[ProcessName, ...]) -> None:
    """What outlives the shell. Of a task that was told to stop it keeps the time it was given; else it gets a moment."""
    now = house.now
    if live.stop_began_at is not None:
        stop, sent = _terms(house, live), live.sent
    else:
        stop, sent = Stop(live.sweep_began_at or now, 0.0, SWEEP_TERM_S), live.swept
    catchers = house.engine.catchers(tree, SIGUSR1) if sent.term_at is None and stop.soft_timeout_s else ()
    step = next_step(stop, sent, bool(catchers), now)
    _send(house, live, step, catchers if step.aim is Aim.CATCHERS else tree)
    if live.stop_began_at is not None:
        live.sent = after(sent, step, now)
    else:
        live.swept = after(sent, step, now)
    live.stop_due = step.look_at


def _send(house: House, live: Live, step: Step, targets: tuple[ProcessName, ...]) -> None:
    if step.signal is None:
        return
    if step.signal == SIGKILL:
        house.engine.kill(live.uni_id, live.runner, live.runner.pid if live.runner else None)
        if not targets and live.runner:
            _free_shell(house, live, live.runner)
        return
    for process in targets:
        house.engine.send(process, step.signal)


def _free_shell(house: House, live: Live, shell: ProcessName) -> None:
    """Its command stopped it, or put a pipe where its record goes: it is woken, and ended where that does not help."""
    if live.stuck_since is None:
        live.stuck_since = house.now
        house.engine.send(shell, SIGCONT)
    elif house.now - live.stuck_since > STUCK_SHELL_S:
        house.engine.send(shell, SIGKILL)


def tree_of(house: House, live: Live) -> tuple[ProcessName, ...]:
    return house.engine.tree(live.uni_id, live.runner, live.runner.pid if live.runner else None)

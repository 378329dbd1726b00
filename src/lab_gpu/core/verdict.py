"""The scales: how an attempt ended, and what becomes of its task. Values in, a value out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM, Signals

from lab_gpu.core.model import Ending, Request, RetryRule

LAUNCHES_AGAIN = 3
LAUNCH_PAUSES_S = (1.0, 10.0, 60.0)
LOSSES_IN_A_ROW = 2

_KILLS = (SIGHUP, SIGINT, SIGKILL, SIGTERM)
_CRASHES = (SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV)
_STOP_WORDS = {
    Ending.CANCELLED: "cancelled",
    Ending.PREEMPTED: "preempted",
    Ending.RESIZED: "stopped to change its GPUs",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an attempt that is over. `code` None: it left no record."""

    code: int | None = None
    began: bool = True  # its shell created `begun`
    barred: bool = False  # the master created it, after a restart
    same_boot: bool = True
    stop_why: Ending | None = None  # cancelled, preempted, resized, time_limit: a stop had been decided
    signalled: bool = False  # and a signal of ours had reached it
    launch_error: str | None = None  # the sentence of LaunchFailed
    lost_because: str | None = None  # "node gpu1 was forgotten", "GPU 2 failed"
    oom: bool = False  # it said that it ran out of GPU memory


@dataclass(frozen=True, slots=True)
class Standing:
    """What the task has behind it, before this attempt counts."""

    request: Request
    rule: RetryRule
    failures: int = 0
    losses: int = 0
    refused_launches: int = 0
    never_twice: bool = False
    then: str = "queue"  # after a preemption: "queue" | "hold" | "cancel"
    time_limit: str | None = None  # for the sentence: "20m"


class Counts(str, Enum):
    """Which of the task's counters this ending raises; see `counters`."""

    FAILURE = "failures"
    LOSS = "losses"
    REFUSED_LAUNCH = "refused_launches"
    NOTHING = "nothing"
    UNTRIED = "untried"  # the command never ran, and that was nobody's fault


@dataclass(frozen=True, slots=True)
class Retry:
    """Queued again with `request`; `not_before` None: at once; `behind`: after all that wait."""

    not_before: float | None
    request: Request
    counts: Counts
    reason_code: str
    reason: str
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Queued again, and held until its owner releases it."""

    request: Request
    counts: Counts
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """`event` is a move of lifecycle.TASK_MOVES: complete, fail, cancel."""

    event: str
    counts: Counts
    reason_code: str
    reason: str


Verdict = Retry | Hold | Finish


def ending_of(facts: Facts) -> Ending:
    if facts.launch_error is not None:
        return _stopped_or(facts, Ending.LAUNCH_FAILED)
    if facts.code is not None:
        return _ending_of_record(facts, facts.code)
    if not facts.began:
        return _stopped_or(facts, Ending.LAUNCH_FAILED)
    if facts.lost_because is not None or not facts.same_boot:
        return _stopped_or(facts, Ending.LOST)
    return _stopped_or(facts, Ending.OOM if facts.oom else Ending.ERROR)


def _ending_of_record(facts: Facts, code: int) -> Ending:
    """A clean exit beats a stop that came too late; one that a signal of ours had reached has only saved its work."""
    if code != 0:
        return _stopped_or(facts, Ending.OOM if facts.oom else Ending.ERROR)
    return _stopped_or(facts, Ending.OK) if facts.signalled else Ending.OK


def _stopped_or(facts: Facts, otherwise: Ending) -> Ending:
    return facts.stop_why or otherwise


def signal_of(facts: Facts) -> int | None:
    """The signal that ended the command's shell, as far as its exit code tells."""
    if facts.code is None or not 128 < facts.code <= 128 + 64:
        return None
    return facts.code - 128


def detail_of(facts: Facts, ending: Ending, time_limit: str | None = None) -> str:
    """The reason, for people."""
    if ending in _STOP_WORDS:
        return _STOP_WORDS[ending]
    if ending == Ending.TIME_LIMIT:
        return f"time limit of {time_limit} reached" if time_limit else "time limit reached"
    if ending == Ending.LAUNCH_FAILED:
        return facts.launch_error or _no_begin(facts)
    if ending == Ending.LOST:
        return facts.lost_because or "lost: the host was restarted while it ran"
    if facts.code is None:
        return "killed from outside: its runner is gone and left no exit record"
    return _words_of_code(facts) + (", out of GPU memory" if ending == Ending.OOM else "")


def _no_begin(facts: Facts) -> str:
    if not facts.same_boot:
        return "it had not begun when the host was restarted"
    if facts.barred:
        return "it had not begun when the master was restarted"
    return "its shell ended before the command began"


def _words_of_code(facts: Facts) -> str:
    number = signal_of(facts)
    if number in _KILLS:
        return f"killed by {Signals(number).name} from outside"
    if number in _CRASHES:
        return f"crashed with {Signals(number).name}"
    return f"exit code {facts.code}"


def verdict(facts: Facts, ending: Ending, standing: Standing, now: float) -> Verdict:
    reason = detail_of(facts, ending, standing.time_limit)
    if ending == Ending.OK:
        return Finish("complete", Counts.NOTHING, ending.value, "completed")
    if ending == Ending.CANCELLED:
        return Finish("cancel", Counts.NOTHING, ending.value, reason)
    if ending == Ending.TIME_LIMIT:
        return Finish("fail", Counts.FAILURE, ending.value, reason)
    if ending in (Ending.PREEMPTED, Ending.RESIZED):
        return _made_room(ending, standing, reason)
    if ending == Ending.LOST:
        return _after_loss(standing, reason)
    if ending == Ending.LAUNCH_FAILED:
        return _after_refused_launch(facts, standing, reason, now)
    return _after_failure(ending, standing, reason, now)


def _made_room(ending: Ending, standing: Standing, reason: str) -> Verdict:
    request = standing.request
    if ending == Ending.PREEMPTED and standing.then == "hold":
        return Hold(request, Counts.NOTHING, ending.value, f"{reason}, and held as asked")
    if ending == Ending.PREEMPTED and standing.then == "cancel":
        return Finish("cancel", Counts.NOTHING, ending.value, f"{reason}, and cancelled as asked")
    behind = ending == Ending.PREEMPTED
    return Retry(None, request, Counts.NOTHING, ending.value, f"{reason}, waits again", behind)


def _after_loss(standing: Standing, reason: str) -> Verdict:
    code = Ending.LOST.value
    if standing.never_twice:
        return Finish("fail", Counts.LOSS, code, f"{reason}; not run again, as --never-twice asks")
    losses = standing.losses + 1
    if losses >= LOSSES_IN_A_ROW:
        return Hold(standing.request, Counts.LOSS, code, f"{reason}; held after {losses} losses in a row")
    return Retry(None, standing.request, Counts.LOSS, code, f"{reason}; runs again")


def _after_refused_launch(facts: Facts, standing: Standing, reason: str, now: float) -> Verdict:
    """An attempt that never began because the master or the host went down is nobody's failure."""
    code, refused = Ending.LAUNCH_FAILED.value, standing.refused_launches
    if facts.launch_error is None and (facts.barred or facts.lost_because or not facts.same_boot):
        return Retry(None, standing.request, Counts.UNTRIED, code, f"{reason}; runs again")
    if refused >= LAUNCHES_AGAIN:
        return Finish("fail", Counts.REFUSED_LAUNCH, code, f"{reason} (tried {refused + 1} times)")
    pause_s = LAUNCH_PAUSES_S[refused]
    return Retry(now + pause_s, standing.request, Counts.REFUSED_LAUNCH, code, f"{reason}; tried again soon")


def _after_failure(ending: Ending, standing: Standing, reason: str, now: float) -> Verdict:
    rule, failures = standing.rule, standing.failures + 1
    code = ending.value
    if rule.max_retries is not None and failures > rule.max_retries:
        tries = f" (tried {failures} times)" if failures > 1 else ""
        return Finish("fail", Counts.FAILURE, code, reason + tries)
    long_pause = rule.before_backoff > 0 and failures % rule.before_backoff == 0
    pause_s = rule.backoff_s if long_pause else rule.pause_s
    number = f"{failures}" if rule.max_retries is None else f"{failures} of {rule.max_retries}"
    return Retry(now + pause_s, standing.request, Counts.FAILURE, code, f"{reason}; retry {number}")


def counters(standing: Standing, counts: Counts) -> tuple[int, int, int]:
    """(failures, losses, refused_launches) after this ending; one that is no loss ends a row of them."""
    if counts == Counts.UNTRIED:
        return standing.failures, standing.losses, standing.refused_launches
    if counts == Counts.LOSS:
        return standing.failures, standing.losses + 1, 0
    if counts == Counts.REFUSED_LAUNCH:
        return standing.failures, standing.losses, standing.refused_launches + 1
    failures = standing.failures + (1 if counts == Counts.FAILURE else 0)
    return failures, 0, 0

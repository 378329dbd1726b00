"""How each attempt is judged: its ending, and what becomes of its task."""

import pytest

from lab_gpu.core.model import Ending, Request, RetryRule
from lab_gpu.core.verdict import (
    Counts,
    Facts,
    Finish,
    Hold,
    Retry,
    Standing,
    Verdict,
    counters,
    ending_of,
    signal_of,
    verdict,
)

NOW = 1000.0
REQUEST = Request(vram_mib=10240)


def standing(retries: int | None = 0, **changes: object) -> Standing:
    return Standing(REQUEST, RetryRule(max_retries=retries), **changes)  # type: ignore[arg-type]


def judged(facts: Facts, stand: Standing | None = None) -> Verdict:
    return verdict(facts, ending_of(facts), stand or standing(), NOW)


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        (Facts(code=0), Ending.OK),
        (Facts(code=1), Ending.ERROR),
        (Facts(code=1, oom=True), Ending.OOM),
        (Facts(code=0, stop_why=Ending.CANCELLED), Ending.OK),
        (Facts(code=0, stop_why=Ending.CANCELLED, signalled=True), Ending.CANCELLED),
        (Facts(code=143, stop_why=Ending.CANCELLED, signalled=True), Ending.CANCELLED),
        (Facts(code=0, stop_why=Ending.TIME_LIMIT), Ending.OK),
        (Facts(code=0, stop_why=Ending.TIME_LIMIT, signalled=True), Ending.TIME_LIMIT),
        (Facts(code=137, stop_why=Ending.TIME_LIMIT, signalled=True), Ending.TIME_LIMIT),
        (Facts(code=0, stop_why=Ending.PREEMPTED), Ending.OK),
        (Facts(code=0, stop_why=Ending.PREEMPTED, signalled=True), Ending.PREEMPTED),
        (Facts(code=0, stop_why=Ending.RESIZED, signalled=True), Ending.RESIZED),
        (Facts(), Ending.ERROR),
        (Facts(same_boot=False), Ending.LOST),
        (Facts(code=0, same_boot=False), Ending.OK),
        (Facts(same_boot=False, stop_why=Ending.CANCELLED), Ending.CANCELLED),
        (Facts(lost_because="GPU 2 failed"), Ending.LOST),
        (Facts(stop_why=Ending.PREEMPTED), Ending.PREEMPTED),
        (Facts(began=False), Ending.LAUNCH_FAILED),
        (Facts(began=False, stop_why=Ending.CANCELLED), Ending.CANCELLED),
        (Facts(began=False, same_boot=False), Ending.LAUNCH_FAILED),
        (Facts(launch_error="cannot write the log"), Ending.LAUNCH_FAILED),
    ],
)
def test_how_it_ended(facts: Facts, ending: Ending):
    assert ending_of(facts) == ending


def test_a_clean_exit_completes():
    assert judged(Facts(code=0)) == Finish("complete", Counts.NOTHING, "ok", "completed")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(code=1), "exit code 1"),
        (Facts(code=137), "killed by SIGKILL from outside"),
        (Facts(code=139), "crashed with SIGSEGV"),
        (Facts(code=200), "exit code 200"),
        (Facts(code=255), "exit code 255"),
        (Facts(code=1, oom=True), "exit code 1, out of GPU memory"),
        (Facts(), "killed from outside: its runner is gone and left no exit record"),
        (Facts(code=137, stop_why=Ending.TIME_LIMIT), "time limit of 20m reached"),
        (Facts(code=143, stop_why=Ending.CANCELLED), "cancelled"),
    ],
)
def test_every_end_has_a_reason_for_people(facts: Facts, reason: str):
    found = judged(facts, standing(time_limit="20m"))
    assert isinstance(found, Finish)
    assert found.reason == reason


def test_signals_are_read_from_the_code():
    assert signal_of(Facts(code=143)) == 15
    assert signal_of(Facts(code=128)) is None
    assert signal_of(Facts(code=1)) is None
    assert signal_of(Facts()) is None


def test_an_error_goes_again_while_retries_remain():
    first = judged(Facts(code=1), standing(2))
    assert first == Retry(NOW + 2.0, REQUEST, Counts.FAILURE, "error", "exit code 1; retry 1 of 2")
    assert isinstance(judged(Facts(code=1), standing(2, failures=1)), Retry)
    last = judged(Facts(code=1), standing(2, failures=2))
    assert last == Finish("fail", Counts.FAILURE, "error", "exit code 1 (tried 3 times)")


def test_every_third_failure_waits_long():
    waits = []
    for failures in range(7):
        found = judged(Facts(code=1), standing(None, failures=failures))
        assert isinstance(found, Retry)
        assert found.not_before is not None
        waits.append(found.not_before - NOW)
    assert waits == [2, 2, 600, 2, 2, 600, 2]


def test_no_long_wait_where_none_is_asked_for():
    rule = RetryRule(max_retries=None, before_backoff=0)
    found = verdict(Facts(code=1), Ending.ERROR, Standing(REQUEST, rule, failures=8), NOW)
    assert isinstance(found, Retry)
    assert found.not_before == NOW + 2.0


def test_the_same_boot_without_runner_is_under_the_ordinary_retries():
    assert isinstance(judged(Facts(), standing(1)), Retry)
    assert isinstance(judged(Facts(), standing(0)), Finish)


def test_a_loss_spends_no_retry_and_the_second_in_a_row_is_held():
    first = judged(Facts(same_boot=False))
    assert first == Retry(
        None, REQUEST, Counts.LOSS, "lost", "lost: the host was restarted while it ran; runs again"
    )
    second = judged(Facts(same_boot=False), standing(losses=1))
    assert isinstance(second, Hold)
    assert second.reason.endswith("held after 2 losses in a row")


def test_never_twice_fails_rather_than_run_again():
    found = judged(Facts(same_boot=False), standing(never_twice=True))
    assert isinstance(found, Finish)
    assert found.event == "fail"
    assert "--never-twice" in found.reason


def test_never_twice_may_start_what_never_began():
    assert isinstance(judged(Facts(began=False, same_boot=False), standing(never_twice=True)), Retry)


def test_preemption_spends_no_retry_and_goes_behind():
    found = judged(Facts(code=143, stop_why=Ending.PREEMPTED, signalled=True))
    assert isinstance(found, Retry)
    assert (found.behind, found.counts, found.not_before) == (True, Counts.NOTHING, None)


def test_preemption_then_hold_or_cancel():
    facts = Facts(code=143, stop_why=Ending.PREEMPTED, signalled=True)
    assert isinstance(judged(facts, standing(then="hold")), Hold)
    cancelled = judged(facts, standing(then="cancel"))
    assert isinstance(cancelled, Finish)
    assert cancelled.event == "cancel"


def test_a_resized_task_keeps_its_place():
    found = judged(Facts(code=143, stop_why=Ending.RESIZED, signalled=True))
    assert isinstance(found, Retry)
    assert not found.behind


def test_a_refused_launch_is_tried_again_with_growing_pauses_then_fails():
    facts = Facts(launch_error="cannot write the log /x")
    waits = []
    for refused in range(3):
        found = judged(facts, standing(refused_launches=refused))
        assert isinstance(found, Retry)
        assert found.not_before is not None
        waits.append(found.not_before - NOW)
    assert waits == sorted(set(waits))
    assert judged(facts, standing(refused_launches=3)) == Finish(
        "fail", Counts.REFUSED_LAUNCH, "launch_failed", "cannot write the log /x (tried 4 times)"
    )


def test_what_a_restart_kept_from_beginning_is_nobodys_failure():
    found = judged(Facts(began=False, barred=True), standing(refused_launches=3))
    assert isinstance(found, Retry)
    assert (found.not_before, found.counts) == (None, Counts.UNTRIED)


def test_counters():
    before = standing(failures=2, losses=1, refused_launches=1)
    assert counters(before, Counts.FAILURE) == (3, 0, 0)
    assert counters(before, Counts.LOSS) == (2, 2, 0)
    assert counters(before, Counts.REFUSED_LAUNCH) == (2, 1, 2)
    assert counters(before, Counts.NOTHING) == (2, 0, 0)
    assert counters(before, Counts.UNTRIED) == (2, 1, 1)

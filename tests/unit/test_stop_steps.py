"""SIGUSR1 to those that catch it, a wait, SIGTERM, a wait, SIGKILL."""

from signal import SIGKILL, SIGTERM, SIGUSR1

from pytest import approx

from lab_gpu.core.stop_steps import KILL_AGAIN_S, Aim, Sent, Stop, after, next_step

STOP = Stop(began_at=1000.0, soft_timeout_s=300.0, term_timeout_s=30.0)


def walk(catchers: bool, stop: Stop = STOP, limit: int = 5) -> list[tuple[float, int | None, Aim]]:
    """What is sent and when, where nothing ever ends by itself."""
    now, sent, steps = stop.began_at, Sent(), []
    for _ in range(limit):
        step = next_step(stop, sent, catchers, now)
        steps.append((now - stop.began_at, step.signal, step.aim))
        sent, now = after(sent, step, now), step.look_at
    return steps


def test_who_catches_is_told_first_and_has_its_time():
    assert walk(catchers=True)[:3] == [
        (0, SIGUSR1, Aim.CATCHERS),
        (300, SIGTERM, Aim.TREE),
        (330, SIGKILL, Aim.TREE),
    ]


def test_where_none_catches_sigterm_follows_at_once():
    assert walk(catchers=False)[:2] == [(0, SIGTERM, Aim.TREE), (30, SIGKILL, Aim.TREE)]


def test_killing_goes_on_until_nothing_is_left():
    steps = walk(catchers=False)
    assert [signal for _, signal, _ in steps[1:]] == [SIGKILL] * 4
    assert steps[2][0] - steps[1][0] == approx(KILL_AGAIN_S)


def test_no_soft_time_means_no_soft_signal():
    assert walk(True, Stop(1000.0, 0.0, 30.0))[0] == (0, SIGTERM, Aim.TREE)


def test_no_time_at_all_is_a_kill():
    assert walk(True, Stop(1000.0, 0.0, 0.0))[0] == (0, SIGKILL, Aim.TREE)


def test_looking_early_changes_nothing():
    waiting = next_step(STOP, Sent(soft_at=1000.0), True, 1100.0)
    assert (waiting.signal, waiting.aim, waiting.look_at) == (None, Aim.NOBODY, 1300.0)
    assert next_step(STOP, Sent(term_at=1010.0), True, 1020.0).look_at == 1040.0


def test_who_checkpointed_and_left_a_shell_keeps_its_soft_time():
    assert next_step(STOP, Sent(soft_at=1000.0), False, 1100.0).signal is None


def test_a_restarted_master_goes_on_where_the_time_says():
    assert next_step(STOP, Sent(), True, 1200.0).signal == SIGUSR1
    assert next_step(STOP, Sent(), True, 1310.0).signal == SIGTERM
    assert next_step(STOP, Sent(), True, 5000.0).signal == SIGKILL

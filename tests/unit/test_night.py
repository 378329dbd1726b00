"""When it is night in the master's zone, and what the night does to priorities."""

from __future__ import annotations

import pytest

from lab_gpu.core.night import DAY_S, is_night, minute_of_day, next_boundary
from lab_gpu.core.order import class_of, effective_priority
from lab_gpu.core.policy import Policy

MIDNIGHT = 1_700_000_000 - 1_700_000_000 % DAY_S
HOUR = 3600


@pytest.mark.parametrize(("hour", "night"), [(0, True), (7.99, True), (8, False), (12, False), (23.9, False)])
def test_a_night_within_one_day(hour: float, night: bool) -> None:
    assert is_night(MIDNIGHT + hour * HOUR, "00:00", "08:00", 0) is night


@pytest.mark.parametrize(("hour", "night"), [(21.9, False), (22, True), (0, True), (5.9, True), (6, False)])
def test_a_night_across_midnight(hour: float, night: bool) -> None:
    assert is_night(MIDNIGHT + hour * HOUR, "22:00", "06:00", 0) is night


def test_hours_are_those_of_the_masters_zone() -> None:
    east = 8 * HOUR
    assert is_night(MIDNIGHT + 20 * HOUR, "00:00", "08:00", east)
    assert not is_night(MIDNIGHT + 1 * HOUR, "00:00", "08:00", east)
    assert is_night(MIDNIGHT + 6 * HOUR, "00:00", "08:00", -5 * HOUR)


def test_equal_hours_are_no_night() -> None:
    assert not is_night(MIDNIGHT, "08:00", "08:00", 0)
    assert next_boundary(MIDNIGHT, "08:00", "08:00", 0) is None


@pytest.mark.parametrize(("hour", "boundary"), [(0, 6), (5, 6), (6, 22), (21, 22), (22, 30), (23, 30)])
def test_the_next_boundary(hour: float, boundary: float) -> None:
    now = MIDNIGHT + hour * HOUR
    assert next_boundary(now, "22:00", "06:00", 0) == MIDNIGHT + boundary * HOUR
    assert next_boundary(now - 8 * HOUR, "22:00", "06:00", 8 * HOUR) == MIDNIGHT + (boundary - 8) * HOUR


def test_minutes_of_a_day() -> None:
    assert minute_of_day("08:30") == 510
    assert minute_of_day("24:00") is None
    assert minute_of_day("8") is None


def test_the_night_lifts_those_below_normal_by_half_a_class() -> None:
    policy = Policy()
    assert effective_priority(-100, policy, night=True) == -50
    assert effective_priority(-100, policy, night=False) == -100
    assert effective_priority(50, policy, night=True) == 50


def test_the_night_never_makes_a_smaller_number_the_better_one() -> None:
    for bonus in (0.0, 0.5, 1.0, 2.5):
        policy = Policy(night_low_bonus=bonus)
        lifted = [effective_priority(number, policy, night=True) for number in range(-1000, 0)]
        assert lifted == sorted(lifted)
        if bonus <= 1:
            assert lifted[-1] <= 0


def test_classes_are_bands_between_the_named_priorities() -> None:
    assert [class_of(number) for number in (-1000, -1, 0, 99, 100, 1000)] == [-1, -1, 0, 0, 1, 1]

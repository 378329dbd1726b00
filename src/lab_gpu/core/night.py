"""Night by the master's own clock on the wall. It may cross midnight; equal hours mean that there is none."""

from __future__ import annotations

import re

DAY_S = 86400
_HOUR = re.compile(r"(\d{1,2}):([0-5]\d)")


def minute_of_day(hour: str) -> int | None:
    """ "08:30" is 510; None where it is no hour of a day."""
    found = _HOUR.fullmatch(hour)
    if found is None or int(found[1]) > 23:
        return None
    return int(found[1]) * 60 + int(found[2])


def is_night(now: float, start: str, end: str, utc_offset_s: float) -> bool:
    second = _second_of_day(now, utc_offset_s)
    begins, ends = _seconds(start), _seconds(end)
    if begins <= ends:
        return begins <= second < ends
    return second >= begins or second < ends


def next_boundary(now: float, start: str, end: str, utc_offset_s: float) -> float | None:
    """When night next begins or ends; None where there is no night."""
    begins, ends = _seconds(start), _seconds(end)
    if begins == ends:
        return None
    second = _second_of_day(now, utc_offset_s)
    return now + min((edge - second) % DAY_S or DAY_S for edge in (begins, ends))


def _second_of_day(now: float, utc_offset_s: float) -> float:
    return (now + utc_offset_s) % DAY_S


def _seconds(hour: str) -> int:
    minute = minute_of_day(hour)
    if minute is None:
        raise ValueError(f"no hour of a day: {hour}")
    return minute * 60

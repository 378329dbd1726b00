"""Sizes, durations, priorities, ids and times as people write them, and back again.

Parsed at the edge once. Imports little on purpose: every cold start of the command line pays for it.
"""

from __future__ import annotations

import re

from lab_gpu.core.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PRIORITY_WORDS = {"low": -100, "normal": 0, "high": 100}
PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
LONGEST_S = 3650 * 86400
MOST_IDS = 100_000
DAY_S = 86400

_MIB_PER_UNIT = {"": 1024.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Left uncompiled: `re` compiles and keeps the few that one command really reads with.
_SIZE = r"(?i)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([MGT]?)(?:I?B)?"
_PARTS = r"(?i)(?:[0-9]+(?:\.[0-9]+)?[smhdw])+"
_PART = r"(?i)([0-9]+(?:\.[0-9]+)?)([smhdw])"
_CLOCK = r"(?:([0-9]+)-)?([0-9]+):([0-5][0-9])(?::([0-5][0-9]))?"
_ARRAY = r"([0-9]+)(?:-([0-9]+))?(?::([0-9]+))?(?:%([0-9]+))?"
_DATE = r"(?i)([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[T ](.*))?"
_HOUR = r"([0-9]{1,2}):([0-5][0-9])(?::([0-5][0-9]))?"


def parse_size_mib(text: str | int | float) -> int:
    """10G, 10GB, 10GiB, 10240M and a bare 10 are all 10 GiB. Fractions of a MiB are rounded up."""
    found = re.fullmatch(_SIZE, str(text).strip())
    unit = found[2].upper() if found else ""
    if found is None or (not unit and not _ends_in_digit(str(text))):
        raise _unread("size", text, _why_no_number(text), "10G or 10240M")
    mib = -(-float(found[1]) * _MIB_PER_UNIT[unit] // 1)
    if mib > 1 << 40:
        raise _unread("size", text, "no GPU is that large", "10G or 10240M")
    return int(mib)


def parse_duration_s(text: str | int | float) -> float:
    """Seconds, 90s, 30m, 12h, 2d, 2h30m, HH:MM:SS, D-HH:MM. A bare number is seconds."""
    word = str(text).strip()
    seconds = _plain_seconds(word)
    if seconds is None:
        seconds = _clock_seconds(word)
    if seconds is None:
        raise _unread("duration", text, _why_no_number(text), "90s, 30m, 2h30m or 12:00:00")
    if seconds > LONGEST_S:
        raise _unread("duration", text, "it is longer than ten years", "90s, 30m, 2h30m or 12:00:00")
    return seconds


def parse_priority(text: str | int) -> int:
    """low, normal, high or an integer from -1000 to 1000."""
    word = str(text).strip().lower()
    if word in PRIORITY_WORDS:
        return PRIORITY_WORDS[word]
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", word):
        raise _unread("priority", text, "it is neither a class nor a whole number", "low, normal, high or 50")
    number = int(word)
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise _unread("priority", text, f"it lies outside {PRIORITY_MIN} to {PRIORITY_MAX}", "high or 100")
    return number


def parse_ids(words: str | Iterable[str]) -> list[int]:
    """3-7 9 4,5 as numbers, every id once, in the order written."""
    pieces = words.split() if isinstance(words, str) else list(words)
    ids: dict[int, None] = {}
    for piece in (part for word in pieces for part in word.split(",") if part.strip()):
        ids.update(dict.fromkeys(_id_range(piece.strip())))
        if len(ids) > MOST_IDS:
            raise _unread("ids", piece, f"that is more than {MOST_IDS} tasks", "3-7 or 3,4,9")
    if not ids:
        raise _unread("ids", " ".join(pieces), "no id is in it", "3-7 or 3,4,9")
    return list(ids)


def parse_array(text: str) -> tuple[int, int, int, int | None]:
    """0-9%4 and 1-9:2 as first, last, step, and how many of them may run at once (None: all)."""
    found = re.fullmatch(_ARRAY, str(text).strip())
    if found is None:
        raise _unread("array", text, "it is not a range of numbers", "0-9, 0-9%4 or 1-9:2")
    first, step = int(found[1]), int(found[3] or 1)
    last = int(found[2]) if found[2] is not None else first
    limit = int(found[4]) if found[4] is not None else None
    if last < first:
        raise _unread("array", text, "it ends before it begins", f"{last}-{first}")
    if step < 1 or limit == 0:
        raise _unread("array", text, "neither step nor limit may be 0", "0-9%4 or 1-9:2")
    if (last - first) // step >= MOST_IDS:
        raise _unread("array", text, f"that is more than {MOST_IDS} tasks", "0-9%4")
    return first, last, step, limit


def parse_begin(text: str, now: float, offset_s_at: Callable[[float], float]) -> float:
    """22:00, 2026-11-20T08:00, +2h, tomorrow 08:00 as Unix time.

    `offset_s_at` gives local time minus UTC at an instant, so that a change to summer time in between is met.
    """
    word = " ".join(str(text).split())
    if word.startswith("+"):
        return now + parse_duration_s(word[1:])
    local = _local_begin(word, now + offset_s_at(now))
    if local is None:
        raise _unread(
            "time", text, "it names no day and hour", "22:00, 2026-11-20T08:00, tomorrow 08:00 or +2h"
        )
    guess = local - offset_s_at(now)
    at = local - offset_s_at(guess)
    if at <= now:
        raise _unread("time", text, "it is already past", "22:00, tomorrow 08:00 or +2h")
    return at


def format_mib(mib: float) -> str:
    """512 MiB, 10 GiB, 10.5 GiB."""
    if mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"


def format_duration(seconds: float) -> str:
    """0.4s, 45s, 12m 5s, 3h 20m, 2d 4h: two units at most."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def format_ago(at: float, now: float) -> str:
    """An instant as a person says it: just now, 5m ago, in 2h."""
    distance = now - at
    if abs(distance) < 1:
        return "just now"
    words = format_duration(abs(distance) if abs(distance) >= 10 else round(abs(distance)))
    shown = words if abs(distance) < DAY_S else words.split()[0]
    return f"{shown} ago" if distance > 0 else f"in {shown}"


def _unread(what: str, text: object, why: str, example: str) -> Refused:
    return Refused(f"cannot read {what} '{text}': {why}; write it like {example}")


def _why_no_number(text: object) -> str:
    word = str(text).strip()
    if not word:
        return "it is empty"
    if word.startswith("-"):
        return "it is negative"
    number = re.match(r"[0-9.]+", word)
    if number is None:
        return "it does not begin with a number"
    if re.fullmatch(r"[0-9]+:[0-9]+", word):
        return "it could mean minutes or hours"
    unit = word[number.end() :].strip()
    return f"'{unit}' is no unit" if unit else "it is not a number"


def _ends_in_digit(text: str) -> bool:
    return text.strip()[-1] in "0123456789."


def _plain_seconds(word: str) -> float | None:
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", word):
        return float(word)
    if not re.fullmatch(_PARTS, word):
        return None
    parts = [(float(number), unit.lower()) for number, unit in re.findall(_PART, word)]
    units = [unit for _, unit in parts]
    if len(set(units)) < len(units):
        return None
    return sum(number * _UNIT_S[unit] for number, unit in parts)


def _clock_seconds(word: str) -> float | None:
    """HH:MM:SS, or with days before it D-HH, D-HH:MM, D-HH:MM:SS. 10:30 stays unread: minutes or hours?"""
    days_and_hours = re.fullmatch(r"([0-9]+)-([0-9]+)", word)
    if days_and_hours:
        return float(int(days_and_hours[1]) * DAY_S + int(days_and_hours[2]) * 3600)
    found = re.fullmatch(_CLOCK, word)
    if found is None or (found[1] is None and found[4] is None):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(days * DAY_S + hours * 3600 + minutes * 60 + seconds)


def _id_range(piece: str) -> range:
    found = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", piece)
    if found is None:
        raise _unread("id", piece, "an id is a whole number", "12, 3-7 or 3,4,9")
    first, last = int(found[1]), int(found[2] or found[1])
    if first < 1:
        raise _unread("id", piece, "ids count from 1", "12, 3-7 or 3,4,9")
    if last < first:
        raise _unread("ids", piece, "the range ends before it begins", f"{last}-{first}")
    if last - first >= MOST_IDS:
        raise _unread("ids", piece, f"that is more than {MOST_IDS} tasks", "3-7 or 3,4,9")
    return range(first, last + 1)


def _local_begin(word: str, local_now: float) -> float | None:
    """The instant as seconds of local time: `word` without a day is its next occurrence."""
    midnight = local_now // DAY_S * DAY_S
    day, _, rest = word.partition(" ")
    if day.lower() in ("today", "tomorrow"):
        start = midnight + (DAY_S if day.lower() == "tomorrow" else 0)
        seconds = _seconds_of_day(rest) if rest else 0
        return None if seconds is None else start + seconds
    date = re.fullmatch(_DATE, word)
    if date:
        days = days_since_1970(int(date[1]), int(date[2]), int(date[3]))
        seconds = _seconds_of_day(date[4]) if date[4] else 0
        return None if days is None or seconds is None else days * DAY_S + seconds
    seconds = _seconds_of_day(word)
    if seconds is None:
        return None
    return midnight + seconds if midnight + seconds > local_now else midnight + DAY_S + seconds


def _seconds_of_day(word: str) -> int | None:
    found = re.fullmatch(_HOUR, word)
    if found is None or int(found[1]) > 23:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0)


def days_since_1970(year: int, month: int, day: int) -> int | None:
    """The proleptic Gregorian calendar, counted here because importing a calendar costs a cold start more."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (1 <= month <= 12 and 1 <= day <= lengths[month - 1]):
        return None
    before = year - 1
    days_to_year = before * 365 + before // 4 - before // 100 + before // 400
    return days_to_year + sum(lengths[: month - 1]) + day - 1 - 719162

"""Sizes, durations, ids and times: what people write is read, and everything else is refused in words."""

from __future__ import annotations

from datetime import date, datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.cli.ids import ranges
from lab_gpu.core import units
from lab_gpu.core.errors import Refused

UTC_NOW = datetime(2026, 11, 19, 22, 30, tzinfo=timezone.utc).timestamp()


def utc(_: float) -> float:
    return 0.0


def at_utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    "text", ["10G", "10GB", "10GiB", "10240M", "10240MB", "10240MiB", "10", 10, 10.0, " 10 g "]
)
def test_ten_gibibytes_in_every_spelling(text: str | float) -> None:
    assert units.parse_size_mib(text) == 10 * 1024


@pytest.mark.parametrize(
    ("text", "mib"), [("0.5G", 512), (".5", 512), ("1T", 1 << 20), ("0", 0), ("1.0001M", 2), ("24", 24576)]
)
def test_other_sizes(text: str, mib: int) -> None:
    assert units.parse_size_mib(text) == mib


@pytest.mark.parametrize(
    "text", ["10X", "10B", "x", "", " ", "-3", "10..2", "10GG", "G", "1e9", "nan", "10 20", "٣G", "99999999T"]
)
def test_unreadable_sizes_say_how_to_write_them(text: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read size '.*': .+; write it like 10G or 10240M$"):
        units.parse_size_mib(text)


def test_the_sentence_names_the_unknown_unit() -> None:
    with pytest.raises(Refused) as refused:
        units.parse_size_mib("10X")
    assert str(refused.value) == "cannot read size '10X': 'X' is no unit; write it like 10G or 10240M"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), (1.5, 1.5), ("90s", 90), ("30m", 1800), ("12h", 43200), ("2d", 172800), ("1w", 604800),
     ("2h30m", 9000), ("1.5h", 5400), ("12:00:00", 43200), ("100:00:01", 360001), ("1-12:00", 129600),
     ("1-12", 129600), ("1-02:03:04", 93784), ("2H30M", 9000), ("0", 0)],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "10:30", "2h2h", "h", "-3", "foo", "1-2:3", "1:2:3", "00:61:00", "1y", "2h 30m x", "inf", "4000d"],
)
def test_unreadable_durations(text: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read duration '.*': .+; write it like "):
        units.parse_duration_s(text)


def test_minutes_or_hours_is_asked_back() -> None:
    with pytest.raises(Refused, match="it could mean minutes or hours"):
        units.parse_duration_s("10:30")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("low", -100),
        ("normal", 0),
        ("HIGH", 100),
        ("5", 5),
        ("-1000", -1000),
        ("+7", 7),
        (1000, 1000),
        (-5, -5),
    ],
)
def test_priorities(text: str | int, number: int) -> None:
    assert units.parse_priority(text) == number


@pytest.mark.parametrize("text", ["urgent", "", "1001", "-1001", "1.5", "99999999999"])
def test_unreadable_priorities(text: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read priority '.*': .+; write it like "):
        units.parse_priority(text)


@pytest.mark.parametrize(
    ("words", "ids"),
    [("3-7 9 4,5", [3, 4, 5, 6, 7, 9]), ("12", [12]), (["9", "3-4"], [9, 3, 4]), ("1,1,1", [1]), ("5-5", [5]),
     ([" 7 "], [7]), ("2,", [2])],
)  # fmt: skip
def test_ids(words: str | list[str], ids: list[int]) -> None:
    assert units.parse_ids(words) == ids


@pytest.mark.parametrize("words", ["", [], ",", "0", "x", "7-3", "1-", "-1", "1.5", "1-9999999", "#3", "٣"])
def test_unreadable_ids(words: str | list[str]) -> None:
    with pytest.raises(Refused, match=r"^cannot read ids? '.*': .+; write it like "):
        units.parse_ids(words)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60, unique=True))
def test_ids_and_ranges_are_each_others_way_back(ids: list[int]) -> None:
    assert units.parse_ids(ranges(ids)) == ids


@pytest.mark.parametrize(
    ("text", "array"),
    [("0-9%4", (0, 9, 1, 4)), ("1-9:2", (1, 9, 2, None)), ("5", (5, 5, 1, None)), ("0-9:3%2", (0, 9, 3, 2))],
)
def test_arrays(text: str, array: tuple[int, int, int, int | None]) -> None:
    assert units.parse_array(text) == array


@pytest.mark.parametrize("text", ["", "9-0", "0-9%0", "1-9:0", "a-b", "0-9%", "0-100000", "0-9,11"])
def test_unreadable_arrays(text: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read array '.*': .+; write it like "):
        units.parse_array(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [("23:00", (2026, 11, 19, 23)), ("22:00", (2026, 11, 20, 22)), ("22:30", (2026, 11, 20, 22, 30)),
     ("2026-11-20T08:00", (2026, 11, 20, 8)), ("2026-11-20 08:00:05", (2026, 11, 20, 8, 0, 5)),
     ("2026-11-20", (2026, 11, 20)), ("+2h", (2026, 11, 20, 0, 30)), ("+90", (2026, 11, 19, 22, 31, 30)),
     ("tomorrow 08:00", (2026, 11, 20, 8)), ("tomorrow", (2026, 11, 20)), ("today 23:15", (2026, 11, 19, 23, 15)),
     ("2028-02-29 00:00", (2028, 2, 29))],
)  # fmt: skip
def test_begin_times(text: str, at: tuple[int, ...]) -> None:
    assert units.parse_begin(text, UTC_NOW, utc) == at_utc(*at)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "25:00", "12:60", "2026-02-30", "2026-13-01", "2020-01-01", "today 01:00", "tomorrow noon"],
)
def test_unreadable_begin_times(text: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read time '.*': .+; write it like "):
        units.parse_begin(text, UTC_NOW, utc)


def test_a_begin_time_is_the_clock_on_the_wall_after_a_change_to_summer_time() -> None:
    zone = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 3, 28, 22, 0, tzinfo=zone).timestamp()

    def offset(at: float) -> float:
        shift = datetime.fromtimestamp(at, zone).utcoffset()
        assert shift is not None
        return shift.total_seconds()

    begin = units.parse_begin("08:00", now, offset)
    assert datetime.fromtimestamp(begin, zone) == datetime(2026, 3, 29, 8, 0, tzinfo=zone)


@given(st.dates(datetime(1900, 1, 1).date(), datetime(2400, 1, 1).date()))
def test_days_are_counted_as_the_calendar_does(day: object) -> None:
    assert isinstance(day, date)
    assert units.days_since_1970(day.year, day.month, day.day) == (day - date(1970, 1, 1)).days


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (0.44, "0.4s"), (9.96, "10s"), (59.7, "1m"), (61, "1m 1s"), (3600, "1h"), (3661, "1h 1m"),
     (90000, "1d 1h"), (259205, "3d"), (-61, "-1m 1s")],
)  # fmt: skip
def test_durations_for_people(seconds: float, words: str) -> None:
    assert units.format_duration(seconds) == words


@pytest.mark.parametrize(
    ("mib", "words"), [(0, "0 MiB"), (512, "512 MiB"), (1024, "1 GiB"), (10752, "10.5 GiB")]
)
def test_sizes_for_people(mib: int, words: str) -> None:
    assert units.format_mib(mib) == words


def test_instants_for_people() -> None:
    assert units.format_ago(100, 100.5) == "just now"
    assert units.format_ago(100, 190) == "1m 30s ago"
    assert units.format_ago(200, 100) == "in 1m 40s"
    assert units.format_ago(0, 3 * 86400 + 3700) == "3d ago"


@given(st.floats(0, units.LONGEST_S, allow_nan=False))
def test_every_duration_has_words(seconds: float) -> None:
    assert units.format_duration(seconds)


@given(st.text(max_size=12))
def test_no_text_breaks_a_reader(text: str) -> None:
    """Read or refused: never another error."""
    readers = (
        units.parse_size_mib,
        units.parse_duration_s,
        units.parse_priority,
        units.parse_ids,
        units.parse_array,
    )
    for read in (*readers, lambda words: units.parse_begin(words, UTC_NOW, utc)):
        try:
            read(text)
        except Refused as refused:
            assert "; " in str(refused)

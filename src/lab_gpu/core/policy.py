"""The knobs of policy.yaml: their defaults, and how a document becomes a Policy with all mistakes named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite

from lab_gpu.core.errors import Refused
from lab_gpu.core.nearest import nearest
from lab_gpu.core.night import minute_of_day
from lab_gpu.core.units import LONGEST_S, parse_duration_s, parse_size_mib

MOST_MIB = 1 << 40
MOST_RETRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """`max_retries` None is unlimited; `log_max_mib` 0 is no limit; the other Nones mean "not set"."""

    night_start: str = "00:00"
    night_end: str = "08:00"
    base_idle_util_threshold: float = 0.05
    night_idle_util_threshold: float = 0.20
    backfill_time_limit_s: float = 3600
    night_low_bonus: float = 0.5
    timezone: str | None = None
    foreign_memory_mib: int = 1024
    enforce_time_limit: bool = False
    preemption: bool = False
    visible_devices: str = "index"
    soft_timeout_s: float = 300
    term_timeout_s: float = 30
    max_retries: int | None = 0
    retry_pause_s: float = 2
    max_retry_before_backoff: int = 3
    backoff_duration_s: float = 600
    log_root: str | None = None
    log_max_mib: int = 1024
    log_keep_days: float | None = 90
    log_keep_total_mib: int | None = None
    finished_keep_days: float | None = None
    cors_origins: tuple[str, ...] = ()
    gpu_memory_wait_s: float = 30
    idle_exit_s: float = 3600


class _Mistake(ValueError):
    """What is wrong with one value, as the second half of a sentence."""


Reader = Callable[[object], object]


def parse_policy(document: object, knows_zone: Callable[[str], bool] | None = None) -> Policy:
    """`document` is what policy.yaml says, None where empty. `knows_zone` tells which zones there are."""
    if document is None:
        return Policy()
    if not isinstance(document, Mapping):
        raise Refused(
            "cannot use the policy: it is not a list of `key: value` lines; start from `lab-gpu policy show`"
        )
    values: dict[str, object] = {}
    problems: list[str] = []
    for written, value in document.items():
        key = ALIASES.get(str(written), str(written))
        try:
            if key in values:
                raise _Mistake("it is given twice")
            values[key] = _read(key, value, knows_zone)
        except _Mistake as mistake:
            problems.append(f"{written}: {mistake}")
    if problems:
        raise Refused(f"cannot use the policy: {'; '.join(problems)}", tuple(problems))
    return Policy(**values)  # type: ignore[arg-type]


def policy_to_doc(policy: Policy) -> dict[str, object]:
    """Plain JSON that parse_policy reads back to an equal Policy."""
    document: dict[str, object] = asdict(policy)
    document["cors_origins"] = list(policy.cors_origins)
    return document


def changed(old: Policy, new: Policy) -> list[str]:
    """The keys whose values differ, in the order of the policy."""
    return [knob.name for knob in fields(Policy) if getattr(old, knob.name) != getattr(new, knob.name)]


def _read(key: str, value: object, knows_zone: Callable[[str], bool] | None) -> object:
    if key not in READERS:
        near = nearest(key, KEYS)
        raise _Mistake(f"there is no such key; did you mean {near}?" if near else "there is no such key")
    if value is None and key not in OPTIONAL:
        raise _Mistake(f"it has no value; the default is {_shown(DEFAULTS[key])}")
    if value is None:
        return None
    read = READERS[key](value)
    if key == "timezone" and knows_zone is not None and not knows_zone(str(read)):
        raise _Mistake(f"no time zone is called {read}; write it like Asia/Shanghai")
    return read


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hour(value: object) -> str:
    # An unquoted 22:30 reaches us as 1350: YAML 1.1 reads it as a number of base 60.
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 24 * 60:
        return f"{value // 60:02}:{value % 60:02}"
    minute = minute_of_day(value.strip()) if isinstance(value, str) else None
    if minute is None:
        raise _Mistake(f'{_shown(value)} is no hour; write it like "22:30"')
    return f"{minute // 60:02}:{minute % 60:02}"


def _number(value: object, low: float, high: float, unit: str = "") -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _Mistake(f"'{value}' is not a number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise _Mistake(f"{_shown(value)} is not a number")
    if not low <= value <= high:
        raise _Mistake(f"{value:g} lies outside {low:g} to {high:g}{unit}")
    return value


def _whole(value: object, low: int, high: int) -> int:
    number = _number(value, low, high)
    if number != int(number):
        raise _Mistake(f"{number:g} is not a whole number")
    return int(number)


def _share(value: object) -> float:
    return _number(value, 0, 1, " (0.05 is 5 %)")


def _bonus(value: object) -> float:
    return _number(value, 0, 20)


def _duration_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _Mistake(f"{_shown(value)} is not a duration; write it like 90 or 30m")
    if not isinstance(value, str):
        return _number(value, 0, LONGEST_S)
    try:
        return parse_duration_s(value)
    except Refused as refused:
        raise _Mistake(_reason(refused)) from None


def _mib(value: object) -> int:
    """A bare number is MiB, as the key says; 10G and 512M are read as everywhere else."""
    if not isinstance(value, str) or value.strip().isdigit():
        return _whole(value, 0, MOST_MIB)
    try:
        return parse_size_mib(value)
    except Refused as refused:
        raise _Mistake(_reason(refused)) from None


def _reason(refused: Refused) -> str:
    return str(refused).removeprefix("cannot read ")


def _days(value: object) -> float:
    return _number(value, 0, 36500)


def _retries(value: object) -> int | None:
    return None if value == "unlimited" else _whole(value, 0, MOST_RETRIES)


def _tries_before_backoff(value: object) -> int:
    return _whole(value, 1, MOST_RETRIES)


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Mistake(f"{_shown(value)} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Mistake(f"{_shown(value)!r} is not a text")
    return value.strip()


def _path(value: object) -> str:
    path = _text(value)
    if not path.startswith(("/", "~")):
        raise _Mistake(f"{path} is not an absolute path")
    return path


def _one_of(*words: str) -> Reader:
    def read(value: object) -> str:
        if value not in words:
            raise _Mistake(f"{_shown(value)} is not one of {', '.join(words)}")
        return str(value)

    return read


def _origins(value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)):
        raise _Mistake("it is not a list of origins")
    for origin in listed:
        if (
            not isinstance(origin, str)
            or not origin.startswith(("http://", "https://"))
            or origin.count("/") != 2
        ):
            raise _Mistake(f"{origin} is no origin; write it like https://lab.example.org:8080")
    return tuple(listed)


READERS: dict[str, Reader] = {
    "night_start": _hour,
    "night_end": _hour,
    "base_idle_util_threshold": _share,
    "night_idle_util_threshold": _share,
    "backfill_time_limit_s": _duration_s,
    "night_low_bonus": _bonus,
    "timezone": _text,
    "foreign_memory_mib": _mib,
    "enforce_time_limit": _yes_or_no,
    "preemption": _yes_or_no,
    "visible_devices": _one_of("index", "uuid"),
    "soft_timeout_s": _duration_s,
    "term_timeout_s": _duration_s,
    "max_retries": _retries,
    "retry_pause_s": _duration_s,
    "max_retry_before_backoff": _tries_before_backoff,
    "backoff_duration_s": _duration_s,
    "log_root": _path,
    "log_max_mib": _mib,
    "log_keep_days": _days,
    "log_keep_total_mib": _mib,
    "finished_keep_days": _days,
    "cors_origins": _origins,
    "gpu_memory_wait_s": _duration_s,
    "idle_exit_s": _duration_s,
}
ALIASES = {"backoff_duration": "backoff_duration_s"}
KEYS = [*READERS, *ALIASES]
DEFAULTS = policy_to_doc(Policy())
OPTIONAL = {
    "timezone",
    "max_retries",
    "log_root",
    "log_keep_days",
    "log_keep_total_mib",
    "finished_keep_days",
}

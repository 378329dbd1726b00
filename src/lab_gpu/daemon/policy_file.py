"""policy.yaml: read when a master starts or is told to, checked whole before it replaces what is in force."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone, tzinfo

from lab_gpu.core.errors import Refused


def read_policy(path: str) -> object:
    """What the file says, not yet checked for sense."""
    import yaml  # a master without a policy file starts without it

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except OSError as error:
        raise Refused(
            f"cannot read the policy {path}: {error.strerror}; name another file with --policy"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no UTF-8, no such day, nested without end
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise Refused(f"cannot read the policy {path}: it is no YAML{line}; correct it") from None


def knows_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return False
    return True


def utc_offset_of(zone: Callable[[], str | None]) -> Callable[[float], float]:
    """The night's clock: the policy's zone, else this host's."""
    known: dict[str | None, tzinfo | None] = {None: None}

    def offset(now: float) -> float:
        name = zone()
        if name not in known:
            from zoneinfo import ZoneInfo

            known[name] = ZoneInfo(str(name))
        there = datetime.fromtimestamp(now, timezone.utc).astimezone(known[name])
        gap = there.utcoffset()
        return gap.total_seconds() if gap else 0.0

    return offset

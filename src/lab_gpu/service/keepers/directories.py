"""Removes what ended attempts left on disk, log and directory: oldest first, once too old or too much."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MIB = 1 << 20
DAY_S = 86400.0
AT_ONCE = 200  # removals in one run: nobody waits long for this keeper
MORE_SOON_S = 1.0
LOOK_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What an ended attempt left, and where it lies now (a retry moves the older log)."""

    attempt: int
    log_path: str
    directory: str
    ended_at: float


@dataclass(frozen=True, slots=True)
class KeepRule:
    """None: no such limit."""

    days: float | None = None
    total_mib: int | None = None


class DirectoryKeeper:
    """`ended(t)` tells of attempts that ended after t, oldest first; `now_at(attempt)` where one lies now."""

    def __init__(
        self,
        ended: Callable[[float], Iterable[Remains]],
        now_at: Callable[[int], Remains | None],
        rule: Callable[[], KeepRule],
        warn: Callable[[str], None],
    ) -> None:
        self._ended, self._now_at, self._rule, self._warn = ended, now_at, rule, warn
        self._known_until = float("-inf")
        self._kept: deque[tuple[int, float, int]] = deque()
        self._kept_bytes = 0
        self._warned = False

    def run_once(self, now: float) -> float | None:
        """When to look again; None: nothing has a limit."""
        rule = self._rule()
        if rule.days is None and rule.total_mib is None:
            return None
        more = self._learn(rule, now)
        removed = 0
        while self._kept and removed < AT_ONCE and self._too_much(rule, now):
            attempt, _, size = self._kept.popleft()
            self._kept_bytes -= size
            if (remains := self._now_at(attempt)) is not None:
                self._remove(remains)
            removed += 1
        if removed == AT_ONCE or more:
            return now + MORE_SOON_S
        return now + LOOK_AGAIN_S

    def _learn(self, rule: KeepRule, now: float) -> bool:
        """Without a limit on the total only the oldest matter: the rest is not looked at before its time.

        True where there is more to learn of.
        """
        if rule.total_mib is None and self._kept and not self._too_much(rule, now):
            return False
        found = list(self._ended(self._known_until))
        for remains in found:
            self._known_until = max(self._known_until, remains.ended_at)
            size = _size_bytes(remains)
            if size is not None:
                self._kept.append((remains.attempt, remains.ended_at, size))
                self._kept_bytes += size
        return bool(found) and (rule.total_mib is not None or not self._kept)

    def _too_much(self, rule: KeepRule, now: float) -> bool:
        _, ended_at, _ = self._kept[0]
        too_old = rule.days is not None and now - ended_at > rule.days * DAY_S
        return too_old or (rule.total_mib is not None and self._kept_bytes > rule.total_mib * MIB)

    def _remove(self, remains: Remains) -> None:
        try:
            remove_files(remains.log_path, remains.directory)
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"cannot remove {error.filename}: {error.strerror}; remove it by hand")


def remove_files(log_path: str, directory: str) -> None:
    """What an attempt left on disk; its task's own folder too once that is empty."""
    if log_path and os.path.lexists(log_path):
        os.unlink(log_path)
    if directory and os.path.isdir(directory):
        shutil.rmtree(directory)
        try:
            os.rmdir(os.path.dirname(directory))
        except OSError:
            pass  # an attempt of before or after is still there


def _size_bytes(remains: Remains) -> int | None:
    """None where nothing is left. The directory's few small files count as its own blocks."""
    sizes = []
    for path in (remains.log_path, remains.directory):
        try:
            sizes.append(os.lstat(path).st_blocks * 512)
        except OSError:
            continue
    return sum(sizes) if sizes else None

"""A task's log as parts in order: all attempts, the last lines, or as it grows until the task ends."""

from __future__ import annotations

import select

from lab_gpu.client.inotify import Watch
from lab_gpu.client.log_parts import Gone, Heading, Live
from lab_gpu.client.log_sources import FileSource, MasterSource, open_source, tail_offset
from lab_gpu.client.news import AWAY_LIMIT_S, News
from lab_gpu.core.errors import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from lab_gpu.client.log_parts import Cut, Part
    from lab_gpu.client.log_sources import Source
    from lab_gpu.client.transport import Api

    Json = dict[str, Any]

FINAL = ("completed", "failed", "cancelled")
UNWATCHED_PAUSE_S = 0.25
REMOTE_PAUSE_S = 0.5


class LogTeller:
    """Gives the parts of a task's log in order; `task` is the task as it was last seen."""

    def __init__(
        self,
        api: Api,
        task_id: int,
        attempt: str | int = "all",
        lines: int | None = None,
        follow: bool = False,
        stop: int | None = None,
    ) -> None:
        self._api = api
        self._id = task_id
        self._which = attempt
        self._lines = lines
        self._follow = follow
        self._news = News(api, task_id) if follow else None
        self._stop = stop
        self._stopped = False
        self._current: OpenLog | None = None
        self.task: Json = {}
        self._refresh()

    def parts(self) -> Iterator[Part]:
        chosen = self._chosen()
        starts = self._starts(chosen)
        for shown, (number, offset) in enumerate(starts):
            if shown:
                yield Heading(number)
            yield from self._opened(number, offset)
        if self._news is not None:
            yield Live()
            yield from self._followed()

    def close(self) -> None:
        for each in (self._current, self._news):
            if each is not None:
                each.close()
        self._current = None

    def _refresh(self) -> None:
        self.task = self._api.ask("GET", f"/api/v1/tasks/{self._id}", patience_s=AWAY_LIMIT_S)

    def _attempts(self) -> list[Json]:
        return sorted(self.task["attempts"], key=lambda attempt: int(attempt["number"]))

    def _chosen(self) -> list[Json]:
        attempts = self._attempts()
        if self._which == "all":
            return attempts
        if self._which == "last":
            return attempts[-1:]
        chosen = [attempt for attempt in attempts if attempt["number"] == int(self._which)]
        if not chosen and not (self._follow and not attempts):
            had = f"it has had {len(attempts)}" if attempts else "it has not started"
            raise NotFound(f"cannot show attempt {self._which} of task {self._id}: {had}; see --attempt last")
        return chosen

    def _starts(self, chosen: list[Json]) -> list[tuple[int, int]]:
        """Attempt and offset to begin at: the last lines may lie in several attempts."""
        if self._lines is None:
            return [(attempt["number"], 0) for attempt in chosen]
        starts: list[tuple[int, int]] = []
        left = self._lines
        for attempt in reversed(chosen):
            source = open_source(self._api, self._id, attempt["number"], attempt["log_path"])
            if source is None:
                continue
            offset, found = tail_offset(source, left) if left > 0 else (_size(source), 0)
            source.close()
            starts.insert(0, (attempt["number"], offset))
            left -= found
            if left <= 0:
                break
        return starts

    def _opened(self, number: int, offset: int) -> Iterator[Part]:
        """What an attempt's log holds now; it stays open, for there may come more."""
        if self._current is not None:
            self._current.close()
        self._current = self._open(number, offset)
        if self._current is None:
            yield Gone(number)
        else:
            yield from self._current.more()

    def _open(self, number: int, offset: int) -> OpenLog | None:
        """Where a retry begins meanwhile the log is renamed: a path is believed if it is the same after."""
        while True:
            before = self._attempt(number)
            source = open_source(self._api, self._id, number, before["log_path"])
            if before["state"] != "ended":
                self._refresh()
                if self._attempt(number)["log_path"] != before["log_path"]:
                    if source is not None:
                        source.close()
                    continue
            return None if source is None else OpenLog(number, source, offset)

    def _attempt(self, number: int) -> Json:
        return next(attempt for attempt in self.task["attempts"] if attempt["number"] == number)

    def _followed(self) -> Iterator[Part]:
        """Until the task is final: what the current attempt adds, then the next one's."""
        assert self._news is not None
        while True:
            ended = self._current is None or self._attempt(self._current.number)["state"] == "ended"
            if self._current is not None:
                yield from self._current.more()
            following = self._next_attempt() if ended else None
            if following is not None:
                if self._current is not None:
                    yield Heading(following)
                yield from self._opened(following, 0)
            elif ended and (self.task["state"] in FINAL or self._only_one_wanted()):
                return
            else:
                self._wait(None if ended else self._current)
                if self._stopped:
                    return

    def _next_attempt(self) -> int | None:
        if self._current is not None and isinstance(self._which, int):
            return None
        after = self._current.number if self._current is not None else 0
        wanted = [each["number"] for each in self._attempts() if each["number"] > after]
        if isinstance(self._which, int):
            wanted = [number for number in wanted if number == self._which]
        return wanted[0] if wanted else None

    def _only_one_wanted(self) -> bool:
        return self._current is not None and isinstance(self._which, int)

    def _wait(self, log: OpenLog | None) -> None:
        """Until the log grew, something became of the task, or the caller wants no more."""
        assert self._news is not None
        ears = select.poll()
        limits: list[float | None] = []
        if self._news.listening():
            ears.register(self._news, select.POLLIN)
        limits.append(self._news.pause_s())
        if log is not None:
            limits.append(log.pause_s)
            if log.watch is not None:
                ears.register(log.watch, select.POLLIN)
        if self._stop is not None:
            ears.register(self._stop, select.POLLIN)
        heard = {fd for fd, _ in ears.poll(_shortest_ms(limits))}
        self._stopped = self._stop in heard
        if self._news.heard(heard):
            self._refresh()


def _shortest_ms(limits_s: list[float | None]) -> float | None:
    known = [limit for limit in limits_s if limit is not None]
    return min(known) * 1000 if known else None


def _size(source: Source) -> int:
    extents = source.extents()
    return extents[-1][1] if extents else 0


class OpenLog:
    """An attempt's log that may grow, read as far as `offset`."""

    def __init__(self, number: int, source: Source, offset: int) -> None:
        self.number = number
        self._source = source
        self._offset = offset
        self.watch = _watch(source)
        self.pause_s = None if self.watch else _pause_s(source)

    def more(self) -> Iterator[bytes | Cut]:
        if self.watch is not None:
            self.watch.drain()
        while (read := self._source.read(self._offset)) is not None:
            part, self._offset = read
            yield part

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        self._source.close()


def _watch(source: Source) -> Watch | None:
    try:
        return Watch(source.fd) if isinstance(source, FileSource) else None
    except (OSError, AttributeError):  # no watches left for this user, or a kernel without them
        return None


def _pause_s(source: Source) -> float:
    return REMOTE_PAUSE_S if isinstance(source, MasterSource) else UNWATCHED_PAUSE_S

"""What becomes of one task, told by the master's long poll beside whatever else a follower waits for."""

from __future__ import annotations

import time

from lab_gpu.core.errors import Broken, NoMaster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lab_gpu.client.transport import Api, Pending

NEWS_WAIT_S = 50
AWAY_LIMIT_S = 60.0  # how long a master may be away before a follower gives up
AGAIN_S = 0.5


class News:
    """`heard` after a poll says whether to look at the task again. A master that restarts is asked again."""

    def __init__(self, api: Api, task_id: int) -> None:
        self._api = api
        self._task_id = task_id
        self._last: int = api.get("/api/v1/events")["last"]
        self._pending: Pending | None = None
        self._away_since: float | None = None

    def fileno(self) -> int:
        assert self._pending is not None
        return self._pending.fileno()

    def listening(self) -> bool:
        """Make sure that the question is asked; false while nobody is there to ask."""
        if self._pending is None:
            query = {"after": self._last, "timeout_s": NEWS_WAIT_S, "task": self._task_id}
            try:
                self._pending = self._api.begin("/api/v1/events", query, NEWS_WAIT_S + 30, patience_s=0)
            except (NoMaster, OSError) as error:
                self._missed(error)
        return self._pending is not None

    def pause_s(self) -> float | None:
        return None if self._pending is not None else AGAIN_S

    def heard(self, readable: set[int]) -> bool:
        """Take the answer where it is whole; true when something may have become of the task."""
        if self._pending is None or self._pending.fileno() not in readable:
            return False
        try:
            if not self._pending.read():
                return False
            answer = self._pending.finish()
        except (OSError, Broken) as error:
            self._missed(error)
            return False
        self._pending, self._away_since = None, None
        self._last = answer["last"]
        return True

    def _missed(self, error: Exception) -> None:
        self.close()
        if self._away_since is None:
            self._away_since = time.monotonic()
        elif time.monotonic() - self._away_since > AWAY_LIMIT_S:
            raise error

    def close(self) -> None:
        if self._pending is not None:
            self._pending.close()
            self._pending = None

"""How many tasks there are of each state; of ended ones, those of the last 24 hours."""

from __future__ import annotations

from lab_gpu.service.views import DAY_S, Rows

_MANY_A_DAY = 5000
_KEPT_S = 10.0


class Counts:
    """Ended tasks are counted anew each time, but where a day has so many of them that this takes long."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._ended: dict[str, int] = {}
        self._counted_at = 0.0

    async def read(self, now: float) -> dict[str, int]:
        if sum(self._ended.values()) < _MANY_A_DAY or not 0 <= now - self._counted_at < _KEPT_S:
            rows = await self._rows.read("ended_counts", since=now - DAY_S)
            self._ended, self._counted_at = {row["state"]: row["number"] for row in rows}, now
        rows = await self._rows.read("open_counts")
        return {row["state"]: row["number"] for row in rows} | self._ended

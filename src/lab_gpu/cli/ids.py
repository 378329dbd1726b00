"""Which tasks a person means: numbers, ranges, and `@` for their last task, `@~1` for the one before it."""

from __future__ import annotations

import os
import re

from lab_gpu.core.errors import NotFound, Refused
from lab_gpu.core.units import parse_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab_gpu.client.transport import Api

FURTHEST_BACK = 999
_LAST = r"@(?:~([0-9]{1,6}))?"


def resolve(words: Iterable[str], api: Api) -> list[int]:
    """Every id once, in the order named."""
    pieces = [piece for word in words for piece in word.replace(",", " ").split()]
    last = _LastTasks(api)
    ids: dict[int, None] = {}
    for piece in pieces:
        ids.update(dict.fromkeys([last.back(piece)] if piece.startswith("@") else parse_ids(piece)))
    return list(ids) or parse_ids(pieces)


def ranges(ids: Iterable[int]) -> str:
    """3-7,9: as few words as possible, readable by every command."""
    parts: list[list[int]] = []
    for each in ids:
        if parts and each == parts[-1][-1] + 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ",".join("-".join(str(end) for end in part) for part in parts)


def my_name() -> str:
    """The kernel's word for who I am, as the master sees it; not what the environment claims."""
    try:
        from pwd import getpwuid

        return getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class _LastTasks:
    """My newest tasks, asked for once and only where somebody names one of them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ids: list[int] = []

    def back(self, word: str) -> int:
        found = re.fullmatch(_LAST, word)
        if found is None:
            raise Refused(f"cannot read id '{word}': it is neither a number nor a last task; write @ or @~1")
        steps = int(found[1] or 0)
        if steps > FURTHEST_BACK:
            raise Refused(f"cannot go back {steps} tasks: {FURTHEST_BACK} is the most; name the id")
        if len(self._ids) <= steps:
            query: dict[str, str | int] = {"owner": my_name(), "order": "new", "limit": steps + 1}
            self._ids = [task["id"] for task in self._api.get("/api/v1/tasks", query)["tasks"]]
        if len(self._ids) <= steps:
            raise NotFound(
                f"cannot find {word}: you have submitted {len(self._ids)} tasks here; see lab-gpu list"
            )
        return self._ids[steps]

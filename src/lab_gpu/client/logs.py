"""Shows a task's log, to a terminal, into a pipe, or as lines of text for a program."""

from __future__ import annotations

import sys

from lab_gpu.client.log_paper import paper_for
from lab_gpu.client.log_teller import FINAL, LogTeller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from lab_gpu.client.transport import Api

    Json = dict[str, Any]


def show_log(
    api: Api,
    task_id: int,
    attempt: str | int = "all",
    lines: int | None = None,
    follow: bool = False,
    write: Callable[[bytes], object] | None = None,
    raw: bool = False,
    tty: bool = False,
) -> Json | None:
    """Writes a task's log and gives the task where it has ended, else None.

    Progress bars are carried out and shown as they ended. `raw` writes the files' bytes untouched and
    without headings; only holes are left out. `tty` says that `write` ends at a terminal: colours are kept,
    and what is new while following goes through as it comes. `write` gets bytes and should flush.
    """
    write = write or _to_stdout
    paper = paper_for(write, raw, tty, follow)
    teller = LogTeller(api, task_id, attempt, lines, follow)
    try:
        for part in teller.parts():
            paper.take(part)
    finally:
        paper.close()
        teller.close()
    return teller.task if teller.task["state"] in FINAL else None


def log_lines(
    api: Api, task_id: int, attempt: str | int = "all", follow: bool = False, stop: int | None = None
) -> Iterator[str]:
    """The log as lines without colours, progress bars settled; `stop` is a descriptor that ends it."""
    written: list[bytes] = []
    paper = paper_for(written.append, raw=False, tty=False, follow=follow)
    teller = LogTeller(api, task_id, attempt, None, follow, stop)
    try:
        for part in teller.parts():
            paper.take(part)
            yield from _taken(written)
        paper.close()
        yield from _taken(written)
    finally:
        teller.close()


def _taken(written: list[bytes]) -> list[str]:
    text = b"".join(written).decode()
    written.clear()
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def _to_stdout(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()

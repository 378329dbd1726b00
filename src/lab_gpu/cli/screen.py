"""How answers look: colours only where wanted, tables that fit a terminal and are whole in a pipe."""

from __future__ import annotations

import os
import sys
import time

from lab_gpu.core.units import DAY_S, days_since_1970, format_ago, format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Cell = str | tuple[str, str]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STATE_STYLES = {
    "queued": "yellow",
    "running": "green",
    "completed": "dim",
    "failed": "red",
    "cancelled": "dim",
    "held": "green",
    "waiting": "yellow",
}
FLEXIBLE_LEAST = 8
GAP = "  "
_colours_wanted: bool | None = None


def colours() -> bool:
    """NO_COLOR, then CLICOLOR_FORCE, then the setting `color`, then whether a person looks."""
    global _colours_wanted
    if _colours_wanted is None:
        _colours_wanted = _wants_colours()
    return _colours_wanted


def _wants_colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    from lab_gpu.cli.config import setting

    choice = setting("color") or "auto"
    if choice != "auto":
        return bool(choice == "always")
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def colour(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and text and colours() else text


def width() -> int | None:
    """Columns of the terminal; None where there is none: nothing is cut in a pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return _terminal()[0]


def _terminal() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
        found = (size.columns, size.lines)
    except (OSError, ValueError):
        found = (0, 0)
    columns, lines = (os.environ.get(name, "") for name in ("COLUMNS", "LINES"))
    return (
        int(columns) if columns.isdigit() and int(columns) else found[0] or 80,
        int(lines) if lines.isdigit() and int(lines) else found[1] or 24,
    )


def table(rows: Sequence[Sequence[Cell]], columns: Sequence[str], width: int | None = None) -> list[str]:
    """Lines of a table. A title with `>` is set right, one with `*` is cut first where room is short.

    A cell is text, or text with its style. Columns without any text are left out.
    """
    plain = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
    kept = [at for at in range(len(columns)) if any(row[at] for row in plain)]
    titles = [columns[at].lstrip(">*") for at in kept]
    widths = [
        max([_wide(title), *(_wide(row[at]) for row in plain)])
        for title, at in zip(titles, kept, strict=True)
    ]
    if width is not None:
        _squeeze(widths, [columns[at] for at in kept], width)
    lines = (
        [_line([(title, "dim") for title in titles], widths, [columns[at] for at in kept])] if rows else []
    )
    return lines + [_line([row[at] for at in kept], widths, [columns[at] for at in kept]) for row in rows]


def _squeeze(widths: list[int], columns: Sequence[str], width: int) -> None:
    """Takes from the widest flexible column until the line fits."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    flexible = [at for at, title in enumerate(columns) if title.startswith("*")]
    while over > 0 and flexible:
        widest = max(flexible, key=lambda at: widths[at])
        if widths[widest] <= FLEXIBLE_LEAST:
            return
        widths[widest] -= 1
        over -= 1


def _line(cells: Sequence[Cell], widths: Sequence[int], columns: Sequence[str]) -> str:
    parts = []
    for cell, room, title in zip(cells, widths, columns, strict=True):
        text, style = (cell, "") if isinstance(cell, str) else cell
        text = cut(text, room)
        blank = " " * (room - _wide(text))
        shown = colour(text, style)
        parts.append(blank + shown if title.startswith(">") else shown + blank)
    return GAP.join(parts).rstrip()


def cut(text: str, room: int | None) -> str:
    """One line of at most `room` columns, an ellipsis where something is missing."""
    text = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    if room is None or _wide(text) <= room:
        return text
    if text.isascii():
        return text[: max(room - 1, 0)] + "…"
    kept, used = "", 1
    for char in text:
        used += _wide(char)
        if used > room:
            break
        kept += char
    return kept + "…"


def _wide(text: str) -> int:
    """Columns a text takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def redraw(lines: list[str]) -> None:
    """The live view: over the last one on a terminal, below it elsewhere."""
    if sys.stdout is None or not sys.stdout.isatty():
        print("\n".join(lines), end="\n\n", flush=True)
        return
    room = max(_terminal()[1] - 1, 1)
    shown = lines if len(lines) <= room else [*lines[: room - 1], f"… {len(lines) - room + 1} lines more"]
    body = "".join(f"{line}\x1b[K\n" for line in shown)
    print(f"\x1b[H{body}\x1b[J", end="", flush=True)


def instant(iso: str) -> float:
    """Unix time of an ISO 8601 instant in UTC, as the master writes it."""
    day, _, clock = iso.rstrip("Z").partition("T")
    year, month, date = (int(part) for part in day.split("-"))
    hour, minute, second = clock.split(":")
    days = days_since_1970(year, month, date) or 0
    return days * DAY_S + int(hour) * 3600 + int(minute) * 60 + float(second)


def ago(iso: str | None) -> str:
    return format_ago(instant(iso), time.time()) if iso else ""


def local_time(iso: str | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(instant(iso))) if iso else ""


def state_cell(state: str) -> tuple[str, str]:
    return state, _STATE_STYLES.get(state, "")


def task_state(task: dict[str, Any]) -> tuple[str, str]:
    """The state, and what a person must know beside it: its phase, or how it failed."""
    words, style = state_cell(task["state"])
    if task.get("phase"):
        return f"{words} ({task['phase']})", "yellow"
    return words, style


def gpu_names(gpus: Sequence[dict[str, Any]]) -> str:
    """node-1:0,1"""
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        by_node.setdefault(str(gpu.get("node") or "?"), []).append(str(gpu.get("index", "?")))
    return " ".join(f"{node}:{','.join(indices)}" for node, indices in by_node.items())


def needs(request: dict[str, Any]) -> str:
    """What a task asks for, in few words: 2 x 10 GiB A100."""
    count, vram_mib = request.get("gpus", 1), request.get("vram_mib")
    if not count:
        return "no GPU"
    size = format_mib(vram_mib) if vram_mib else "whole"
    words = [f"{count} x {size}" if count > 1 else size if vram_mib else "1 GPU"]
    if vram_mib and request.get("exclusive"):
        words.append("alone")
    if request.get("gpu_type"):
        words.append(str(request["gpu_type"]))
    if request.get("gpu_ids"):
        words.append("on " + ",".join(str(index) for index in request["gpu_ids"]))
    if request.get("node"):
        words.append(f"at {request['node']}")
    return " ".join(words)

"""Tasks as lines of a table, the same in `status` and `list`."""

from __future__ import annotations

from lab_gpu.cli.screen import ago, cut, gpu_names, needs, table, task_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lab_gpu.cli.screen import Cell

    Json = dict[str, Any]

COLUMNS = (">ID", "STATE", "*TASK", "OWNER", "*GPUS", "SINCE", "*REASON")
LONGEST_COMMAND = 60


def task_lines(tasks: list[Json], width: int | None) -> list[str]:
    """An owner is shown only where there are several; brief tasks of large answers have fewer words."""
    several = len({task.get("owner") for task in tasks}) > 1
    return table([_row(task, several, width) for task in tasks], COLUMNS, width)


def _row(task: Json, with_owner: bool, width: int | None) -> list[Cell]:
    return [
        str(task["id"]),
        task_state(task),
        title(task, None if width is None else LONGEST_COMMAND),
        str(task.get("owner") or "") if with_owner else "",
        gpu_names(task.get("gpus") or ()) or (needs(task["request"]) if task.get("request") else ""),
        since(task),
        reason(task),
    ]


def title(task: Json, room: int | None) -> str:
    name = task.get("name")
    command = " ".join(str(task.get("command") or "").split())
    words = f"{name}: {command}" if name and command else name or command
    if task.get("array_index") is not None:
        words = f"[{task['array_index']}] {words}"
    return cut(words, room)


def since(task: Json) -> str:
    return ago(task.get("ended_at") or task.get("started_at") or task.get("submitted_at"))


def reason(task: Json) -> str:
    """Why it waits, or why it failed. A start that can be foreseen is part of it."""
    words = str(task.get("reason") or "")
    if task["state"] == "failed" and not words:
        words = f"exit code {task.get('exit_code')}" if task.get("exit_code") is not None else ""
    if task["state"] == "queued" and task.get("estimated_start"):
        words = f"{words}; starts {ago(task['estimated_start'])}".lstrip("; ")
    if (task.get("attempt") or 0) > 1:
        words = f"attempt {task['attempt']}{', ' if words else ''}{words}"
    return words

"""`lab-gpu show`: everything about a task and its attempts."""

from __future__ import annotations

import argparse
from typing import Any

from lab_gpu.cli import frame, screen
from lab_gpu.core.units import format_duration, format_mib

SUMMARY = "everything about a task and its attempts"
EXAMPLES = ("lab-gpu show 12", "lab-gpu show @ --watch", "lab-gpu show 3-5 --json")
Json = dict[str, Any]
ATTEMPT_COLUMNS = (">TRY", "STATE", "ENDING", ">EXIT", "*GPUS", "STARTED", ">TOOK", "*DETAIL")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    frame.add_watch_flag(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    return frame.watch_tasks(args, "", draw)


def draw(document: Json | list[Json]) -> list[str]:
    tasks = document if isinstance(document, list) else [document]
    lines: list[str] = []
    for task in tasks:
        lines += ([""] if lines else []) + task_lines(task)
    return lines


def task_lines(task: Json) -> list[str]:
    state, style = screen.task_state(task)
    name = f" {task['name']}" if task.get("name") else ""
    reason = f": {task['reason']}" if task.get("reason") else ""
    title = screen.colour(f"task {task['id']}{name}", "bold")
    lines = [f"{title}  {screen.colour(state, style)}{reason}"]
    lines += [f"  {label:12}{text}" for label, text in facts(task) if text]
    if task["attempts"]:
        rows = [attempt_row(attempt) for attempt in task["attempts"]]
        width = screen.width()
        lines += [f"  {line}" for line in screen.table(rows, ATTEMPT_COLUMNS, width and width - 2)]
    return lines


def facts(task: Json) -> list[tuple[str, str]]:
    return [
        ("command", str(task["command"]).replace("\n", "\n" + " " * 14)),
        ("owner", str(task["owner"])),
        ("needs", needs(task["request"])),
        ("runs on", screen.gpu_names(task.get("gpus") or ()) or str(task.get("node") or "")),
        ("directory", str(task.get("workdir") or "")),
        ("environment", environment(task)),
        ("priority", str(task.get("priority") or "")),
        ("queue", str(task.get("queue") or "")),
        ("batch", batch(task)),
        ("after", after(task)),
        ("then", ", ".join(str(number) for number in task.get("dependents") or ())),
        ("limit", limit(task)),
        ("estimate", format_duration(task["estimate_s"]) if task.get("estimate_s") else ""),
        ("retries", retries(task)),
        ("pauses", pauses(task)),
        ("if lost", "not run again" if task.get("never_twice") else ""),
        ("silence", silence(task)),
        ("submitted", moment(task.get("submitted_at"))),
        (
            "next try" if task["attempts"] else "not before",
            moment(task.get("not_before")) if task["state"] == "queued" else "",
        ),
        ("may start", moment(task.get("estimated_start"))),
        ("started", moment(task.get("started_at"))),
        ("ended", moment(task.get("ended_at"))),
        ("exit code", "" if task.get("exit_code") is None else str(task["exit_code"])),
        ("log", str(task.get("log_path") or "")),
    ]


def needs(request: Json) -> str:
    words = [screen.needs(request)]
    if request.get("min_free_mib"):
        words.append(f"{format_mib(request['min_free_mib'])} free at the start")
    if request.get("max_util") is not None:
        words.append(f"no busier than {request['max_util']} %")
    return ", ".join(words)


def environment(task: Json) -> str:
    words = [str(task["env"])] if task.get("env") else []
    return " ".join(words + [f"{name}={text}" for name, text in (task.get("setenv") or {}).items()])


def batch(task: Json) -> str:
    if task.get("batch") is None:
        return ""
    index = f", index {task['array_index']}" if task.get("array_index") is not None else ""
    return f"{task['batch']}{index}"


def after(task: Json) -> str:
    return ", ".join(f"{each['id']}:{each['kind']} ({each['state']})" for each in task.get("after") or ())


def limit(task: Json) -> str:
    if not task.get("time_limit_s"):
        return ""
    fate = "stopped at it" if task.get("kill_at_limit") else "planned with, not stopped at it"
    return f"{format_duration(task['time_limit_s'])}, {fate}"


def silence(task: Json) -> str:
    most = task.get("no_output_limit_s")
    return f"stopped after {format_duration(most)} without output" if most else ""


def retries(task: Json) -> str:
    most = task.get("max_retries")
    return "unlimited" if most is None else str(most) if most else ""


def pauses(task: Json) -> str:
    """The rule by which a task that failed is tried again later."""
    rule = task.get("retry") or {}
    if not rule or rule.get("max_retries") == 0:
        return ""
    words = f"{format_duration(rule['pause_s'])} before a new try"
    every = rule.get("before_backoff")
    return f"{words}, {format_duration(rule['backoff_s'])} after every {every} failures" if every else words


def moment(iso: str | None) -> str:
    return f"{screen.local_time(iso)} ({screen.ago(iso)})" if iso else ""


def attempt_row(attempt: Json) -> list[screen.Cell]:
    code = attempt.get("exit_code")
    signal = f"signal {attempt['signal']}" if attempt.get("signal") else ""
    detail = [
        word for word in (signal, attempt.get("detail"), "outside" if attempt.get("outside") else "") if word
    ]
    return [
        str(attempt["number"]),
        attempt["state"],
        str(attempt.get("ending") or ""),
        "" if code is None else str(code),
        screen.gpu_names(attempt.get("gpus") or ()),
        screen.ago(attempt.get("started_at")),
        took(attempt),
        ", ".join(str(word) for word in detail),
    ]


def took(attempt: Json) -> str:
    began, ended = attempt.get("started_at"), attempt.get("ended_at")
    return format_duration(screen.instant(ended) - screen.instant(began)) if began and ended else ""

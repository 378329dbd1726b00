"""`lab-gpu edit`: changes priority, limits or needs of waiting tasks, name and limits of running ones."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import frame
from lab_gpu.cli.ids import ranges
from lab_gpu.cli.task_flags import BY_NAME, RESOURCE_KEYS, add_task_flags, given
from lab_gpu.core.errors import LabGpuError, Refused

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

SUMMARY = "change priority, limits or needs of a waiting task"
EXAMPLES = (
    "lab-gpu edit 12 --priority high",
    "lab-gpu edit 3-7 --mem 16G --gpu-type A100",
    "lab-gpu edit 12 --clear time-limit       # take a limit away",
)
EDITABLE = (
    "mem", "min_vram_gb", "gpus", "gpu_type", "gpu_ids", "exclusive", "node", "min_free_memory", "max_util",
    "priority", "time_limit", "estimate", "begin", "name", "retries", "kill_at_limit",
)  # fmt: skip
CLEARABLE = (
    "mem", "gpu_type", "gpu_ids", "node", "min_free_memory", "max_util",
    "time_limit", "estimate", "begin", "name",
)  # fmt: skip
Json = dict[str, Any]


def read_clear(word: str) -> str:
    name = word.lstrip("-").replace("-", "_")
    if name not in CLEARABLE:
        known = ", ".join(each.replace("_", "-") for each in CLEARABLE)
        raise Refused(f"cannot clear '{word}': it is none of {known}; name one of these")
    return name


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_ids(parser)
    add_task_flags(parser, EDITABLE)
    words = "take a limit, need or name away, such as time-limit"
    parser.add_argument("--clear", type=read_clear, action="append", default=[], metavar="FIELD", help=words)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    changes = changes_of(given(args), args.clear)
    if not changes:
        raise Refused("cannot edit nothing: no change is named; write one like --priority high")
    api = frame.master(args)
    ids = frame.task_ids(args.ids, api)
    changed, failed = apply(api, ids, changes)
    if args.json:
        frame.print_json(changed[0] if len(ids) == 1 and changed else changed)
    elif changed:
        noun = "task" if len(changed) == 1 else "tasks"
        frame.out(f"{noun} {ranges(task['id'] for task in changed)} changed")
    for problem in failed:
        frame.say(f"lab-gpu: {problem}")
    return max((problem.exit_code for problem in failed), default=0)


def changes_of(body: Json, clear: list[str]) -> Json:
    """By the words of PATCH: what a task needs stands in its request."""
    body = {**body, **{BY_NAME[name].key: [] if name == "gpu_ids" else None for name in clear}}
    changes: Json = {}
    request: Json = {}
    for key, value in body.items():
        if key == "mem_mib":
            request["vram_mib"] = value
        elif key in RESOURCE_KEYS:
            request[key] = value
        else:
            changes["not_before" if key == "begin_at" else key] = value
    return {**changes, "request": request} if request else changes


def apply(api: Api, ids: list[int], changes: Json) -> tuple[list[Json], list[LabGpuError]]:
    changed, failed = [], []
    for number in ids:
        try:
            changed.append(api.patch(f"/api/v1/tasks/{number}", changes))
        except LabGpuError as problem:
            failed.append(problem)
    return changed, failed

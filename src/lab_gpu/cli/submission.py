"""From a command line to one POST: layers of settings, the environment that goes along, what is said."""

from __future__ import annotations

import argparse
import os

from lab_gpu.cli import config, frame
from lab_gpu.cli.ids import ranges, resolve
from lab_gpu.cli.task_flags import BY_NAME, FIELDS, body_of, given, layered
from lab_gpu.core.errors import Refused
from lab_gpu.core.units import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from lab_gpu.cli.directives import Script
    from lab_gpu.cli.task_flags import Body
    from lab_gpu.client.transport import Api

    Json = dict[str, Any]
SCRIPT_ENDINGS = (".sh", ".bash", ".py")
SECRET_VARIABLES = ("LAB_GPU_TOKEN",)
BATCH_ANSWER_S = 120


def default_layers() -> list[Body]:
    """What environment and config files say of new tasks, read as flags are, the strongest first."""
    found = [_read_layer(origin, values) for origin, values in config.submit_layers()]
    log_root = config.setting("log_root")
    return [*found, {"log_root": log_root}] if log_root else found


def _read_layer(origin: str, values: Mapping[str, Any]) -> Body:
    read = {}
    for name, value in values.items():
        field = BY_NAME[name.replace("-", "_")]
        try:
            read[field.name] = field.read(value)
        except Refused as problem:
            raise Refused(f"{problem} (submit.{name} in {origin})") from None
    return body_of(read)


def task_of(args: argparse.Namespace) -> Body:
    """The one task that a command line describes: flags, then #LAB lines, then defaults."""
    flags = given(args)
    script = named_script((args.rest or args.command or [""])[0])
    command = "" if script and not args.rest else frame.command_text(args)
    body = layered([flags, *([script.flags()] if script else ()), *default_layers()])
    if script and not args.rest:
        command = script.command(elsewhere="workdir" in body, arguments=args.command[1:])
    return {"command": readable(command), **body}


def named_script(word: str) -> Script | None:
    """Most commands are no file; what reads scripts is loaded only for those that are, or should be."""
    if any(sign in word for sign in " \t\n") or not (os.path.isfile(word) or word.endswith(SCRIPT_ENDINGS)):
        return None
    from lab_gpu.cli.directives import script_at

    return script_at(word)


def readable(command: str) -> str:
    try:
        command.encode()
    except UnicodeEncodeError:
        raise Refused(
            "cannot submit this command: it holds bytes that are no UTF-8 text; rename the file"
        ) from None
    return command


def envelope(tasks: list[Body], dry_run: bool = False) -> Json:
    """The body of POST /tasks: the tasks, and where and with which environment they were submitted."""
    try:
        workdir = os.getcwd()
    except OSError:
        raise Refused("cannot submit from here: this directory is gone; change to another one") from None
    environment = sendable(os.environ)
    root = conda_root(environment)
    if root:
        for task in tasks:
            if "env" in task:
                task["conda_root"] = root
    body = {"tasks": tasks, "environment": environment, "workdir": workdir}
    return {**body, "dry_run": True} if dry_run else body


def sendable(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without our own secrets, and without what is no text."""
    kept = {name: text for name, text in environ.items() if name not in SECRET_VARIABLES}
    try:
        "".join(kept.values()).encode()
        "".join(kept).encode()
    except UnicodeEncodeError:
        odd = [name for name, text in kept.items() if not (_is_text(text) and _is_text(name))]
        frame.say(f"lab-gpu: {', '.join(odd)!a} of your environment is no UTF-8 text and stays behind")
        return {name: text for name, text in kept.items() if name not in odd}
    return kept


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def conda_root(environ: Mapping[str, str]) -> str | None:
    """Where the person's conda lies, from the variable it sets in their shell."""
    program = environ.get("CONDA_EXE")
    return os.path.dirname(os.path.dirname(program)) if program else None


def settle_after(tasks: Iterable[Body], api: Api) -> None:
    """`@` among dependencies becomes the id it means."""
    for task in tasks:
        if any(isinstance(each["id"], str) for each in task.get("after", ())):
            task["after"] = [
                {"id": number, "kind": each["kind"]}
                for each in task["after"]
                for number in (resolve([each["id"]], api) if isinstance(each["id"], str) else [each["id"]])
            ]


def add(api: Api, tasks: list[Body]) -> Json:
    """Adds all of them in one transaction; warnings go to the person at once."""
    settle_after(tasks, api)
    answer: Json = api.post("/api/v1/tasks", envelope(tasks), timeout_s=BATCH_ANSWER_S)
    for warning in answer.get("warnings") or ():
        frame.say(f"lab-gpu: {warning}")
    return answer


def preview(args: argparse.Namespace, api: Api, tasks: list[Body]) -> int:
    """--dry-run: where each would start, or why it would not."""
    settle_after(tasks, api)
    answer = api.post("/api/v1/tasks", envelope(tasks, dry_run=True), timeout_s=BATCH_ANSWER_S)
    several = len(answer["would"]) > 1
    frame.show(
        args,
        answer,
        lambda doc: [
            line
            for number, would in enumerate(doc["would"], 1)
            for line in _would(would, f"{number}: " if several else "")
        ],
    )
    return 0


def _would(would: Json, before: str) -> list[str]:
    from lab_gpu.cli.screen import ago, gpu_names

    if would["start"]:
        place = gpu_names(would["gpus"]) or would.get("node") or "this machine, without a GPU"
        return [f"{before}would start now on {place}"]
    lines = [f"{before}would wait: {would.get('reason') or 'nothing is free'}"]
    if would.get("earliest_start"):
        lines.append(f"  earliest start {ago(would['earliest_start'])}")
    return lines + [f"  {advice}" for advice in would.get("advice") or ()]


def announce(api: Api, tasks: list[Json], body: Body) -> str:
    """One line about what became of a submit, and what to type next."""
    ids = [task["id"] for task in tasks]
    first = tasks[0]
    head = f"task {ids[0]}" if len(ids) == 1 else f"tasks {ranges(ids)} ({len(ids)})"
    if first["state"] == "queued" and first.get("reason"):
        return f"{head} queued: {first['reason']}{limit_words(api, body)}; lab-gpu why {ids[0]} tells more"
    if first["state"] == "failed":
        return f"{head} failed already: {first.get('reason') or 'it never started'}; lab-gpu show {ids[0]}"
    follow = f"lab-gpu logs -f {ids[0]}" if len(ids) == 1 else f"lab-gpu list {ranges(ids)}"
    return f"{head} submitted{limit_words(api, body)}; {follow}"


def failed_already(tasks: Iterable[Json]) -> bool:
    """What waits for a task that failed before can never start: it is queued and failed in one."""
    return any(task["state"] == "failed" for task in tasks)


def limit_words(api: Api, body: Body) -> str:
    """A time limit is a figure to plan with, unless it was asked to stop the task."""
    if not body.get("time_limit_s"):
        return ""
    limit = format_duration(body["time_limit_s"])
    if body.get("kill_at_limit") or api.get("/api/v1/policy")["policy"].get("enforce_time_limit"):
        return f"; it is stopped after {limit} of running"
    return f"; the plan counts on {limit} of running, it is not stopped then"


def field_names(*without: str) -> list[str]:
    return [field.name for field in FIELDS if field.name not in without]

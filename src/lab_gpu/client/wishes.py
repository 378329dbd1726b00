"""What a caller of the SDK asks for, turned into the bodies the master takes. Values are parsed here."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypedDict

from lab_gpu.core import units
from lab_gpu.core.errors import Refused
from lab_gpu.core.nearest import nearest

Size = str | int | float
Duration = str | int | float


class HasId(Protocol):
    @property
    def id(self) -> int: ...


class Needs(TypedDict, total=False):
    """What a task or lease needs of its GPUs, beside how many and how much. Sizes: "10G" or a number of GiB."""

    gpu_type: str | None
    gpu_ids: Sequence[int]
    exclusive: bool
    min_free_memory: Size | None
    max_util: int | None


class TaskOptions(Needs, total=False):
    """Everything a task may be given, named as the flags of `lab-gpu submit` are.

    `env` is a conda environment (name or path), the path of a venv, or a mapping of variables that are added to
    this process's own, as `setenv` is. `retries` None means without end.
    """

    gpus: int
    node: str | None
    name: str | None
    priority: str | int
    time_limit: Duration | None
    kill_at_limit: bool
    estimate: Duration | None
    begin: str | float | datetime | None
    after: int | str | HasId | Iterable[int | str | HasId]
    queue: str | None
    workdir: str | None
    env: str | Mapping[str, str] | None
    setenv: Mapping[str, str]
    retries: int | None
    backoff: Duration | None
    never_twice: bool
    no_output_limit: Duration | None
    log_root: str | None
    hold: bool


def lease_request(options: Mapping[str, Any]) -> dict[str, Any]:
    _check_names(options, {**Needs.__annotations__, "mem": Size, "gpus": int}, "lease")
    if options.get("gpus", 1) < 1:
        raise Refused(f"cannot lease {options['gpus']} GPUs: a lease holds at least one; ask for 1 or more")
    return resources_body(options)


def resources_body(options: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, field in (("mem", "mem_mib"), ("min_free_memory", "min_free_mib")):
        if options.get(name) is not None:
            body[field] = units.parse_size_mib(options[name])
    for name in ("gpus", "gpu_type", "exclusive", "max_util", "node"):
        if options.get(name) is not None:
            body[name] = options[name]
    if options.get("gpu_ids") is not None:
        body["gpu_ids"] = list(options["gpu_ids"])
        body.setdefault("gpus", len(body["gpu_ids"]))
    return body


def task_body(command: str | Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    _check_names(options, {**Needs.__annotations__, **TaskOptions.__annotations__, "mem": Size}, "task")
    body = {"command": _command_text(command), **resources_body(options)}
    for name, field, read in _READ:
        if options.get(name) is not None:
            body[field] = read(options[name])
    if "retries" in options:
        body["max_retries"] = options["retries"]
    return {**body, **_environment_fields(options)}


def submission(tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The tasks, with the directory and environment of this process."""
    environment = {name: value for name, value in os.environ.items() if name != "LAB_GPU_TOKEN"}
    conda = environment.get("CONDA_EXE")
    for task in tasks:
        if conda and "env" in task:
            task["conda_root"] = os.path.dirname(os.path.dirname(conda))
    readable = {name: value for name, value in environment.items() if _is_text(name + value)}
    return {"tasks": list(tasks), "environment": readable, "workdir": os.getcwd()}


def commands_of(
    commands: str | Iterable[str | Sequence[str]], params: Iterable[Mapping[str, object]] | None
) -> list[str | Sequence[str]]:
    """Many commands, or one with `{name}` in it and the values to put there, each quoted for the shell."""
    if params is None:
        return [commands] if isinstance(commands, str) else list(commands)
    if not isinstance(commands, str):
        raise TypeError("with params, map() takes one command with {name} in it")
    return [_filled(commands, values) for values in params]


def _filled(template: str, values: Mapping[str, object]) -> str:
    if not isinstance(values, Mapping):
        raise TypeError(f"each of params names its values, as in {{'seed': 1}}; {values!r} does not")
    for name in values:
        if f"{{{name}}}" not in template:
            raise Refused(
                f"cannot fill in {name!r}: {{{name}}} is not in the command; write it where it belongs"
            )
    # Value by value at its place, so that a value with braces in it is left alone.
    pieces, at = [], 0
    while at < len(template):
        found = next((name for name in values if template.startswith(f"{{{name}}}", at)), None)
        pieces.append(template[at] if found is None else shlex.quote(str(values[found])))
        at += 1 if found is None else len(found) + 2
    return "".join(pieces)


def _command_text(command: str | Sequence[str]) -> str:
    text = command if isinstance(command, str) else shlex.join(command)
    if not text.strip():
        raise Refused("cannot run nothing: the command is empty; give one")
    if not _is_text(text):
        raise Refused("cannot submit this command: it holds bytes that are no UTF-8 text; rename the file")
    return text


def _environment_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    env, fields = options.get("env"), {}
    variables = dict(options.get("setenv") or {})
    if isinstance(env, str):
        fields["env"] = env
    elif env is not None:
        variables = {**env, **variables}
    return {**fields, "setenv": variables} if variables else fields


def _after(value: int | str | HasId | Iterable[int | str | HasId]) -> list[dict[str, Any]]:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_dependency(each) for each in value]
    return [_dependency(value)]


def _dependency(value: int | str | HasId) -> dict[str, Any]:
    if isinstance(value, str):
        number, _, kind = value.partition(":")
        if not number.isdigit() or kind not in ("", "ok", "fail", "any"):
            raise Refused(
                f"cannot read the dependency {value!r}: write it like 12, '12:ok', '12:fail' or '12:any'"
            )
        return {"id": int(number), "kind": kind or "ok"}
    return {"id": value if isinstance(value, int) else value.id, "kind": "ok"}


def _begin(value: str | float | datetime) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, str):
        return units.parse_begin(value, time.time(), lambda at: float(time.localtime(at).tm_gmtoff))
    return float(value)


def _path(value: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(os.fspath(value)))


_READ: tuple[tuple[str, str, Any], ...] = (
    ("name", "name", str),
    ("priority", "priority", units.parse_priority),
    ("time_limit", "time_limit_s", units.parse_duration_s),
    ("kill_at_limit", "kill_at_limit", bool),
    ("estimate", "estimate_s", units.parse_duration_s),
    ("begin", "begin_at", _begin),
    ("after", "after", _after),
    ("queue", "queue", str),
    ("workdir", "workdir", _path),
    ("backoff", "retry_pause_s", units.parse_duration_s),
    ("never_twice", "never_twice", bool),
    ("no_output_limit", "no_output_limit_s", units.parse_duration_s),
    ("log_root", "log_root", _path),
    ("hold", "held", bool),
)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_names(options: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in options:
        if name not in known:
            close = nearest(name, known)
            advice = f"; did you mean {close!r}?" if close else ""
            raise TypeError(f"a {what} has no option {name!r}{advice}")

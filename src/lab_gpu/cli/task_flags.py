"""What a person may say about a task: one table for flags, #LAB lines, `submit:` settings and task files."""

from __future__ import annotations

import argparse
import os

from lab_gpu.cli.frame import completes, whole_number
from lab_gpu.core.errors import Refused
from lab_gpu.core.units import (
    parse_array,
    parse_begin,
    parse_duration_s,
    parse_ids,
    parse_priority,
    parse_size_mib,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Body = dict[str, Any]

TRUE_WORDS, FALSE_WORDS = frozenset(("true", "yes", "on", "1")), frozenset(("false", "no", "off", "0"))
AFTER_KINDS = ("ok", "fail", "any")
LIMIT_WORDS = "the run time to plan with: seconds, 30m, 2h30m, HH:MM:SS"
BEGIN_WORDS = "not before 22:00, 2026-11-20T08:00, +2h, tomorrow 08:00"
AFTER_WORDS = "only once these tasks have ended so"
_SLURM_KINDS = {"afterok": "ok", "afternotok": "fail", "afterany": "any"}


class Field:
    """One thing to say: its name in files, its flags, its key in the API, and how its text is read."""

    __slots__ = (
        "complete",
        "flags",
        "help",
        "key",
        "metavar",
        "name",
        "read",
        "section",
        "several",
        "switch",
    )

    def __init__(
        self,
        flags: str,
        key: str,
        read: Callable[[object], Any],
        metavar: str,
        help: str,
        complete: str = "",
        *,
        switch: bool = False,
        several: bool = False,
    ) -> None:
        self.flags = tuple(flags.split())
        self.name = self.flags[0].lstrip("-").replace("-", "_")
        self.key, self.read, self.metavar, self.help = key, read, metavar, help
        self.complete, self.switch, self.several = complete, switch, several
        self.section = ""


def read_memory(value: object) -> int:
    size_mib = parse_size_mib(_scalar(value))
    if size_mib < 1:
        raise Refused(f"cannot reserve '{value}' of memory: it is nothing; leave it away for whole GPUs")
    return size_mib


def read_size(value: object) -> int:
    return parse_size_mib(_scalar(value))


def read_time(value: object) -> float:
    seconds = parse_duration_s(_scalar(value))
    if seconds <= 0:
        raise Refused(f"cannot use a time of '{value}': it is nothing; write it like 90s or 2h30m")
    return seconds


def read_pause(value: object) -> float:
    return parse_duration_s(_scalar(value))


def read_priority(value: object) -> int:
    return parse_priority(str(_scalar(value)))


def read_text(value: object) -> str:
    text = str(_scalar(value)).strip()
    if not text:
        raise Refused("cannot use an empty word here: nothing stands in it; leave it away or fill it in")
    return text


def read_path(value: object) -> str:
    return os.path.abspath(os.path.expanduser(read_text(value)))


def read_environment_name(value: object) -> str:
    """A conda environment's name as it stands; a path made whole, since the master stands elsewhere."""
    text = read_text(value)
    return read_path(text) if "/" in text or text.startswith("~") or text == "." else text


def read_switch(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise Refused(f"cannot read '{value}': it is neither true nor false; write true or false")
    return word in TRUE_WORDS


def read_begin(value: object) -> float:
    import time

    return parse_begin(read_text(value), time.time(), lambda at: time.localtime(at).tm_gmtoff)


def read_retries(value: object) -> int | None:
    return None if str(value).strip().lower() == "unlimited" else whole_number("--retries")(value)


def read_gpu_ids(value: object) -> list[int]:
    """0,1 or 0-3 or [0, 1]: indices as nvidia-smi shows them."""
    indices: dict[int, None] = {}
    for piece in _listed(value):
        first, dash, last = piece.partition("-")
        if not (_digits(first) and (_digits(last) if dash else True)):
            raise Refused(
                f"cannot read GPU index '{piece}': it is not a whole number; write it like 0,1 or 0-3"
            )
        end = int(last) if dash else int(first)
        if not int(first) <= end < int(first) + 1024:
            raise Refused(
                f"cannot read GPU indices '{piece}': they run backwards or too far; write them like 0-3"
            )
        indices.update(dict.fromkeys(range(int(first), end + 1)))
    if not indices:
        raise Refused("cannot read GPU indices '': none is named; write them like 0,1 or 0-3")
    return list(indices)


def read_array(value: object) -> Body:
    first, last, step, limit = parse_array(read_text(value))
    return {"first": first, "last": last, "step": step, "limit": limit}


def read_after(value: object) -> list[Body]:
    """12, 3-7:any, @, or Slurm's afterok:12:13. A word that is no number is resolved by whoever knows it."""
    found: list[Body] = []
    for piece in _listed(value):
        words, kind = _after_kind(piece)
        for word in words:
            ids: list[int | str] = (
                [*parse_ids(word)] if word[:1].isdigit() and _digits(word.replace("-", "")) else [word]
            )
            found += [{"id": each, "kind": kind} for each in ids]
    if not found:
        raise Refused("cannot wait for no task: no id is in it; write it like 12 or 12:any")
    return found


def _after_kind(piece: str) -> tuple[list[str], str]:
    first, *rest = piece.split(":")
    if first in _SLURM_KINDS and rest:
        return rest, _SLURM_KINDS[first]
    if rest and rest[-1] not in AFTER_KINDS:
        raise Refused(
            f"cannot wait for '{piece}': '{rest[-1]}' is none of ok, fail, any; write it like 12:any"
        )
    return [first], rest[-1] if rest else "ok"


def read_setenv(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        pairs = [(str(name), str(_scalar(text))) for name, text in value.items()]
    else:
        words = value if isinstance(value, (list, tuple)) else [value]
        pairs = [_pair(str(word)) for word in words]
    for name, _ in pairs:
        if not (name.isidentifier() and name.isascii()):
            raise Refused(f"cannot set variable '{name}': that is no name for one; write it like NAME=value")
    return dict(pairs)


def _pair(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals and name not in os.environ:
        raise Refused(f"cannot set variable '{word}': it has no value here; write it like NAME=value")
    return name, text if equals else os.environ[name]


def _scalar(value: object) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        shown = (
            "nothing"
            if value is None
            else "true or false"
            if isinstance(value, bool)
            else "a list or mapping"
        )
        raise Refused(f"cannot read {shown} here: one word or number is wanted; correct it")
    return value


def _listed(value: object) -> list[str]:
    words = value if isinstance(value, (list, tuple)) else [value]
    return [piece for word in words for piece in str(_scalar(word)).replace(",", " ").split()]


def _digits(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16


def _section(title: str, *fields: Field) -> tuple[Field, ...]:
    for field in fields:
        field.section = title
    return fields


FIELDS: tuple[Field, ...] = (
    *_section(
        "what it needs",
        Field("--mem --gpu-memory", "mem_mib", read_memory, "SIZE", "VRAM per GPU: 10G, 10240M, 10 (GB)"),
        Field("--min-vram-gb", "mem_mib", read_memory, "GB", "the same, in GB"),
        Field("--gpus", "gpus", whole_number("--gpus", 0, 1024), "N", "GPUs, all on one node; 0 too (1)"),
        Field("--gpu-type", "gpu_type", read_text, "TYPE", 'such as A100 or "RTX 3090"'),
        Field("--gpu-ids", "gpu_ids", read_gpu_ids, "LIST", "only these; with --gpus N any N of them"),
        Field("--exclusive", "exclusive", read_switch, "", "share its GPUs with nobody", switch=True),
        Field("--node", "node", read_text, "NAME", "only on this node", complete="nodes"),
        Field("--min-free-memory", "min_free_mib", read_size, "SIZE", "start only where this much is free"),
        Field(
            "--max-util",
            "max_util",
            whole_number("--max-util", 0, 100),
            "PERCENT",
            "start only on idler GPUs",
        ),
    ),
    *_section(
        "when it starts",
        Field("--priority", "priority", read_priority, "P", "low, normal, high or -1000 to 1000"),
        Field("--time-limit -t --time", "time_limit_s", read_time, "TIME", LIMIT_WORDS),
        Field("--estimate", "estimate_s", read_time, "TIME", "how long it will likely take"),
        Field("--begin", "begin_at", read_begin, "WHEN", BEGIN_WORDS),
        Field(
            "--after --dependency",
            "after",
            read_after,
            "ID[:ok|fail|any]",
            AFTER_WORDS,
            "task_ids",
            several=True,
        ),
        Field("--queue -p", "queue", read_text, "NAME", "a named queue runs one by one", "queues"),
        Field("--hold", "held", read_switch, "", "wait for lab-gpu release", switch=True),
        Field("--array", "array", read_array, "0-9%4", "one task for each index, at most 4 at once"),
    ),
    *_section(
        "where and how it runs",
        Field("--name -J", "name", read_text, "NAME", "what to call it"),
        Field("--workdir -D", "workdir", read_path, "DIR", "where it runs (here)", "dirs"),
        Field("--env", "env", read_environment_name, "ENV", "conda environment or venv to activate"),
        Field("--setenv", "setenv", read_setenv, "K=V", "a variable of its environment", several=True),
        Field("--log-root", "log_root", read_path, "DIR", "where its log lies", "dirs"),
    ),
    *_section(
        "what ends it, and what follows",
        Field(
            "--retries --max-retries",
            "max_retries",
            read_retries,
            "N",
            "tries after a failure, or unlimited (0)",
        ),
        Field("--backoff", "retry_pause_s", read_pause, "TIME", "pause before it is tried again"),
        Field(
            "--never-twice",
            "never_twice",
            read_switch,
            "",
            "never again once begun, even when lost",
            switch=True,
        ),
        Field("--kill-at-limit", "kill_at_limit", read_switch, "", "stop it at its time limit", switch=True),
        Field(
            "--no-output-limit",
            "no_output_limit_s",
            read_time,
            "TIME",
            "stop it after so long without output",
        ),
    ),
)
BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
BY_NAME |= {
    flag.lstrip("-").replace("-", "_"): field for field in FIELDS for flag in field.flags if flag[1] == "-"
}
RESOURCE_KEYS = frozenset(("gpus", "gpu_type", "gpu_ids", "exclusive", "node", "min_free_mib", "max_util"))


def add_task_flags(parser: argparse.ArgumentParser, names: Iterable[str] | None = None) -> None:
    """The flags of these fields (all); those that are not given leave no trace in the namespace."""
    wanted = None if names is None else frozenset(names)
    groups: dict[str, Any] = {}
    for field in FIELDS:
        if wanted is not None and field.name not in wanted:
            continue
        if field.section not in groups:
            groups[field.section] = parser.add_argument_group(field.section)
        _add_flag(groups[field.section], field)


def _add_flag(group: Any, field: Field) -> None:
    if field.switch:
        unsaid = {"dest": field.name, "default": argparse.SUPPRESS}
        group.add_argument(*field.flags, action="store_true", help=field.help, **unsaid)
        no = f"--no-{field.flags[0][2:]}"
        group.add_argument(no, action="store_false", help=argparse.SUPPRESS, **unsaid)
        return
    action = group.add_argument(
        *field.flags,
        dest=field.name,
        type=str if field.several else field.read,
        action="append" if field.several else "store",
        default=argparse.SUPPRESS,
        metavar=field.metavar,
        help=field.help.replace("%", "%%"),
    )
    if field.complete:
        completes(action, field.complete)


def given(args: argparse.Namespace) -> Body:
    """What the flags say, by the API's keys."""
    said = vars(args)
    return body_of(
        {
            field.name: (field.read(said[field.name]) if field.several else said[field.name])
            for field in FIELDS
            if field.name in said
        }
    )


def body_of(values: Mapping[str, Any]) -> Body:
    """Read values by field name -> by the API's keys. Two names of one key would hide one another."""
    body: Body = {}
    for name, value in values.items():
        key = BY_NAME[name].key
        if key in body:
            raise Refused("cannot take both mem and min_vram_gb: they mean the same; give one of them")
        body[key] = value
    return body


def layered(layers: Iterable[Body]) -> Body:
    """The strongest layer first. Variables are joined name by name, everything else is replaced."""
    body: Body = {}
    for layer in layers:
        for key, value in layer.items():
            if key == "setenv":
                body[key] = {**value, **body.get(key, {})}
            else:
                body.setdefault(key, value)
    if "gpu_ids" in body:
        body.setdefault("gpus", len(body["gpu_ids"]))
    return body

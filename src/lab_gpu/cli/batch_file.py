"""A file of tasks in JSON, JSONL or YAML: every mistake is named with its line, all or none is taken."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lab_gpu.cli.task_flags import BY_NAME, Field, read_after
from lab_gpu.core.errors import Refused
from lab_gpu.core.nearest import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lab_gpu.cli.task_flags import Body

COMMAND_NAMES = ("cmd", "command")
YAML_ENDINGS, JSON_ENDINGS = (".yaml", ".yml"), (".json", ".jsonl", ".ndjson")
MOST_PROBLEMS = 50
_SPREAD = ("cannot submit: ", "cannot wait for task ")
_CIRCLE = re.compile(r"tasks ((?:\d+, )*\d+)(?= )")
_OF_SUBMIT = re.compile(r"task (\d+) of this submit")


class Entry:
    """One task as the file says it. `line_of` finds the line of a field, and is asked only for mistakes."""

    __slots__ = ("line", "line_of", "said")

    def __init__(self, said: object, line: int, line_of: Callable[[str], int]) -> None:
        self.said, self.line, self.line_of = said, line, line_of


class Problems:
    """Mistakes as `file:line: words`, all of them told at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[tuple[int, str]] = []
        self.torn = False  # there is a task that could not be read at all

    def add(self, line: int, words: str) -> None:
        self.lines.append((line, f"{self.name}:{line}: {words}"))

    def raise_any(self) -> None:
        if self.lines:
            raise self.refusal()

    def refusal(self) -> Refused:
        self.lines.sort(key=lambda each: each[0])
        count = len(self.lines)
        shown = [text for _, text in self.lines[:MOST_PROBLEMS]]
        if count > MOST_PROBLEMS:
            shown.append(f"and {count - MOST_PROBLEMS} more")
        noun = "mistake" if count == 1 else "mistakes"
        return Refused(
            f"cannot submit {self.name}: it has {count} {noun} and none of it was queued; correct it",
            tuple(shown),
        )


def read_tasks(path: str) -> tuple[list[Body], list[int]]:
    """The tasks by the API's keys, and the line on which each begins. `-` is standard input."""
    name = "standard input" if path == "-" else path
    text = _text_of(path, name)
    problems = Problems(name)
    entries = list(_entries(path, text, problems))
    if not entries:
        problems.raise_any()
        raise Refused(
            f'cannot submit {name}: there is no task in it; write one as {{"cmd": "python train.py"}}'
        )
    bodies = _bodies(entries, problems)
    problems.raise_any()
    return bodies, [entry.line for entry in entries]


def _text_of(path: str, name: str) -> str:
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode("utf-8-sig")
        with open(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"cannot read {name}: byte {error.start} is no UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise Refused(f"cannot read {name}: {error.strerror}; check the path") from None


def _entries(path: str, text: str, problems: Problems) -> Iterator[Entry]:
    ending = os.path.splitext(path)[1].lower()
    start = text.lstrip()[:1]
    if ending in YAML_ENDINGS or (ending not in JSON_ENDINGS and start not in ("{", "[")):
        from lab_gpu.cli.batch_yaml import yaml_entries

        return yaml_entries(text, problems)
    from lab_gpu.cli.batch_json import JsonText

    return JsonText(text, problems).entries()


def _bodies(entries: list[Entry], problems: Problems) -> list[Body]:
    reader = _TaskReader(entries, problems)
    return [reader.body(entry) for entry in entries]


class _TaskReader:
    """Reads entries into bodies. Equal words are read once: files of thousands of tasks repeat a few."""

    def __init__(self, entries: list[Entry], problems: Problems) -> None:
        self.entries = entries
        self.problems = problems
        self.all_there = not problems.torn  # else a name may be that of a task that could not be read
        self._read: dict[tuple[str, type, Any], Any] = {}
        self._places: dict[str, int] | None = None

    def body(self, entry: Entry) -> Body:
        if not isinstance(entry.said, dict):
            self.problems.add(entry.line, 'a task must be an object such as {"cmd": "python train.py"}')
            return {}
        body: Body = {}
        for name, value in entry.said.items():
            try:
                self._take(body, str(name), value)
            except Refused as problem:
                self.problems.add(entry.line_of(str(name)), str(problem))
        if "command" not in body and not any(name in entry.said for name in COMMAND_NAMES):
            self.problems.add(entry.line, "cmd is missing: every task needs a command")
        if "gpu_ids" in body:
            body.setdefault("gpus", len(body["gpu_ids"]))
        return body

    def _take(self, body: Body, name: str, value: Any) -> None:
        if name in COMMAND_NAMES:
            _put(body, "command", _command(value), "cmd and command")
            return
        field = BY_NAME.get(name) or BY_NAME.get(name.replace("-", "_"))
        if field is None:
            raise _unknown(name)
        if value is not None:
            _put(body, field.key, self._value(field, value), "mem and min_vram_gb")

    def _value(self, field: Field, value: Any) -> Any:
        if field.key == "after":
            return self._after(value)
        if not isinstance(value, (str, int, float)) or field.key == "setenv":
            return field.read(value)
        known = (field.name, type(value), value)
        if known not in self._read:
            self._read[known] = field.read(value)
        return self._read[known]

    def _after(self, value: Any) -> list[Body]:
        """Ids, or names of tasks of this file: those get their number when all are queued."""
        found: list[Body] = []
        for each in value if isinstance(value, list) else [value]:
            name, colon, kind = str(each).rpartition(":")
            if str(each) in self._named():
                found.append({"id": -self._named()[str(each)], "kind": "ok"})
            elif colon and name in self._named() and kind in ("ok", "fail", "any"):
                found.append({"id": -self._named()[name], "kind": kind})
            else:
                found += read_after(each)
        odd = [each["id"] for each in found if isinstance(each["id"], str) and not each["id"].startswith("@")]
        if odd and self.all_there:
            raise Refused(
                f"cannot wait for '{odd[0]}': it is neither an id nor the name of a task of this file"
            )
        return found

    def _named(self) -> dict[str, int]:
        if self._places is None:
            self._places = {}
            for place, entry in enumerate(self.entries, 1):
                name = entry.said.get("name") if isinstance(entry.said, dict) else None
                if isinstance(name, str) and not name.isdigit():
                    self._places.setdefault(name, place)
        return self._places


def _put(body: Body, key: str, value: Any, names: str) -> None:
    if key in body:
        raise Refused(f"cannot take both {names}: they mean the same; give one of them")
    body[key] = value


def _command(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused("cannot run this command: it must be text that is not empty; write it in quotes")
    return value


def _unknown(name: str) -> Refused:
    close = nearest(name, [*COMMAND_NAMES, *BY_NAME])
    advice = f"did you mean {close}?" if close else "the fields are those of lab-gpu submit -h"
    return Refused(f"there is no field '{name}'; {advice}")


def with_lines(problem: Refused, sizes: list[tuple[int, int]], name: str) -> Refused:
    """The master counts tasks (`task 3: …`), a person reads lines (`tasks.json:7: …`).

    `sizes` has of each entry of the file its line and how many tasks it becomes.
    """
    told = Problems(name)
    for place in dict.fromkeys(_placed(words, sizes) for words in problem.problems):
        if place is None:
            return problem
        told.add(*place)
    return told.refusal() if told.lines else problem


def _placed(words: str, sizes: list[tuple[int, int]]) -> tuple[int, str] | None:
    """Line and words. What is wrong with all of them together stands at the first line it names."""
    entries = [line for line, _ in sizes]
    among = _CIRCLE.match(words)
    if among:
        lines = [_line_at(entries, number) for number in among[1].split(", ")]
        known = [line for line in lines if line]
        return (
            (known[0], f"tasks of lines {', '.join(map(str, known))}{words[among.end() :]}")
            if known
            else None
        )
    head, colon, rest = words.partition(": ")
    number = head.removeprefix("task ") if colon else ""
    if number.isdigit() and number != head:
        # What is checked last is checked when arrays have become their tasks.
        spread = [line for line, size in sizes for _ in range(size)] if rest.startswith(_SPREAD) else entries
        line = _line_at(spread, number)
        named = _OF_SUBMIT.sub(lambda found: f"the task of line {_line_at(spread, found[1])}", rest)
        return (line, named) if line else None
    return (entries[0], words) if len(entries) == 1 else None


def _line_at(lines: list[int], number: str) -> int | None:
    return lines[int(number) - 1] if 0 < int(number) <= len(lines) else None

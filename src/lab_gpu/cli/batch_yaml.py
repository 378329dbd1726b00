"""Tasks in YAML. Every word stays the text that was written: `no`, `12:30`, `010` mean what a flag would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from lab_gpu.cli.batch_file import Entry, Problems

NOTHING = ("", "null", "~", "Null", "NULL")


def yaml_entries(text: str, problems: Problems) -> Iterator[Entry]:
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        problems.add(mark.line + 1 if mark else 1, f"this is not YAML: {why}")
        return
    if root is None:
        return
    if isinstance(root, yaml.MappingNode):
        keys = {key.value: value for key, value in root.value}
        for key, _ in root.value:
            if "tasks" in keys and key.value != "tasks":
                problems.add(_line(key), f"there is no field '{key.value}' beside tasks")
        root = keys.get("tasks", root)
    if isinstance(root, yaml.SequenceNode):
        for node in root.value:
            yield _entry(node)
    elif isinstance(root, yaml.MappingNode):
        yield _entry(root)
    else:
        problems.add(_line(root), "tasks must be a list")


def _entry(node: Any) -> Entry:
    return Entry(_value(node), _line(node), lambda key: _line_of(node, key))


def _line_of(node: Any, key: str) -> int:
    lines = [_line(each) for each, _ in node.value if each.value == key]
    return lines[-1] if lines else _line(node)


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _value(node: Any) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(each) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _value(value) for key, value in node.value}
    plain = not node.style  # a quoted word is meant as it stands
    return None if plain and node.value in NOTHING else node.value

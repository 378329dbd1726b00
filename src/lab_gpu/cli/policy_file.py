"""Reads and checks a policy file before anybody is asked to use it: every mistake at once, with its line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from zoneinfo import ZoneInfo

import yaml

from lab_gpu.core.errors import Refused
from lab_gpu.core.policy import Policy, parse_policy

MOST_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """Only plain values: a tag that would build an object is a mistake like any other."""


def checked(path: str, knows_zone: Callable[[str], bool] | None = None) -> Policy:
    """The policy that the file says. Raises Refused, `problems` naming each mistake."""
    text = _text(path)
    try:
        root = yaml.compose(text, Loader=_Loader)
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _refused(path, [_place(error)]) from None
    lines = _lines(root)
    twice = [f"line {line}: {key}: it is given twice" for key, line in _repeated(root)]
    try:
        policy = parse_policy(document, knows_zone or is_zone)
    except Refused as refusal:
        found = refusal.problems or (str(refusal).removeprefix("cannot use the policy: "),)
        raise _refused(path, [*twice, *(_numbered(problem, lines) for problem in found)]) from None
    if twice:
        raise _refused(path, twice)
    return policy


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return False
    return True


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except UnicodeDecodeError:
        raise Refused(f"cannot use {path}: it is not a text in UTF-8; name a policy file in YAML") from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}; name a policy file that you may read") from None
    if len(text) > MOST_BYTES:
        raise Refused(f"cannot use {path}: it is larger than a MiB; name a policy file in YAML")
    return text


def _refused(path: str, problems: list[str]) -> Refused:
    count = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    return Refused(f"cannot use {os.path.basename(path)}: it has {count}; correct it:", tuple(problems))


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {what}" if mark else str(what)


def _pairs(root: yaml.Node | None) -> Iterable[tuple[str, int]]:
    if isinstance(root, yaml.MappingNode):
        for key, _ in root.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1


def _lines(root: yaml.Node | None) -> dict[str, int]:
    return dict(_pairs(root))


def _repeated(root: yaml.Node | None) -> list[tuple[str, int]]:
    seen: set[str] = set()
    return [pair for pair in _pairs(root) if pair[0] in seen or seen.add(pair[0])]  # type: ignore[func-returns-value]


def _numbered(problem: str, lines: dict[str, int]) -> str:
    line = lines.get(problem.partition(":")[0])
    return problem if line is None else f"line {line}: {problem}"

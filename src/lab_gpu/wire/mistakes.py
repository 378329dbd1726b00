"""What pydantic found wrong with a body, in words to act on: which task, which field, what is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from lab_gpu.core.ids import NODE_NAME_PATTERN, NODE_NAME_WORDS
from lab_gpu.core.nearest import nearest_first

_MUST_BE = {
    "number": "a whole number",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "an object of names and values",
    "model": "an object",
    "finite": "a number",
}
_AT = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def mistakes(errors: Iterable[Mapping[str, Any]], shape: object) -> tuple[str, ...]:
    """`shape` is the annotation of the body, from which known names are told; None where there is no body."""
    return tuple(dict.fromkeys(_sentence(error, shape) for error in errors))


def _sentence(error: Mapping[str, Any], shape: object) -> str:
    where, *path = error["loc"]
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', 'it cannot be read')}"
    if where != "body":
        return f"{path[0]} {_fault(error, None)}"
    task, path = _task_of(path)
    if error["type"] == "extra_forbidden":
        return task + _unknown(path, error["loc"][1:], shape)
    if not path:
        return task + (
            "the body is missing" if error["type"] == "missing" else f"this {_fault(error, shape)}"
        )
    return f"{task}{_dotted(path)} {_fault(error, _shape_at(shape, error['loc'][1:]))}"


def _task_of(path: list[str | int]) -> tuple[str, list[str | int]]:
    """A mistake in one of several tasks is told by the task's place, counted from 1."""
    if len(path) >= 2 and path[0] == "tasks" and isinstance(path[1], int):
        return f"task {path[1] + 1}: ", path[2:]
    return "", path


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _unknown(path: Sequence[str | int], loc: Sequence[str | int], shape: object) -> str:
    known = _names(_shape_at(shape, loc[:-1]))
    likely = nearest_first(str(path[-1]), known)[:1]
    hint = f"; the nearest is '{likely[0]}'" if likely else ""
    return f"there is no field '{_dotted(path)}'{hint}"


def _fault(error: Mapping[str, Any], shape: object) -> str:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"must be one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}"
    if kind == "too_short":
        return "must not be empty"
    if kind in ("string_too_short", "string_too_long"):
        return "must not be empty" if kind == "string_too_short" else "is too long"
    if kind == "string_pattern_mismatch" and context.get("pattern") == NODE_NAME_PATTERN:
        return NODE_NAME_WORDS
    if kind in _AT:
        words, key = _AT[kind]
        return f"must be {words} {context[key]:g}" if abs(context[key]) < 1e6 else "is out of range"
    if kind == "number_type" and float in _leaves(shape):
        return "must be a number"
    return f"must be {_MUST_BE.get(kind.split('_')[0], 'of another kind: ' + str(error.get('msg', kind)))}"


def _leaves(shape: object) -> tuple[object, ...]:
    inner = get_args(shape)
    return tuple(leaf for each in inner for leaf in _leaves(each)) if inner else (shape,)


def _shape_at(shape: object, loc: Sequence[str | int]) -> object:
    for step in loc:
        model = _model(shape)
        if isinstance(step, int):
            shape = next(iter(get_args(_without_none(shape))), None)
        elif model is not None and step in _by_name(model):
            shape = _by_name(model)[step]
        else:
            shape = next(iter(get_args(_without_none(shape))[1:]), None)
    return shape


def _without_none(shape: object) -> object:
    return next((each for each in get_args(shape) if get_args(each)), shape)


def _model(shape: object) -> type[BaseModel] | None:
    for leaf in _leaves(shape):
        if isinstance(leaf, type) and issubclass(leaf, BaseModel):
            return leaf
    return None


def _by_name(model: type[BaseModel]) -> dict[str, object]:
    return {each.alias or name: each.annotation for name, each in model.model_fields.items()}


def _names(shape: object) -> list[str]:
    model = _model(shape)
    return list(_by_name(model)) if model else []

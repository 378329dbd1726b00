"""A body that is wrong is answered in words: which task, which field, what was expected."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lab_gpu.core.nearest import nearest_first
from lab_gpu.wire.mistakes import mistakes
from lab_gpu.wire.nodes import NodeBody
from lab_gpu.wire.tasks import ActionsBody, ChangesBody, SubmitBody, WaitBody


def said(body: Any, shape: Any = SubmitBody) -> tuple[str, ...]:
    with pytest.raises(ValidationError) as invalid:
        shape.model_validate(body)
    return mistakes([{**error, "loc": ("body", *error["loc"])} for error in invalid.value.errors()], shape)


def task(**fields: Any) -> dict[str, Any]:
    return {"tasks": [{"command": "a"}, {"command": "b", **fields}]}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (task(mem_mib="10G"), "task 2: mem_mib must be a whole number"),
        (task(mem_mib=False), "task 2: mem_mib must be a whole number"),
        (task(mem_mib=1.5), "task 2: mem_mib must be a whole number"),
        (task(gpus=[1]), "task 2: gpus must be a whole number"),
        (task(gpus=1e300), "task 2: gpus must be a whole number"),
        (task(gpu_ids=[0, "x"]), "task 2: gpu_ids[1] must be a whole number"),
        (task(gpu_ids=3), "task 2: gpu_ids must be a list"),
        (task(time_limit_s="1h"), "task 2: time_limit_s must be a number"),
        (task(time_limit_s=float("nan")), "task 2: time_limit_s must be a number"),
        (task(exclusive=1), "task 2: exclusive must be true or false"),
        (task(name=7), "task 2: name must be text"),
        (task(setenv=[1]), "task 2: setenv must be an object of names and values"),
        (task(setenv={"A": 1}), "task 2: setenv.A must be text"),
        (task(after=[{"id": 1, "kind": "maybe"}]), "task 2: after[0].kind must be one of ok, fail, any"),
        (task(array={"first": 0}), "task 2: array.last is missing"),
        (task(mem=1), "task 2: there is no field 'mem'; the nearest is 'mem_mib'"),
        (
            task(array={"first": 0, "last": 1, "lst": 2}),
            "task 2: there is no field 'array.lst'; the nearest is 'last'",
        ),
        ({"tasks": []}, "tasks must not be empty"),
        ({"task": [], "tasks": [{"command": "a"}]}, "there is no field 'task'; the nearest is 'tasks'"),
        ([], "this must be an object"),
        ({"tasks": ["echo"]}, "task 1: this must be an object"),
    ],
)
def test_each_mistake_in_words(body: Any, sentence: str) -> None:
    assert sentence in said(body)


def test_whole_numbers_may_be_written_with_a_point_and_numbers_without() -> None:
    found = SubmitBody.model_validate(task(mem_mib=11.0, time_limit_s=60))
    assert (found.tasks[1].mem_mib, found.tasks[1].time_limit_s) == (11, 60.0)


def test_all_mistakes_are_told() -> None:
    assert len(said({"tasks": [{"comand": "a"}, {"command": 1}]})) == 3


def test_other_bodies_too() -> None:
    assert said({"action": "stop", "ids": [1]}, ActionsBody) == (
        "action must be one of cancel, retry, hold, release, top, preempt",
    )
    assert said({"ids": [1], "for": "some"}, WaitBody) == ("for must be one of all, any",)
    assert said({"request": {"mem_mib": 1}}, ChangesBody)[0].startswith("there is no field 'request.mem_mib'")


@pytest.mark.parametrize("name", ["a b", "a/b", "node-1:0", "-a", "a\n"])
def test_a_node_has_a_name_that_screens_can_show(name: str) -> None:
    assert NodeBody.model_validate({"name": "节点-1.gpu_2"}).name
    assert said({"name": name}, NodeBody) == (
        "name must be letters, digits, '.', '_' and '-', and begin with a letter or digit",
    )


def test_what_is_not_in_a_body_is_named_by_its_parameter() -> None:
    query = {"type": "greater_than_equal", "loc": ("query", "limit"), "ctx": {"ge": 1}, "msg": ""}
    path = {"type": "int_parsing", "loc": ("path", "id"), "msg": ""}
    word = {"type": "json_invalid", "loc": ("body", 3), "ctx": {"error": "Expecting value"}, "msg": ""}
    assert mistakes([query, path, word], None) == (
        "limit must be at least 1",
        "id must be a whole number",
        "the body is not JSON: Expecting value",
    )


def test_the_nearest_word_comes_first() -> None:
    assert nearest_first("mem_mb", ["gpus", "mem_mib", "name"])[0] == "mem_mib"

"""Files of tasks: JSON, JSONL and YAML mean the same, and every mistake is told with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.cli.batch_file import Problems, read_tasks, with_lines
from lab_gpu.cli.batch_json import JsonText
from lab_gpu.core.errors import Refused

SEED = """{
  "tasks": [
    {"cmd": "python exp1.py", "mem": "10G", "priority": "normal"},
    {"cmd": "python exp2.py", "min_vram_gb": 12, "priority": "high", "time_limit": 1200},
    {"cmd": "python exp3.py", "mem": "8G", "priority": "low", "env": "torch", "gpu_type": "RTX 3090"}
  ]
}
"""
SEED_BODIES = [
    {"command": "python exp1.py", "mem_mib": 10240, "priority": 0},
    {"command": "python exp2.py", "mem_mib": 12288, "priority": 100, "time_limit_s": 1200.0},
    {"command": "python exp3.py", "mem_mib": 8192, "priority": -100, "env": "torch", "gpu_type": "RTX 3090"},
]


def read(tmp_path: Path, text: str, name: str = "tasks.json") -> tuple[list[dict[str, Any]], list[int]]:
    path = tmp_path / name
    path.write_text(text)
    return read_tasks(str(path))


def problems(tmp_path: Path, text: str, name: str = "tasks.json") -> list[str]:
    with pytest.raises(Refused) as refused:
        read(tmp_path, text, name)
    assert "; " in str(refused.value)
    return [words.removeprefix(f"{tmp_path}/") for words in refused.value.problems]


def test_the_documented_file(tmp_path: Path) -> None:
    assert read(tmp_path, SEED) == (SEED_BODIES, [3, 4, 5])


def test_a_list_jsonl_and_yaml_mean_the_same(tmp_path: Path) -> None:
    tasks = json.loads(SEED)["tasks"]
    assert read(tmp_path, json.dumps(tasks)) == (SEED_BODIES, [1, 1, 1])
    lines = "\n".join(json.dumps(task) for task in tasks)
    assert read(tmp_path, f"{lines}\n", "tasks.jsonl") == (SEED_BODIES, [1, 2, 3])
    yaml = """# three runs
tasks:
  - cmd: python exp1.py   # the first
    mem: 10G
    priority: normal
  - {cmd: python exp2.py, min_vram_gb: 12, priority: high, time_limit: 1200}
  - cmd: python exp3.py
    mem: 8G
    priority: low
    env: torch
    gpu_type: RTX 3090
"""
    assert read(tmp_path, yaml, "tasks.yaml") == (SEED_BODIES, [3, 6, 7])
    assert read(tmp_path, yaml, "tasks")[0] == SEED_BODIES


def test_every_field_by_the_name_of_its_flag(tmp_path: Path) -> None:
    task = {
        "command": "x", "gpus": 2, "gpu-ids": [0, 1, 3], "exclusive": True, "node": "n", "min_free_memory": "4G",
        "max_util": 20, "estimate": "10m", "after": [3, "4:any"], "queue": "q", "name": "run", "workdir": "/tmp",
        "setenv": {"A": 1, "B": "x"}, "retries": "unlimited", "backoff": "30s", "never_twice": "yes",
        "no_output_limit": "30m", "log_root": "/tmp/logs", "hold": False, "array": "0-3", "kill_at_limit": True,
        "gpu_type": None,
    }  # fmt: skip
    assert read(tmp_path, json.dumps([task]))[0] == [
        {
            "command": "x", "gpus": 2, "gpu_ids": [0, 1, 3], "exclusive": True, "node": "n", "min_free_mib": 4096,
            "max_util": 20, "estimate_s": 600.0, "after": [{"id": 3, "kind": "ok"}, {"id": 4, "kind": "any"}],
            "queue": "q", "name": "run", "workdir": "/tmp", "setenv": {"A": "1", "B": "x"}, "max_retries": None,
            "retry_pause_s": 30.0, "never_twice": True, "no_output_limit_s": 1800.0, "log_root": "/tmp/logs",
            "held": False, "array": {"first": 0, "last": 3, "step": 1, "limit": None}, "kill_at_limit": True,
        }
    ]  # fmt: skip


def test_tasks_wait_for_others_of_the_file_by_name(tmp_path: Path) -> None:
    tasks = [{"cmd": "a", "name": "prepare data"}, {"cmd": "b", "after": "prepare data"},
             {"cmd": "c", "after": ["prepare data:any", 7]}]  # fmt: skip
    bodies = read(tmp_path, json.dumps(tasks))[0]
    assert bodies[1]["after"] == [{"id": -1, "kind": "ok"}]
    assert bodies[2]["after"] == [{"id": -1, "kind": "any"}, {"id": 7, "kind": "ok"}]
    assert problems(tmp_path, '[{"cmd": "b", "after": "prepare"}]') == [
        "tasks.json:1: cannot wait for 'prepare': it is neither an id nor the name of a task of this file"
    ]


def test_yaml_words_are_what_was_written(tmp_path: Path) -> None:
    text = "- cmd: no\n  name: on\n  time_limit: 1:30:00\n  priority: 010\n  gpu_type: ~\n  hold: yes\n"
    assert read(tmp_path, text, "t.yml")[0] == [
        {"command": "no", "name": "on", "time_limit_s": 5400.0, "priority": 10, "held": True}
    ]


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    text = """{"tasks": [
  {"cmd": "a",
   "mem": "10X",
   "colour": 1},
  {"mem": "1G"},
  {"cmd": "b", "mem": "1G", "min_vram_gb": 2},
  7,
  {"cmd": "", "priority": "urgent",
   "gpus": true}
]}
"""
    assert problems(tmp_path, text) == [
        "tasks.json:3: cannot read size '10X': 'X' is no unit; write it like 10G or 10240M",
        "tasks.json:4: there is no field 'colour'; the fields are those of lab-gpu submit -h",
        "tasks.json:5: cmd is missing: every task needs a command",
        "tasks.json:6: cannot take both mem and min_vram_gb: they mean the same; give one of them",
        'tasks.json:7: a task must be an object such as {"cmd": "python train.py"}',
        "tasks.json:8: cannot run this command: it must be text that is not empty; write it in quotes",
        "tasks.json:8: cannot read priority 'urgent': it is neither a class nor a whole number; "
        "write it like low, normal, high or 50",
        "tasks.json:9: cannot read --gpus 'True': it is not a whole number; write it like --gpus 1",
    ]


def test_the_same_in_yaml(tmp_path: Path) -> None:
    text = "tasks:\n  - cmd: a\n    mem: 10X\n  - mem: 1G\n  - cmd: b\n    memm: 1G\nextra: 1\n"
    assert problems(tmp_path, text, "t.yaml") == [
        "t.yaml:3: cannot read size '10X': 'X' is no unit; write it like 10G or 10240M",
        "t.yaml:4: cmd is missing: every task needs a command",
        "t.yaml:6: there is no field 'memm'; did you mean mem?",
        "t.yaml:7: there is no field 'extra' beside tasks",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [('{"tasks": [\n {"cmd": "a"},\n {"cmd": }\n]}', 3), ('[{"cmd": "a"}\n {"cmd": "b"}]', 2),
     ('[{"cmd": "a"},\n]', 1), ('[{"cmd": "a"}', 1), ('{"cmd": "a"}\n{"cmd"', 2), ('{"tasks" [1]}', 1),
     ('[{"cmd": "a"}]\nrest', 2), ('{"tasks": {}}', 1), ("{1: 2}", 1), ("{", 1)],
)  # fmt: skip
def test_what_is_not_json_says_where(tmp_path: Path, text: str, line: int) -> None:
    assert problems(tmp_path, text)[0].startswith(f"tasks.json:{line}: ")


@pytest.mark.parametrize("text", ["a: [1\n", "- cmd: 'x\n", "\tx: 1\n", "just words\n"])
def test_what_is_not_yaml_says_where(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text, "t.yaml")[0].startswith("t.yaml:")


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": []}', "\n\n"])
def test_a_file_without_tasks_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Refused, match="there is no task in it; write one as "):
        read(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        Refused, match=r"^cannot read .*none\.json: No such file or directory; check the path$"
    ):
        read_tasks(str(tmp_path / "none.json"))
    (tmp_path / "latin.json").write_bytes(b'[{"cmd": "\xe4"}]')
    with pytest.raises(Refused, match="byte 10 is no UTF-8 text; save it as UTF-8"):
        read_tasks(str(tmp_path / "latin.json"))
    (tmp_path / "marked.json").write_bytes(b'\xef\xbb\xbf[{"cmd": "x"}]')
    assert read_tasks(str(tmp_path / "marked.json"))[0] == [{"command": "x"}]


def test_thousands_of_mistakes_are_counted_not_printed(tmp_path: Path) -> None:
    found = problems(tmp_path, json.dumps([{"mem": "1G"}] * 200))
    assert len(found) == 51
    assert found[-1] == "and 150 more"


def test_all_broken_lines_of_jsonl_are_told(tmp_path: Path) -> None:
    text = '{"cmd": "a"\n{"cmd": "b"}\nnot JSON\nnor this\n{"cmd": }\n{"cmd": "c", "x": 1}\n{"cmd": "d'
    found = problems(tmp_path, text, "t.jsonl")
    assert [each.split(":")[1] for each in found] == ["1", "3", "4", "5", "6", "7"]


def test_the_masters_problems_get_lines() -> None:
    lines = [(3, 1), (7, 1)]
    told = with_lines(Refused("cannot submit: task 2: x", ("task 2: no such folder: /x",)), lines, "t.json")
    assert told.problems == ("t.json:7: no such folder: /x",)
    assert str(told) == "cannot submit t.json: it has 1 mistake and none of it was queued; correct it"
    for words in ("something else", "task 9: x", "task x: y"):
        asked = Refused("cannot submit", (words,))
        assert with_lines(asked, lines, "t.json") is asked


@pytest.mark.parametrize(
    ("words", "sizes", "told"),
    [("tasks 1, 2 wait for each other in a circle; x", [(3, 1), (7, 1)],
      "t.json:3: tasks of lines 3, 7 wait for each other in a circle; x"),
     ("cannot wait for task 99: there is none", [(4, 1)], "t.json:4: cannot wait for task 99: there is none"),
     ("task 4: cannot wait for task 99: there is none", [(3, 3), (7, 1)],
      "t.json:7: cannot wait for task 99: there is none"),
     ("task 2: cannot submit: no GPU has 900 GiB", [(3, 3)], "t.json:3: cannot submit: no GPU has 900 GiB"),
     ("task 1: cannot wait for task 2 of this submit: it comes later; put it first", [(3, 1), (7, 1)],
      "t.json:3: cannot wait for the task of line 7: it comes later; put it first")],
)  # fmt: skip
def test_what_the_master_found_has_its_line(words: str, sizes: list[tuple[int, int]], told: str) -> None:
    assert with_lines(Refused("cannot submit", (words,)), sizes, "t.json").problems == (told,)


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
objects = st.dictionaries(st.text(max_size=5), leaves | st.lists(leaves, max_size=3), max_size=4)


@given(st.lists(objects, max_size=6), st.sampled_from([None, 0, 2]), st.booleans())
def test_the_walk_sees_what_the_parser_sees(tasks: list[Any], indent: int | None, wrapped: bool) -> None:
    text = json.dumps({"tasks": tasks} if wrapped else tasks, indent=indent)
    told = Problems("t")
    entries = list(JsonText(text, told).entries())
    assert told.lines == []
    assert [entry.said for entry in entries] == tasks
    lines = text.split("\n")
    for entry in entries:
        for key in entry.said:
            assert json.dumps(key) in lines[entry.line_of(key) - 1]


@given(st.text(max_size=30))
def test_no_text_breaks_the_walk(text: str) -> None:
    list(JsonText(text, Problems("t")).entries())

"""Tables and words on the screen."""

from __future__ import annotations

import pytest

from lab_gpu.cli import screen
from lab_gpu.cli.ids import ranges
from lab_gpu.cli.waiting import epitaph, exit_code, summary, worst_code


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_colours_wanted", False)


def test_a_table_without_a_width_is_whole() -> None:
    assert screen.table([["1", "x" * 200, ""]], (">ID", "*TASK", "EMPTY")) == [
        "ID  TASK",
        f" 1  {'x' * 200}",
    ]


def test_a_table_fits_its_width() -> None:
    lines = screen.table([["1", "x" * 200, "y" * 40], ["2", "short", "z"]], (">ID", "*TASK", "*WHY"), 60)
    assert max(len(line) for line in lines) == 60
    assert all("…" in part for part in lines[1].split()[1:])


def test_fixed_columns_are_never_cut() -> None:
    lines = screen.table([["123456789", "x" * 50]], (">ID", "*TASK"), 10)
    assert lines[1].startswith("123456789  ")


def test_chinese_takes_two_columns() -> None:
    lines = screen.table([["训练", "b"], ["run", "b"]], ("TASK", "X"))
    assert lines == ["TASK  X", "训练  b", "run   b"]
    assert screen.cut("训练模型", 5) == "训练…"


def test_control_signs_never_reach_the_terminal() -> None:
    assert screen.cut("a\x1b[31mb\nc", None) == "a [31mb c"


def test_no_rows_no_head() -> None:
    assert screen.table([], ("A",)) == []


@pytest.mark.parametrize(
    ("environ", "tty", "wanted"),
    [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"CLICOLOR_FORCE": "1"}, False, True),
     ({"CLICOLOR_FORCE": "0"}, False, False), ({"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, True, False),
     ({"TERM": "dumb"}, True, False), ({"LAB_GPU_COLOR": "always"}, False, True),
     ({"LAB_GPU_COLOR": "never"}, True, False)],
)  # fmt: skip
def test_when_colours_are_wanted(
    environ: dict[str, str], tty: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from lab_gpu.cli import config

    for name in ("NO_COLOR", "CLICOLOR_FORCE", "LAB_GPU_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(config, "_read", None)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty, raising=False)
    assert screen._wants_colours() is wanted


def test_instants() -> None:
    assert screen.instant("1970-01-02T00:00:01.500Z") == 86401.5
    assert screen.instant("2026-11-19T10:00:00Z") == 1795082400


def test_needs_in_words() -> None:
    assert screen.needs({"gpus": 0}) == "no GPU"
    assert screen.needs({"gpus": 1}) == "1 GPU"
    assert screen.needs({"gpus": 1, "vram_mib": 10240}) == "10 GiB"
    words = screen.needs(
        {"gpus": 2, "vram_mib": 10240, "exclusive": True, "gpu_type": "A100", "gpu_ids": [0, 1], "node": "n"}
    )
    assert words == "2 x 10 GiB alone A100 on 0,1 at n"


def test_ranges() -> None:
    assert ranges([3, 4, 5, 9, 11, 12]) == "3-5,9,11-12"
    assert ranges([]) == ""
    assert ranges([5, 4]) == "5,4"


@pytest.mark.parametrize(
    ("state", "code", "result"),
    [("completed", 0, 0), ("completed", None, 0), ("failed", 3, 3), ("failed", None, 1), ("failed", 0, 1),
     ("failed", -9, 137), ("failed", 143, 143), ("cancelled", None, 1), ("failed", 700, 255)],
)  # fmt: skip
def test_exit_codes(state: str, code: int | None, result: int) -> None:
    assert exit_code({"state": state, "exit_code": code}) == result


def test_the_worst_of_several() -> None:
    ended = [
        {"state": "completed", "exit_code": 0},
        {"state": "failed", "exit_code": 7},
        {"state": "queued", "exit_code": None},
    ]
    assert worst_code(ended) == 7


def test_epitaphs_say_things_once() -> None:
    failed = {"id": 3, "state": "failed", "exit_code": 2, "reason": "exit code 2 after 4 attempts"}
    assert epitaph(failed) == "task 3 failed: exit code 2 after 4 attempts"
    assert epitaph({**failed, "reason": None}) == "task 3 failed with exit code 2"
    done = {"id": 1, "state": "completed", "exit_code": 0, "reason": None}
    assert summary([done]) == ["task 1 completed"]
    assert summary([done, failed]) == ["2 tasks: 1 completed, 1 failed", f"  {epitaph(failed)}"]

"""Settings: who wins, what is refused, and how one line of a file is changed without touching the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.cli import config
from lab_gpu.cli.submission import default_layers
from lab_gpu.cli.task_flags import layered
from lab_gpu.core.errors import Refused


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a repository in it, and no settings but the test's."""
    repository = tmp_path / "project" / "deep"
    repository.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    for name in ("LAB_GPU_HOST", "LAB_GPU_LOG_ROOT", "LAB_GPU_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(config, "SYSTEM_FILE", str(tmp_path / "etc.yaml"))
    monkeypatch.setattr(config, "_read", None)
    monkeypatch.chdir(repository)
    return tmp_path


def user_file(text: str) -> None:
    path = Path(config.user_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_nearer_place_wins(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "etc.yaml").write_text("host: system\nlog_root: /system\ncolor: never\n")
    user_file("host: mine\nlog_root: /mine\n")
    (alone / "project" / "lab-gpu.yaml").write_text("log_root: /project\n")
    assert (config.setting("host"), config.setting("log_root"), config.setting("color")) == (
        "mine",
        "/project",
        "never",
    )
    monkeypatch.setenv("LAB_GPU_LOG_ROOT", "/said")
    monkeypatch.setattr(config, "_read", None)
    assert config.setting("log_root") == "/said"


def test_defaults_of_tasks_come_from_every_place(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file(
        "submit:\n  mem: 4G\n  gpus: 2\n  exclusive: true\n  setenv:\n    A: 1\n    B: 2\nlog_root: ~/logs\n"
    )
    (alone / "project" / "lab-gpu.yaml").write_text("submit:\n  min_vram_gb: 8\n  setenv: B=3\n")
    monkeypatch.setenv("LAB_GPU_SUBMIT__GPUS", "4")
    assert layered(default_layers()) == {
        "gpus": 4,
        "mem_mib": 8192,
        "exclusive": True,
        "setenv": {"A": "1", "B": "3"},
        "log_root": f"{alone}/logs",
    }


def test_a_project_ends_at_its_repository(alone: Path) -> None:
    (alone / "lab-gpu.yaml").write_text("color: never\n")
    assert config.project_file() is None


def test_a_project_does_not_choose_the_master(alone: Path) -> None:
    (alone / "project" / "lab-gpu.yaml").write_text("host: evil\n")
    with pytest.raises(
        Refused, match=r"^cannot take host from .*: a project must not decide .*; use `lab-gpu config"
    ):
        config.layers()


@pytest.mark.parametrize(
    ("text", "words"),
    [("hots: x\n", "config.yaml:1: there is no setting 'hots'; did you mean host?"),
     ("# a\nsubmit:\n  memm: 4G\n", "config.yaml:3: there is no setting 'submit.memm'; did you mean submit.mem?"),
     ("mem: 4G\n", "did you mean submit.mem?"),
     ("host: [1\n", "config.yaml:2: "),
     ("- a\n", "it holds no settings by name")],
)  # fmt: skip
def test_mistakes_name_file_and_line(text: str, words: str) -> None:
    user_file(text)
    with pytest.raises(Refused) as refused:
        config.layers()
    assert words in str(refused.value)


def test_values_are_read_as_flags_are() -> None:
    user_file("submit:\n  mem: 10X\n")
    with pytest.raises(Refused, match=r"cannot read size '10X'.*\(submit.mem in .*config.yaml\)$"):
        default_layers()


def test_an_unknown_colour_is_refused() -> None:
    user_file("color: sometimes\n")
    with pytest.raises(Refused, match="it is none of auto, always, never"):
        config.setting("color")


def test_the_quick_reader_and_yaml_agree() -> None:
    texts = [
        "host: gpubox:1895\n",
        "# c\n\nhost: gpubox  # here\nsubmit:\n  mem: 10G\n  gpu_type: RTX 3090\nlog_root: ~/x\n",
        "submit:\n    begin: 22:00\n    setenv: A=1\n",
    ]
    for text in texts:
        plain = config._read_plain(text)
        assert plain == config._read_yaml("f", text), text
        assert plain is not None
    for text in [
        "host: 'x'\n",
        "host: [a]\n",
        "host: a: b\n",
        "a:\n  b:\n    c: 1\n",
        "submit: {mem: 1}\n",
        "host: null\n",
    ]:
        assert config._read_plain(text) is None, text


BEFORE = "# mine\nhost: old   # the box\n\nsubmit:\n  # memory\n  mem: 4G\n  gpus: 2\nlog_root: /x\n"


@pytest.mark.parametrize(
    ("key", "value", "after"),
    [("host", "new:1", BEFORE.replace("old   # the box", "new:1")),
     ("host", None, BEFORE.replace("host: old   # the box\n", "")),
     ("submit.mem", "8G", BEFORE.replace("4G", "8G")),
     ("submit.mem", None, BEFORE.replace("  mem: 4G\n", "")),
     ("submit.name", "a: b", BEFORE.replace("submit:\n", 'submit:\n  name: "a: b"\n')),
     ("color", "never", f"{BEFORE}color: never\n"),
     ("color", None, BEFORE)],
)  # fmt: skip
def test_one_line_is_changed_and_the_others_stay(key: str, value: str | None, after: str) -> None:
    user_file(BEFORE)
    config.change_file(config.user_file(), key, value)
    assert Path(config.user_file()).read_text() == after
    found = config.read_file(config.user_file())
    assert found is not None
    assert found.get(key) == value


def test_the_first_setting_makes_file_and_folder() -> None:
    config.change_file(config.user_file(), "submit.mem", "8G")
    assert Path(config.user_file()).read_text() == "submit:\n  mem: 8G\n"


def test_a_file_in_another_style_is_left_alone() -> None:
    user_file("{host: old, submit: {mem: 4G}}\n")
    with pytest.raises(Refused, match="it has no lines of its own there; edit the file yourself"):
        config.change_file(config.user_file(), "host", "new")
    assert Path(config.user_file()).read_text() == "{host: old, submit: {mem: 4G}}\n"


def test_a_null_is_nothing_and_a_quoted_one_is_a_word() -> None:
    text = 'host: null\nlog_root: ~\nsubmit:\n  mem:\n  name: "null"\n  queue: "~"\n'
    assert config._read_yaml("f", text) == {"submit.name": "null", "submit.queue": "~"}


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(str.strip))
def test_any_value_survives_the_file(value: str) -> None:
    text = config._changed("", "submit.name", value)
    plain = config._read_plain(text)
    assert (config._read_yaml("f", text) if plain is None else plain) == {"submit.name": value}

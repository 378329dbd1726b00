"""Scripts: how they are run, and the flags in their `#LAB` lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab_gpu.cli.directives import Script, script_at
from lab_gpu.core.errors import Refused


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(here: Path, name: str, text: str, mode: int = 0o644) -> Script:
    (here / name).write_text(text)
    (here / name).chmod(mode)
    found = script_at(name)
    assert found is not None
    return found


def test_flags_of_the_head_are_read(here: Path) -> None:
    found = script(
        here,
        "a.sh",
        "#!/bin/bash\n# a run\n#LAB --mem 10G --gpus 2\n\n#LAB --name 'my run' # why not\necho hi\n",
    )
    assert found.flags() == {"mem_mib": 10240, "gpus": 2, "name": "my run"}


def test_a_later_line_wins_and_variables_add_up(here: Path) -> None:
    found = script(here, "a.sh", "#LAB --mem 10G --setenv A=1\n#LAB --min-vram-gb 4 --setenv B=2\n")
    assert found.flags() == {"mem_mib": 4096, "setenv": {"A": "1", "B": "2"}}


def test_lines_after_the_first_command_are_told_and_not_read(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = script(here, "a.sh", "#LAB --gpus 2\necho\n#LAB --gpus 4\n")
    assert found.flags() == {"gpus": 2}
    assert "a.sh:3 is not read" in capsys.readouterr().err


def test_words_that_only_look_like_a_directive_are_none(here: Path) -> None:
    assert script(here, "a.sh", "#LABEL --mem 1G\n# LAB --mem 2G\n").flags() == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [("--memm 10G", "did you mean --mem?"), ("--mem 10X", "cannot read size '10X'"), ("--name 'x", "quot"),
     ("python x", "one word too many"), ("--after 3:maybe", "none of ok, fail, any")],
)  # fmt: skip
def test_mistakes_name_file_and_line(here: Path, line: str, words: str) -> None:
    found = script(here, "a.sh", f"#!/bin/bash\n#LAB {line}\n")
    with pytest.raises(Refused, match=r"^cannot read a\.sh:2: ") as refused:
        found.flags()
    assert words in str(refused.value)


def test_how_scripts_are_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    assert script(here, "a.sh", "echo").command(elsewhere=False) == "bash a.sh"
    assert script(here, "b.sh", "#!/bin/zsh\n", 0o755).command(elsewhere=False) == "./b.sh"
    assert script(here, "c.sh", "#!/usr/bin/env zsh\n").command(elsewhere=False) == "/usr/bin/env zsh c.sh"
    assert script(here, "d.py", "#!/usr/bin/python3\n", 0o755).command(elsewhere=False) == "python d.py"
    assert script(here, "a b.sh", "echo").command(elsewhere=False) == "bash 'a b.sh'"
    assert script(here, "a.sh", "echo").command(elsewhere=True) == f"bash {here}/a.sh"
    (here / "bin" / "python3").write_text("")
    (here / "bin" / "python3").chmod(0o755)
    assert script(here, "d.py", "").command(elsewhere=False) == "python3 d.py"


def test_what_is_no_script(here: Path) -> None:
    (here / "train").write_bytes(b"\x7fELF")
    (here / "tool").write_text("#!/bin/sh\necho\n")
    assert script_at("train") is None
    assert script_at("tool") is None
    assert script_at("python train.py") is None
    assert script_at("nvidia-smi") is None


def test_a_script_without_ending_is_known_by_its_directives(here: Path) -> None:
    found = script(here, "tool", "#!/bin/sh\n#LAB --gpus 0\n", 0o755)
    assert found.flags() == {"gpus": 0}
    assert found.command(elsewhere=False) == "./tool"


def test_a_script_that_is_not_there(here: Path) -> None:
    with pytest.raises(
        Refused, match=r"^cannot submit train\.sh: there is no such file here; check the path$"
    ):
        script_at("train.sh")


def test_a_relative_path_keeps_its_folder(here: Path) -> None:
    os.mkdir("jobs")
    assert script(here, "jobs/a.sh", "#!/bin/sh\n", 0o755).command(elsewhere=False) == "jobs/a.sh"

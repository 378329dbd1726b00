"""What --env names is found as conda itself would find it, and an unknown name is answered with those there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab_gpu.core.errors import Refused
from lab_gpu.core.model import Activation
from lab_gpu.runner.environments import Environments
from lab_gpu.service import login_env


def conda(root: Path, *names: str) -> Path:
    for path in (root, *(root / "envs" / name for name in names)):
        (path / "conda-meta").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin" / "conda").touch(mode=0o755)
    return root


def venv(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "activate").touch()
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return conda(tmp_path / "tools" / "conda", "torch", "jax")


def test_a_name_is_found_by_the_hint_by_conda_exe_and_by_path(tmp_path: Path, root: Path) -> None:
    expected = Activation("conda", str(root / "envs" / "torch"), str(root))
    exe = str(root / "bin" / "conda")
    assert Environments({}, str(tmp_path)).find("torch", str(root), "/") == expected
    assert Environments({}, str(tmp_path)).find("torch", exe, "/") == expected
    assert Environments({"CONDA_EXE": exe}, str(tmp_path)).find("torch", None, "/") == expected
    assert Environments({"PATH": f"/bin:{root}/bin"}, str(tmp_path)).find("torch", None, "/") == expected


def test_the_usual_places_in_the_home_are_looked_at(tmp_path: Path) -> None:
    root = conda(tmp_path / "miniforge3", "own")
    assert Environments({}, str(tmp_path)).find("own", None, "/").path == str(root / "envs" / "own")
    assert Environments({}, str(tmp_path)).find("base", None, "/") == Activation(
        "conda", str(root), str(root)
    )


def test_environments_made_by_path_are_known_from_condas_list(tmp_path: Path, root: Path) -> None:
    elsewhere = tmp_path / "scratch" / "far"
    (elsewhere / "conda-meta").mkdir(parents=True)
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"/gone\n{elsewhere}\n")
    found = Environments({}, str(tmp_path)).find("far", str(root), "/")
    assert found == Activation("conda", str(elsewhere), str(root))


def test_a_path_is_a_conda_or_a_virtual_environment(tmp_path: Path, root: Path) -> None:
    own = venv(tmp_path / "work" / ".venv")
    look = Environments({}, str(tmp_path))
    assert look.find(str(own), None, "/") == Activation("venv", str(own))
    assert look.find("./.venv", None, str(tmp_path / "work")) == Activation("venv", str(own))
    assert look.find(".venv", None, str(tmp_path / "work")) == Activation("venv", str(own))
    assert look.find("~/work/.venv", None, "/") == Activation("venv", str(own))
    assert look.find(str(root / "envs" / "jax"), str(root), "/").kind == "conda"


def test_an_unknown_name_is_answered_with_those_there_are_nearest_first(tmp_path: Path, root: Path) -> None:
    with pytest.raises(Refused, match="no conda environment 'troch'; there are: torch, "):
        Environments({}, str(tmp_path)).find("troch", str(root), "/")


def test_without_any_conda_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab_gpu.runner.environments._USUAL_ROOTS", ("~/miniconda3",))
    with pytest.raises(Refused, match="no conda was found"):
        Environments({}, str(tmp_path)).find("x", None, "/")


def test_a_path_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(Refused, match="is no environment"):
        Environments({}, str(tmp_path)).find(str(tmp_path / "plain"), None, "/")
    with pytest.raises(Refused, match="there is no environment at"):
        Environments({}, str(tmp_path)).find("/no/such", None, "/")


def login_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/bash\n" + script)
    shell.chmod(0o755)
    start = {"HOME": str(tmp_path), "SHELL": str(shell), "PATH": "/usr/bin:/bin"}
    monkeypatch.setattr(login_env, "minimal", lambda uid: dict(start))


def test_the_login_shells_environment_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login_shell(
        tmp_path,
        monkeypatch,
        f"echo noise; echo >> {tmp_path}/runs; export A=$'x\\ny' LAB_GPU_TOKEN=t; eval \"$3\"",
    )
    ask = login_env.LoginEnvironment(0)
    found = ask()
    assert (found["A"], found["HOME"]) == ("x\ny", str(tmp_path))
    assert "LAB_GPU_TOKEN" not in found
    assert ask() is found
    assert (tmp_path / "runs").read_text() == "\n"


def test_a_login_shell_that_hangs_or_is_missing_costs_only_its_additions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login_shell(tmp_path, monkeypatch, "sleep 60")
    assert login_env.read(0, 0.1)["HOME"] == str(tmp_path)
    (tmp_path / "shell").unlink()
    assert login_env.read(0, 5)["HOME"] == str(tmp_path)


def test_a_real_login_gives_a_path() -> None:
    assert login_env.read(0, 10)["PATH"]

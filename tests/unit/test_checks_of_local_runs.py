"""What `agent run` works out around the command: its environment, its log, whether memory ran out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab_gpu.cli import local_env, local_log
from lab_gpu.core.errors import Refused
from lab_gpu.runner import oom_text


@pytest.fixture
def conda_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    root = tmp_path / "conda root"
    for folder in ("bin", "etc/profile.d", "conda-meta", "envs/mine/conda-meta", "envs/no-env"):
        (root / folder).mkdir(parents=True)
    (root / "bin/conda").touch()
    (root / "etc/profile.d/conda.sh").touch()
    return root


def test_a_conda_environment_by_name_and_by_path(conda_root: Path) -> None:
    environ = {"CONDA_EXE": str(conda_root / "bin/conda"), "PATH": ""}
    wanted = [
        f"source '{conda_root}/etc/profile.d/conda.sh' || exit",
        f"conda activate '{conda_root}/envs/mine' || exit",
    ]
    assert local_env.activation_lines("mine", environ) == wanted
    assert local_env.activation_lines(f"{conda_root}/envs/mine", environ) == wanted
    assert local_env.activation_lines("base", environ)[1] == f"conda activate '{conda_root}' || exit"


def test_conda_is_found_on_path_too(conda_root: Path) -> None:
    assert local_env.activation_lines("mine", {"PATH": f"/nowhere:{conda_root}/bin"})


def test_an_unknown_environment_names_those_there_are(conda_root: Path) -> None:
    with pytest.raises(Refused, match=r"cannot use the environment 'yours': .*; there are: base, mine$"):
        local_env.activation_lines("yours", {"PATH": f"{conda_root}/bin"})


def test_a_venv_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").touch()
    monkeypatch.chdir(tmp_path)
    assert local_env.activation_lines("./venv", {}) == [f"source {tmp_path}/venv/bin/activate || exit"]
    assert local_env.activation_lines("venv", {}) == [f"source {tmp_path}/venv/bin/activate || exit"]
    with pytest.raises(Refused, match="name the folder that holds bin/activate or conda-meta"):
        local_env.activation_lines("./venv/bin", {})


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text("old")
    (tmp_path / "1.2.log").write_text("older")
    path, log = local_log.opened(str(tmp_path), "1", {})
    os.close(log)
    assert path == str(tmp_path / "1.3.log") and (tmp_path / "1.log").read_text() == "old"


def test_in_another_masters_root_the_file_says_who_we_are(tmp_path: Path) -> None:
    mark, host = tmp_path / local_log.MARK, os.uname().nodename
    assert local_log.stem_of(7, str(tmp_path), "/h") == "7"
    mark.write_text(f"{host}:/h\n")
    assert local_log.stem_of(7, str(tmp_path), "/h") == "7"
    mark.write_text("elsewhere:/h\n")
    assert local_log.stem_of(7, str(tmp_path), "/h").endswith(f"@{host}")


def test_a_root_that_was_named_is_used_or_refused(tmp_path: Path) -> None:
    assert local_log.prepared_root(str(tmp_path / "a/b"), "/home") == str(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    for bad in ("/proc/logs", str(tmp_path / "file"), str(tmp_path / "file/x")):
        with pytest.raises(Refused, match=r"name another folder with --log-root$"):
            local_log.prepared_root(bad, "/home")


def test_without_a_name_the_first_usable_root_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_log, "LAB_ROOT", str(tmp_path / "nas"))
    home = str(tmp_path / "home")
    assert local_log.prepared_root(None, home, str(tmp_path / "offered")) == str(tmp_path / "offered")
    assert local_log.prepared_root(None, home, "/proc/logs") == f"{home}/logs"
    (tmp_path / "nas").mkdir()
    assert local_log.prepared_root(None, home) == str(tmp_path / "nas")


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB.",
        "torch.cuda.OutOfMemoryError: HIP out of memory",
        "RuntimeError: CUDA error: CUDA_ERROR_OUT_OF_MEMORY",
        "Cuda failure 'cudaErrorMemoryAllocation'",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,024 bytes",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying",
        "ResourceExhaustedError: OOM when allocating tensor with shape[1]",
    ],
)
def test_the_words_of_an_out_of_memory(tmp_path: Path, line: str) -> None:
    log = tmp_path / "1.log"
    log.write_text(f"epoch 1\r\n{line}\n")
    assert oom_text.log_ends_in_oom(str(log))


def test_words_that_only_look_like_it(tmp_path: Path) -> None:
    assert not oom_text.speaks_of_oom(b"grpc: RESOURCE_EXHAUSTED: quota of requests\nmemory is fine")
    log = tmp_path / "1.log"
    log.write_bytes(b"CUDA out of memory\n" + b"." * oom_text.TAIL_BYTES)
    assert not oom_text.log_ends_in_oom(str(log))
    assert not oom_text.log_ends_in_oom(str(tmp_path / "gone"))

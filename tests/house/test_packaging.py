"""Wheel and sdist carry what they must, and the wheel alone runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def build(kind: str, source: Path, into: Path) -> Path:
    """By the build backend itself: no isolation, so nothing is fetched."""
    code = f"import sys, hatchling.build as b; print(b.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, into], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the unpacked sdist, as a package index would have it built."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", sdist, "-C", unpacked], check=True)
    [folder] = unpacked.iterdir()
    return build("wheel", folder, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_holds_what_a_packager_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "pyproject.toml",
        "run_batch.sh",
        "scripts/up.py",
    }
    assert needed <= names
    assert any(name.startswith("tests/unit/") for name in names)
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "lab_gpu"
    wanted = {
        f"lab_gpu/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted <= names
    assert "lab_gpu/py.typed" in names and any(name.endswith(".sql") for name in names)
    assert not [name for name in names if name.startswith("tests/")]


def test_the_extras_are_those_of_the_manual(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(path).decode())
        [entry] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        commands = archive.read(entry).decode()
    required = metadata.get_all("Requires-Dist") or []
    assert {"test", "server"} <= set(metadata.get_all("Provides-Extra") or [])
    assert not [line for line in required if "extra == 'server'" in line]
    assert {"fastapi", "uvicorn", "pyyaml"} <= {
        line.split(">")[0].lower() for line in required if "extra" not in line
    }
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "lab-gpu = lab_gpu.cli.main:main" in commands


def test_the_wheel_alone_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site with a space"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import lab_gpu.cli.main as lab; print(lab.__file__); raise SystemExit(lab.main(['--version']))"
    environ = {**os.environ, "PYTHONPATH": str(site), "LAB_GPU_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.splitlines()
    assert where.startswith(str(site))
    assert version.split()[-1][0].isdigit()

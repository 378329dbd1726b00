"""A newcomer's first minutes: a clone in a folder with a space in its name, `make up`, what it prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL_LIMIT_S = 600
COMMAND_LIMIT_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + 300)]


class Newcomer:
    """Somebody with a clone and a home of their own; every line is typed in the clone's folder."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.home = folder / "home"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LAB_GPU_", "MAKE", "VIRTUAL"))
        }
        private = {"LAB_GPU_HOME": str(self.home), "LAB_GPU_CLAIMS_DIR": str(folder / "claims")}
        self.environ = {**kept, **private, "LAB_GPU_NO_NVML": "1", "PWD": str(self.clone), "NO_COLOR": "1"}

    def types(self, line: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.clone,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}"
        return done.stdout


def copy_of_the_checkout(into: Path) -> None:
    """What a clone would hold: no file that git ignores, such as .venv."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    folder = Path(tempfile.mkdtemp(prefix="lg-", dir="/tmp"))
    person = Newcomer(folder)
    copy_of_the_checkout(person.clone)
    yield person
    subprocess.run(["make", "down"], cwd=person.clone, env=person.environ, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def commands_to_paste(shown: str) -> list[str]:
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("next"))
    return [line.strip() for line in lines[start + 1 :] if line.startswith("  ")]


def test_make_up_on_a_fresh_clone(newcomer: Newcomer) -> None:
    first = newcomer.types("make up", INSTALL_LIMIT_S)
    assert "the queue works" in first
    assert "http://127.0.0.1:" in first

    began = time.monotonic()
    again = newcomer.types("make up")
    assert time.monotonic() - began < 1.0 * slowness()
    assert "the queue works" in again

    submit, status, logs = commands_to_paste(first)
    assert "2" in newcomer.types(submit)
    assert "Virtual GPU" in newcomer.types(status)
    assert "trained on GPU" in newcomer.types(logs)

    assert newcomer.types("make down")
    assert newcomer.types("make down") is not None, "a second time is no mistake"
    newcomer.types("make clean")
    assert not (newcomer.clone / ".venv").exists()


def slowness() -> float:
    """How much slower this machine is just now than an idle one, which starts an interpreter in 15 ms."""
    began = time.monotonic()
    subprocess.run(["python3", "-I", "-S", "-c", "pass"], check=True)
    return max(1.0, (time.monotonic() - began) / 0.015)


def test_a_python_without_venv_is_one_sentence(newcomer: Newcomer) -> None:
    stand_in = newcomer.clone.parent / "python-without-venv"
    stand_in.write_text('#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\nexec python3 "$@"\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["make", "up", f"PY={stand_in}"],
        cwd=newcomer.clone,
        env=newcomer.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "python3-venv" in done.stderr
    assert "Traceback" not in done.stderr

"""The transcript in README.md is what a person gets: what follows `$ ` is typed, the rest is compared.

In the expected text … stands for anything on one line; runs of blanks, durations, pids and ports are compared
by their form only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- transcript -->\n+```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
DURATION = r"\d+(?:\.\d+)?(?:ms|s|m|h)(?: ago)?|just now"
# What is compared by its form only: how it is found in the expected text, and what may stand in its place.
LOOSE = {
    "any": ("…", ".*"),
    "duration": (rf"\b(?:{DURATION})\b", f"(?:{DURATION})"),
    "pid": (r"pid \d+", r"pid \d+"),
    "port": (r"127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+"),
    "blanks": (" +", " +"),
}
FIND = re.compile("|".join(f"(?P<{name}>{found})" for name, (found, _) in LOOSE.items()))
COMMAND_LIMIT_S = 60


def steps(readme: str) -> list[tuple[str, list[str]]]:
    """The commands of the transcript, each with the lines expected after it."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(readme):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line.rstrip())
    return found


def pattern(expected: str) -> str:
    """One expected line as a regular expression."""
    parts, at = [], 0
    for found in FIND.finditer(expected):
        parts += [re.escape(expected[at : found.start()]), LOOSE[str(found.lastgroup)][1]]
        at = found.end()
    return "".join([*parts, re.escape(expected[at:])])


def compare(typed: str, expected: list[str], shown: str) -> None:
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    same = len(lines) == len(expected) and all(
        re.fullmatch(pattern(want), line.replace("\t", " "))
        for want, line in zip(expected, lines, strict=True)
    )
    assert same, f"$ {typed}\nexpected:\n" + "\n".join(expected) + "\nshown:\n" + "\n".join(lines)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who has just activated .venv, with a home of their own."""
    home = Path(tempfile.mkdtemp(prefix="lg-", dir="/tmp"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAB_GPU_")}
    environ = {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LAB_GPU_HOME": str(home),
        "LAB_GPU_CLAIMS_DIR": str(home / "claims"),
        "LAB_GPU_NO_NVML": "1",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "110",
    }
    yield environ
    subprocess.run(["lab-gpu", "server", "stop"], env=environ, capture_output=True)
    shutil.rmtree(home, ignore_errors=True)


def test_the_readme_transcript(person: dict[str, str], tmp_path: Path) -> None:
    script = steps(README.read_text())
    assert len(script) >= 5
    for typed, expected in script:
        done = subprocess.run(
            ["bash", "-c", typed],
            env=person,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        compare(typed, expected, done.stdout)


def test_the_comparison_sees_a_difference() -> None:
    compare("x", ["task 1 done after 12s", "GPU …"], "task 1   done after 3s\nGPU 0 of node\n")
    with pytest.raises(AssertionError, match="expected"):
        compare("x", ["task 1 done"], "task 2 done\n")
    with pytest.raises(AssertionError, match="expected"):
        compare("x", ["one line"], "one line\nand another\n")

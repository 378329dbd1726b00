"""The arrows of the house are kept by a tool; these scenes see to it that the tool sees everything."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "lab_gpu").rglob("*.py"))
VAGUE = {"manager", "helper", "helpers", "util", "utils", "common", "handle", "data", "info"}
LONGEST_FUNCTION, LONGEST_FILE = 60, 500
HEAVY = {
    "pydantic",
    "fastapi",
    "uvicorn",
    "yaml",
    "asyncio",
    "dataclasses",
    "inspect",
    "logging",
    "subprocess",
}


def test_imports_go_down_only() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ", 0 broken" in done.stdout


def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in SOURCES]


def test_every_module_states_its_rule() -> None:
    silent = [path for path, tree in trees() if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_no_function_and_no_file_is_too_long_to_read() -> None:
    functions = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno > LONGEST_FUNCTION
    ]
    files = [str(path) for path in SOURCES if len(path.read_text().splitlines()) > LONGEST_FILE]
    assert not functions + files


def test_names_say_what_they_mean() -> None:
    vague = [path for path in SOURCES if VAGUE & set(path.stem.split("_"))]
    classes = [
        node.name
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Manager", "Helper", "Utils", "Info"))
    ]
    assert not [str(path) for path in vague] + classes


@pytest.mark.parametrize("module", ["lab_gpu.cli.main", "lab_gpu.client.transport"])
def test_a_cold_start_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*({HEAVY!r} & set(sys.modules)))"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.split() == []

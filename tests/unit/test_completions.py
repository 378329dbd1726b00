"""Completion scripts from the real parsers: what the words of our commands become in each shell."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from lab_gpu.cli.completions import SHELLS, live_words, script

STATUS = {
    "nodes": [{"name": "node-1"}, {"name": "pretend"}],
    "tasks": [
        {"id": 7, "queue": "b"},
        {"id": 5, "queue": None},
        {"id": 4, "queue": "a"},
        {"id": 3, "queue": "b"},
    ],
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("lab-gpu", description="100% `good`")
    branches = top.add_subparsers()
    cancel = branches.add_parser("cancel", help="stop [tasks] at 100%")
    cancel.add_argument("ids", nargs="+", help="ids: it's `12`").complete = "task_ids"  # type: ignore[attr-defined]
    cancel.add_argument("--then", choices=("queue", "hold"))
    cancel.add_argument("--hidden", help=argparse.SUPPRESS)
    start = branches.add_parser("server").add_subparsers().add_parser("start", help="start")
    start.add_argument("--policy").complete = "files"  # type: ignore[attr-defined]
    start.add_argument("--home").complete = "dirs"  # type: ignore[attr-defined]
    return top


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_with_the_living_words(shell: str) -> None:
    text = script(shell, parser())
    assert "completion --live task_ids" in text
    assert "then" in text and "hidden" not in text


def test_bash_reads_the_script() -> None:
    done = subprocess.run(
        ["bash", "-n"], input=script("bash", parser()), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_read_theirs(shell: str) -> None:
    """Where that shell is not installed, at least no sign is left that its quoting would trip over."""
    text = script(shell, parser())
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert "`12`" not in text and "it's" not in text


def test_our_bash_functions_do_not_replace_those_of_other_programs() -> None:
    text = script("bash", parser())
    for name in ("\n_set_parser_defaults()", "\n_set_new_action()", "\n_shtab_compgen_files()"):
        assert name not in text


def test_living_words() -> None:
    assert live_words("task_ids", STATUS) == ["7", "5", "4", "3"]
    assert live_words("nodes", STATUS) == ["node-1", "pretend"]
    assert live_words("queues", STATUS) == ["a", "b"]

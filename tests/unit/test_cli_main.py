"""The table of commands, and that each command's own words hold: its examples parse, its help shows them first."""

from __future__ import annotations

import shlex
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

from lab_gpu.cli import frame
from lab_gpu.cli.main import COMMANDS, GROUPS, build_parser, command_parser
from lab_gpu.core.errors import NoMaster, Refused


def module_of(name: str) -> ModuleType:
    return import_module("lab_gpu.cli.commands." + name.replace(" ", "_").replace("-", "_"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_name_has_a_command(name: str) -> None:
    assert find_spec("lab_gpu.cli.commands." + name.replace(" ", "_").replace("-", "_")) is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_what_the_command_takes(name: str) -> None:
    """Each example that is one plain call parses."""
    module = module_of(name)
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        words = shlex.split(example, comments=True)
        if words[: 1 + len(name.split())] != ["lab-gpu", *name.split()] or set(words) & {"|", ">", "&&"}:
            continue
        frame.parse(f"lab-gpu {name}", module, words[1 + len(name.split()) :])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_first(name: str) -> None:
    text = command_parser(name).format_help()
    assert text.startswith("examples:\n  ")
    assert text.index("usage: ") > text.index(module_of(name).EXAMPLES[-1].splitlines()[0])


def test_one_parser_knows_all() -> None:
    parser = build_parser()
    args = parser.parse_args(["submit", "--mem", "10G", "x"])
    assert (args.mem, args.command) == (10240, ["x"])
    assert parser.parse_args(["config", "set", "color", "never"]).key == "color"
    assert {"server", "agent", "policy", "config", "service"} == GROUPS


def test_names_alone_import_no_command() -> None:
    text = build_parser(all=False).format_help()
    assert all(name.split()[0] in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["wait"], "the following arguments are required: ID; see lab-gpu wait -h"),
     (["wait", "1", "--tiemout", "3"], "there is no flag --tiemout; did you mean --timeout?"),
     (["wait", "1", "--xyzzy"], "there is no flag --xyzzy; see lab-gpu wait -h"),
     (["wait", "1", "--timeout"], "argument --timeout: expected one argument; see lab-gpu wait -h"),
     (["list", "--order", "up"], "argument --order: invalid choice: 'up' (choose from"),
     (["config set", "a", "b", "c"], "'c' is one word too many; see lab-gpu config set -h")],
)  # fmt: skip
def test_mistakes_in_flags(words: list[str], sentence: str) -> None:
    name, *rest = words
    with pytest.raises(Refused) as refused:
        frame.parse(f"lab-gpu {name}", module_of(name), rest)
    assert str(refused.value).startswith(f"cannot run 'lab-gpu {name}': {sentence}")


def test_no_abbreviations() -> None:
    with pytest.raises(Refused, match="there is no flag --time-lim; did you mean --time-limit"):
        frame.parse("lab-gpu submit", module_of("submit"), ["--time-lim", "3", "x"])


def test_patience_ends() -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise NoMaster("no master runs: start one")

    with pytest.raises(NoMaster):
        frame.patiently(ask, limit_s=0.1)
    assert len(asked) > 1

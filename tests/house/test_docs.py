"""The manual cannot drift: links lead somewhere, commands parse, tables say what the code says."""

from __future__ import annotations

import re
import shlex
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi.routing import APIRoute

from lab_gpu.api.app import _ROUTERS
from lab_gpu.cli.frame import Parser, parse_words
from lab_gpu.cli.main import COMMANDS, command_parser
from lab_gpu.core.errors import BY_SLUG, LabGpuError, Refused
from lab_gpu.core.policy import DEFAULTS, parse_policy
from lab_gpu.core.snapshot import RefusalCode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target, _ in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_every_file_that_is_named_exists() -> None:
    """`tests/…`, `benchmarks/…`, `src/…` and the like, wherever a page writes them."""
    named = re.compile(r"`((?:tests|benchmarks|examples|scripts|src|store|core|api|cli|wire|docs)/[\w./-]*)`")
    roots = (ROOT, ROOT / "src" / "lab_gpu")
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in named.findall(page.read_text())
        if not any((root / name).exists() for root in roots)
    ]
    assert not missing


def test_every_variable_we_read_or_set_is_in_the_manual() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "run_batch.sh"]
    used = {name for source in sources for name in re.findall(r"LAB_GPU_[A-Z_]*[A-Z]\b", source.read_text())}
    said = (DOCS / "settings.md").read_text()
    assert not sorted(
        name for name in used if f"`{name}`" not in said and not name.startswith("LAB_GPU_SUBMIT__")
    )


def typed_commands() -> Iterator[tuple[str, str]]:
    """Every `lab-gpu …` line of a code block, whether typed after `$ ` or bare."""
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text()):
            for line in block.splitlines() if kind in ("sh", "console") else ():
                typed = line.removeprefix("$ ").strip().removeprefix(".venv/bin/")
                if typed.startswith("lab-gpu ") and (kind == "sh" or line.startswith("$ ")):
                    yield str(page.relative_to(ROOT)), typed


@pytest.mark.parametrize(("page", "typed"), sorted(set(typed_commands())))
def test_every_command_of_the_manual_parses(page: str, typed: str) -> None:
    words = shlex.split(typed, comments=True)[1:]
    words = words[: next((n for n, word in enumerate(words) if word in ("|", "&&", "||", ">")), len(words))]
    if words[0].startswith("-"):
        return
    name = words[0] if words[0] in COMMANDS else " ".join(words[:2])
    assert name in COMMANDS, f"{page}: there is no command {name}"
    parser = command_parser(name)
    assert isinstance(parser, Parser)
    try:
        parse_words(parser, words[len(name.split()) :])
    except Refused as refused:
        pytest.fail(f"{page}: {typed}: {refused}")


def test_every_command_is_in_the_manual() -> None:
    text = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    assert not [name for name in COMMANDS if f"lab-gpu {name}" not in text]


def test_every_flag_of_submit_is_in_the_manual() -> None:
    """All of its names in English; in Chinese one name of each."""
    shown = [action for action in command_parser("submit")._actions if action.help != SUPPRESS]
    names = [[flag for flag in action.option_strings if flag.startswith("--")] for action in shown]
    flags = [group for group in names if group and group[0] not in ("--help", "--host")]
    english, chinese = (DOCS / "submitting.md").read_text(), (DOCS / "zh" / "manual.md").read_text()
    assert not [flag for group in flags for flag in group if f"`{flag}" not in english]
    assert not [group for group in flags if not any(f"`{flag}" in chinese for flag in group)]


def table_rows(page: str) -> list[list[str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_policy_page_has_every_key_with_its_default() -> None:
    said = {row[0].strip("`"): row[1].strip("`") for row in table_rows("policy.md") if row[0].startswith("`")}
    assert set(said) == set(DEFAULTS)
    for key, default in DEFAULTS.items():
        if default not in (None, []):
            assert yaml.safe_load(said[key]) == default or said[key] == str(default), key


def test_the_exit_codes_are_those_of_the_error_tree() -> None:
    rows = [row for row in table_rows("exit-codes.md") if row[0].startswith("`")]
    said = {row[0].strip("`"): int(row[1]) for row in rows}
    http = {row[0].strip("`"): int(row[2]) for row in rows if row[2]}
    kinds = {slug: kind for slug, kind in BY_SLUG.items() if kind is not LabGpuError}
    assert said == {slug: kind.exit_code for slug, kind in kinds.items()}
    assert http == {slug: kinds[slug].http_status for slug in http}


def test_every_reason_code_is_explained() -> None:
    said = {row[0].strip("`") for row in table_rows("waiting-and-why.md")}
    assert {code.value for code in RefusalCode} <= said


def test_every_route_of_the_api_is_in_the_manual_and_no_other() -> None:
    said = {
        tuple(row[0].strip("`").partition("?")[0].split()) for row in table_rows("api.md") if "/api" in row[0]
    }
    routes = [route for each in _ROUTERS for route in each.router.routes if isinstance(route, APIRoute)]
    assert said == {(method, route.path) for route in routes for method in route.methods}


def test_the_policy_files_of_manual_and_examples_are_good() -> None:
    texts = [(ROOT / "examples" / "policy.yaml").read_text()]
    for page in (DOCS / "policy.md", DOCS / "zh" / "manual.md"):
        texts += [block for kind, block in FENCE.findall(page.read_text()) if kind == "yaml"]
    assert len(texts) == 3
    for text in texts:
        parse_policy(yaml.safe_load(text))


def test_the_english_pages_and_the_index_agree() -> None:
    index = (DOCS / "manual.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"manual.md"}
    assert pages == {target for target, _ in LINK.findall(index) if "/" not in target}


def test_every_command_that_prints_json_has_its_row() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", (DOCS / "json.md").read_text(), re.MULTILINE))
    printing = [
        name
        for name in COMMANDS
        if any("--json" in each.option_strings for each in command_parser(name)._actions)
    ]
    assert [name for name in printing if f"`{name}" not in rows] == []
    assert set(COMMANDS) - set(printing) == {"run", "completion"}

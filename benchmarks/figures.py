"""What a benchmark says: figures, each with what it must be and the baseline measured in the same run."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from typing import Any


@dataclass(frozen=True)
class Figure:
    """`within` None: a figure to know, nothing demands it. A ratio is value / baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    must: str = ""
    within: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, must=f"≤ {limit:g} {unit}", within=value <= limit)


def at_least(name: str, value: float, unit: str, limit: float, baseline: float | None = None) -> Figure:
    return Figure(name, value, unit, baseline, must=f"≥ {limit:g} {unit}", within=value >= limit)


def ratio_at_most(name: str, value: float, baseline: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, baseline, must=f"≤ {limit:g} x", within=value <= limit * baseline)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def as_document(benchmark: str, figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in figures],
    }


def row(figure: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """One line of a table: name, value, baseline, ratio, must, verdict."""
    unit, baseline, ratio = figure["unit"], figure.get("baseline"), figure.get("ratio")
    verdict = {True: "yes", False: "NO", None: ""}[figure.get("within")]
    return (
        figure["name"],
        f"{figure['value']:.4g} {unit}",
        f"{baseline:.4g} {unit}" if baseline is not None else "",
        f"{ratio:.2f} x" if ratio is not None else "",
        figure.get("must", ""),
        verdict,
    )


def table(figures: Sequence[dict[str, Any]]) -> str:
    rows = [("figure", "value", "baseline", "ratio", "must", "holds"), *map(row, figures)]
    widths = [max(len(line[column]) for line in rows) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in rows
    )


def main(
    benchmark: str, about: str, measure: Callable[[argparse.Namespace], Sequence[Figure]], **options: Any
) -> None:
    """The command line all benchmarks share: --json, and `name=(default, help)` options of their own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    for name, (default, text) in options.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{text} ({default})"
        )
    asked = parser.parse_args()
    try:
        document = as_document(benchmark, measure(asked))
    except Exception as error:
        sys.exit(f"{benchmark}: no figures: {type(error).__name__}: {error}")
    print(dumps(document) if asked.json else table(document["figures"]))

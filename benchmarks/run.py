"""Runs every benchmark, prints one table, and keeps it in benchmarks/results.

usage: run.py [--name NAME] [NAME_OF_A_BENCHMARK ...]      without names: all of them
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from figures import table

HERE = Path(__file__).parent
ALL = (
    "cold_start",
    "submit_latency",
    "handoff",
    "batch_submit",
    "throughput",
    "planning",
    "engine",
    "sampling",
    "idle",
    "restart",
    "big_database",
)
LIMIT_S = 1800


def run_one(name: str) -> dict[str, Any]:
    """The document it printed; one that gave no figures says why in `error`."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"benchmark": name, "figures": [], "error": f"not finished within {LIMIT_S} s"}
    if done.returncode:
        return {"benchmark": name, "figures": [], "error": done.stderr.strip()[-500:]}
    return dict(json.loads(done.stdout))


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def as_text(document: dict[str, Any]) -> str:
    about = document["machine"]
    head = (
        f"{document['at']}, {about['cores']} cores, Python {about['python']}, kernel {about['kernel']},"
        f" load before {about['load_before']:.2f}"
    )
    figures = [figure for one in document["benchmarks"] for figure in one["figures"]]
    wrong = [f"{one['benchmark']}: {one['error']}" for one in document["benchmarks"] if "error" in one]
    return "\n\n".join([head, table(figures), *wrong])


def keep(document: dict[str, Any], text: str, name: str) -> Path:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    base = folder / f"{document['at'][:10]}-{name}"
    base.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    base.with_suffix(".md").write_text(f"# Figures of {document['at'][:10]}\n\n```\n{text}\n```\n")
    return base.with_suffix(".md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", nargs="*", choices=[*ALL, []], metavar="benchmark")
    parser.add_argument("--name", default=socket.gethostname())
    asked = parser.parse_args()
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document: dict[str, Any] = {"at": at, "machine": machine(), "benchmarks": []}
    for name in asked.benchmarks or ALL:
        print(f"{name} …", file=sys.stderr, flush=True)
        document["benchmarks"].append(run_one(name))
    text = as_text(document)
    print(text)
    if not asked.benchmarks:
        print(f"\nkept in {keep(document, text, asked.name)}", file=sys.stderr)
    failed = any("error" in one for one in document["benchmarks"])
    missed = any(figure["within"] is False for one in document["benchmarks"] for figure in one["figures"])
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`lab-gpu server stop`: ends the master. Running tasks go on, and the next master takes them over."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lab_gpu.cli import frame
from lab_gpu.client.whereabouts import own_home
from lab_gpu.core.errors import Broken

SUMMARY = "stop the master; running tasks go on"
EXAMPLES = ("lab-gpu server stop", "lab-gpu server stop --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    counts = counted(api)
    if api.place.own:
        from lab_gpu.client import launch

        api.close()
        launch.stop(own_home(os.environ))
    else:
        api.post("/api/v1/server/stop")
    running, queued = counts.get("running", 0), counts.get("queued", 0)
    if args.json:
        frame.print_json({"stopped": True, "running": running, "queued": queued})
    else:
        frame.out(words(running, queued))
    return 0


def counted(api: Any) -> dict[str, int]:
    """A master that cannot answer is to be stopped all the more."""
    try:
        counts: dict[str, int] = api.get("/api/v1/status", {"limit": 1})["counts"]
    except Broken:
        return {}
    return counts


def words(running: int, queued: int) -> str:
    parts = ["the master has stopped"]
    if running:
        parts.append("one running task goes on" if running == 1 else f"{running} running tasks go on")
    if queued:
        parts.append("one waits" if queued == 1 else f"{queued} wait")
    if running or queued:
        parts.append("`lab-gpu server start` takes them up again")
    return "; ".join(parts)

"""`lab-gpu server restart`: stop and start with the settings of before, but for those that are given.

A master that a first command started becomes an ordinary one: it listens on an address and stays.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import frame, systemd
from lab_gpu.cli.commands import server_start
from lab_gpu.cli.unit_file import UNIT_NAME
from lab_gpu.client.transport import find_master
from lab_gpu.client.whereabouts import own_home
from lab_gpu.core.errors import Broken, NoMaster, Refused

if TYPE_CHECKING:
    from lab_gpu.client.launch import StartOptions

SUMMARY = "stop and start the master; running tasks go on"
EXAMPLES = ("lab-gpu server restart", "lab-gpu server restart --port 2000 --policy policy.yaml")
OF_A_UNIT = (
    "cannot restart with other settings: the master runs as {unit}, which names them; "
    "write it again with `lab-gpu service install` and its flags, then restart"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    server_start.add_settings(parser)
    words = "plan only at `lab-gpu server tick`, or by itself again"
    parser.add_argument("--manual-tick", action=argparse.BooleanOptionalAction, help=words)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    home = own_home(os.environ)
    # The master itself remembers the policy file: one that was reloaded since is not the one of the last start.
    settings = {**server_start.remembered(home), "policy": None}
    options = server_start.wanted(args, home, settings)
    before = running(home)
    unit = systemd.unit_of_process(before["pid"], UNIT_NAME) if before else None
    if unit is not None:
        restart_unit(unit, args)
        after = running(home) or {}
    else:
        from lab_gpu.client import launch

        after = launch.restart(home, frame.say, options, as_it_was(home, settings, before))
    server_start.show(args, after, home, "was restarted" if before else "started, none ran before")
    return 0


def as_it_was(home: str, settings: dict[str, Any], before: dict[str, Any] | None) -> StartOptions:
    """What is started again should the new settings not do."""
    from lab_gpu.client.launch import StartOptions

    if before is not None and before.get("autostarted"):
        return StartOptions(home, tcp=False, autostarted=True)
    manual_tick = bool(settings.get("manual_tick"))
    return StartOptions(home, settings.get("host"), settings.get("port"), tcp=True, manual_tick=manual_tick)


def running(home: str) -> dict[str, Any] | None:
    """What this home's own master says of itself; None where none runs."""
    try:
        api = find_master(None, {"LAB_GPU_HOME": home})
        answer: dict[str, Any] | None = api.get("/api/v1/server") if api.place.own else None
    except (NoMaster, Broken):
        return None
    return answer


def restart_unit(system: bool, args: argparse.Namespace) -> None:
    """Its own systemd must do it, or two would run it."""
    if any(value is not None for value in (args.host, args.port, args.policy, args.manual_tick)):
        raise Refused(OF_A_UNIT.format(unit=UNIT_NAME))
    command = systemd.words(system, "restart", UNIT_NAME)
    status, said = systemd.ask(command)
    if status != 0:
        raise Broken(f"cannot restart the master: `{' '.join(command)}` failed: {said}; see its journal")

"""`lab-gpu server restart`: stop and start with the settings of before, but for those that are given."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lab_gpu.cli import frame, systemd
from lab_gpu.cli.commands import server_start
from lab_gpu.cli.unit_file import UNIT_NAME
from lab_gpu.client.transport import find_master
from lab_gpu.client.whereabouts import own_home
from lab_gpu.core.errors import Broken, NoMaster, Refused

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
    policy = server_start.checked_policy(args.policy)
    before = running(home)
    unit = systemd.unit_of_process(before["pid"], UNIT_NAME) if before else None
    if unit is not None:
        restart_unit(unit, args)
        after = running(home) or {}
    else:
        from lab_gpu.client import launch

        after = launch.restart(home, frame.say, options(args, home, policy, before or remembered(home)))
    server_start.show(args, after, home, "was restarted" if before else "started, none ran before")
    return 0


def running(home: str) -> dict[str, Any] | None:
    """What this home's own master says of itself; None where none runs."""
    try:
        api = find_master(None, {"LAB_GPU_HOME": home})
        answer: dict[str, Any] | None = api.get("/api/v1/server") if api.place.own else None
    except (NoMaster, Broken):
        return None
    return answer


def remembered(home: str) -> dict[str, Any]:
    from json import loads

    from lab_gpu.core.places import settings_path

    try:
        with open(settings_path(home), encoding="utf-8") as file:
            settings = loads(file.read())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def options(args: argparse.Namespace, home: str, policy: str | None, before: dict[str, Any]) -> Any:
    """A master that somebody's command started listens on TCP only once an address is asked for."""
    from lab_gpu.client.launch import StartOptions

    addressed = args.host is not None or args.port is not None
    manual = bool(before.get("manual_tick")) if args.manual_tick is None else args.manual_tick
    return StartOptions(
        home,
        args.host,
        args.port,
        tcp=True if addressed else None,
        policy=policy,
        manual_tick=manual,
        autostarted=bool(before.get("autostarted")) and not addressed,
    )


def restart_unit(system: bool, args: argparse.Namespace) -> None:
    """Its own systemd must do it, or two would run it."""
    if any(value is not None for value in (args.host, args.port, args.policy, args.manual_tick)):
        raise Refused(OF_A_UNIT.format(unit=UNIT_NAME))
    command = systemd.words(system, "restart", UNIT_NAME)
    status, said = systemd.ask(command)
    if status != 0:
        raise Broken(f"cannot restart the master: `{' '.join(command)}` failed: {said}; see its journal")

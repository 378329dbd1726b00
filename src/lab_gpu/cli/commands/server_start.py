"""`lab-gpu server start`: a master in the background, its address and log file printed.

A policy file is checked before anything starts. Whether a master that runs already has the same settings is
for the new one to say: it knows both.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import frame
from lab_gpu.client.whereabouts import is_alive, own_home, running_note
from lab_gpu.core import places
from lab_gpu.core.errors import LabGpuError, Refused

if TYPE_CHECKING:
    from lab_gpu.client.launch import StartOptions

SUMMARY = "start the master"
EXAMPLES = (
    "lab-gpu server start",
    "lab-gpu server start --role master --host 127.0.0.1 --policy policy.yaml",
    "lab-gpu server start --port 2000 --manual-tick",
)
NO_AGENT = "cannot start as an agent: this release runs on one machine; use --role master"
NO_NODE = (
    "lab-gpu: no GPU was found here and no node is declared; declare a virtual one: "
    "lab-gpu server add-node --name node-1 --gpus 2 --vram 24 --gpu-type 'RTX 3090'"
)
ANSWER_LIMIT_S = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument(
        "--manual-tick", action="store_true", default=None, help="plan only at `lab-gpu server tick`"
    )
    parser.add_argument("--foreground", action="store_true", help="stay in this process: for systemd")
    frame.add_json_flag(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """What `restart` takes as well."""
    parser.add_argument("--role", choices=("master", "agent"), default="master", help="master (default)")
    parser.add_argument("--host", metavar="A", help="the address to listen on (default 127.0.0.1)")
    words = "the port to listen on (default 1895, or the next free one)"
    parser.add_argument("--port", type=frame.whole_number("--port", 1, 65535), metavar="P", help=words)
    words = "a policy file in YAML; it is remembered"
    frame.completes(parser.add_argument("--policy", metavar="FILE", help=words), "files")


def run(args: argparse.Namespace) -> int:
    from lab_gpu.client.launch import start_master

    home = own_home(os.environ)
    options = wanted(args, home, settings_of_running(home))
    if args.foreground:
        return become_master(options, args.json)
    ready = start_master(options, frame.say)
    started = "running" not in ready
    if started:
        say_where_tasks_could_run(ready)
    show(args, ready if started else ready["running"], home, "started" if started else "runs already")
    return 0


def settings_of_running(home: str) -> dict[str, Any]:
    """What is not given is not compared: it is as the master that runs was asked to be."""
    note = running_note(home)
    return remembered(home) if note and is_alive(note.get("pid")) else {}


def remembered(home: str) -> dict[str, Any]:
    """What the last start was asked for."""
    from json import loads

    try:
        with open(places.settings_path(home), encoding="utf-8") as file:
            settings = loads(file.read())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def wanted(args: argparse.Namespace, home: str, before: dict[str, Any]) -> StartOptions:
    """The flags, and where one is not given what was before. The policy is checked before anything starts."""
    from lab_gpu.client.launch import StartOptions

    if args.role == "agent":
        raise Refused(NO_AGENT)
    return StartOptions(
        home,
        args.host or before.get("host"),
        args.port or before.get("port"),
        tcp=True,
        policy=checked_policy(args.policy) or before.get("policy"),
        manual_tick=bool(args.manual_tick or (args.manual_tick is None and before.get("manual_tick"))),
    )


def checked_policy(path: str | None) -> str | None:
    if path is None:
        return None
    from lab_gpu.cli import policy_file

    policy_file.checked(path)
    return os.path.abspath(path)


def become_master(options: StartOptions, as_json: bool) -> int:
    """A person, or the journal, is told in words; a program gets the ready line that every start waits for."""
    from lab_gpu.client.launch import master_words

    words = [*master_words(options), *([] if as_json else ["--foreground"])]
    os.makedirs(options.home, mode=0o700, exist_ok=True)
    os.execv(words[0], words)


def say_where_tasks_could_run(ready: dict[str, Any]) -> None:
    """Only where the master's own notes have not said it: nothing could ever start here."""
    if any("add-node" in note for note in ready.get("notes") or ()):
        return
    from lab_gpu.client.transport import find_master

    try:
        nodes = find_master(f"unix:{ready['socket']}").get("/api/v1/gpus", timeout_s=ANSWER_LIMIT_S)["nodes"]
    except LabGpuError:
        return
    if not nodes:
        frame.say(NO_NODE)


def show(args: argparse.Namespace, master: dict[str, Any], home: str, what: str) -> None:
    """The same four things, however the master came to run."""
    facts = {name: master.get(name) for name in ("pid", "url", "socket")}
    facts["log"] = master.get("log") or places.log_path(home)
    if args.json:
        frame.print_json({**facts, "home": home, "started": what != "runs already"})
        return
    frame.out(f"the master {what}: pid {facts['pid']}")
    frame.out(f"  address  {facts['url'] or 'unix:' + str(facts['socket'])}")
    frame.out(f"  log      {facts['log']}")

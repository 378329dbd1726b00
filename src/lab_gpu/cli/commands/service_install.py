"""`lab-gpu service install`: writes and shows the systemd unit that keeps this user's master running.

As a user unit it needs lingering to live without a login; as a unit of the machine (`--system`) it runs from
boot on, under the account named in it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import pwd
import sys
from importlib.metadata import PackageNotFoundError, metadata

from lab_gpu.cli import frame, systemd
from lab_gpu.cli.unit_file import UNIT_NAME, UnitOrder, is_ours, unit_path, unit_text
from lab_gpu.core.errors import Refused

SUMMARY = "let systemd keep the master running"
EXAMPLES = (
    "lab-gpu service install",
    "lab-gpu service install --print",
    "sudo lab-gpu service install --system --user alice",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    words = "a unit of the machine: it starts at boot and runs as --user, without a login or lingering"
    parser.add_argument("--system", action="store_true", help=words)
    words = "with --system: whose master it is (else who called sudo, else you)"
    parser.add_argument("--user", metavar="NAME", help=words)
    parser.add_argument("--print", action="store_true", help="only show the unit")
    frame.completes(
        parser.add_argument("--policy", metavar="FILE", help="the policy file it starts with"), "files"
    )
    parser.add_argument("--host", metavar="A", help="the address it listens on (default 127.0.0.1)")
    port = frame.whole_number("--port", 1, 65535)
    parser.add_argument("--port", type=port, metavar="P", help="the port it listens on (default 1895)")
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    text = unit_text(order(args))
    path = unit_path(args.system, os.environ, os.path.expanduser("~"))
    if not args.json:
        frame.out(text)
    enabled = False if args.print else put_to_work(args, path, text)
    if args.json:
        frame.print_json({"path": path, "unit": text, "written": not args.print, "enabled": enabled})
    return 0


def put_to_work(args: argparse.Namespace, path: str, text: str) -> bool:
    """Whether systemd starts it from now on."""
    write(path, text)
    frame.say(f"lab-gpu: written to {path}")
    enabled = enable(args.system)
    if not args.system and not systemd.lingers(getpass.getuser()) and os.getuid() != 0:
        frame.say("lab-gpu: it ends when you log out; to keep it: loginctl enable-linger")
    return enabled


def order(args: argparse.Namespace) -> UnitOrder:
    """A home that was named is kept; the usual one is worked out at each start: every host has its own."""
    account = account_of(args)
    named = os.environ.get("LAB_GPU_HOME")
    environment = {"LAB_GPU_HOME": os.path.abspath(named)} if named else {}
    program = own_program()
    return UnitOrder(
        command=[*program, "server", "start", "--foreground", *start_flags(args)],
        reload=[*program, "policy", "reload"],
        environment=environment,
        account=account,
        documentation=documentation(),
    )


def account_of(args: argparse.Namespace) -> str | None:
    if not args.system:
        if args.user:
            raise Refused("cannot use --user: a user unit is always your own; add --system")
        return None
    name: str = args.user or os.environ.get("SUDO_USER") or getpass.getuser()
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"cannot install the unit: there is no account {name}; name one with --user") from None
    return name


def start_flags(args: argparse.Namespace) -> list[str]:
    flags = ["--host", args.host] if args.host else []
    if args.port is not None:
        flags += ["--port", str(args.port)]
    if args.policy:
        from lab_gpu.cli import policy_file

        policy_file.checked(args.policy)
        flags += ["--policy", os.path.abspath(args.policy)]
    return flags


def own_program() -> list[str]:
    """The command beside this interpreter: PATH is another one under systemd."""
    beside = os.path.join(os.path.dirname(sys.executable), "lab-gpu")
    return [beside] if os.access(beside, os.X_OK) else [sys.executable, "-m", "lab_gpu"]


def documentation() -> str | None:
    """The address that the installed package names, if it names one."""
    try:
        links = metadata("lab-gpu").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    named = dict(link.split(", ", 1) for link in links if ", " in link)
    return named.get("Documentation") or named.get("Homepage")


def write(path: str, text: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if not is_ours(file.read()):
                raise Refused(f"cannot write {path}: a unit of somebody else is there; move it away first")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(
            f"cannot write {path}: {error.strerror}; see `lab-gpu service install --print`"
        ) from None
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
    except OSError as error:
        advice = "run it with sudo, or see `lab-gpu service install --print`"
        raise Refused(f"cannot write {path}: {error.strerror}; {advice}") from None


def enable(system: bool) -> bool:
    """What systemd does not answer to, the person types: the unit is written all the same."""
    steps = [systemd.words(system, "daemon-reload"), systemd.words(system, "enable", UNIT_NAME)]
    start = " ".join(systemd.words(system, "start", UNIT_NAME))
    if not systemd.answers(system):
        typed = " && ".join([*(" ".join(step) for step in steps), start])
        frame.say(f"lab-gpu: no systemd answers here; where it does, type: {typed}")
        return False
    for step in steps:
        status, said = systemd.ask(step)
        if status != 0:
            frame.say(f"lab-gpu: `{' '.join(step)}` failed: {said}")
            return False
    frame.say(f"lab-gpu: enabled; start it with: lab-gpu server stop; {start}")
    return True

"""`lab-gpu doctor`: looks at all that a master and its tasks stand on, says what to do, changes nothing."""

from __future__ import annotations

import argparse
import getpass
import os
import time
from collections.abc import Iterator, Sequence

from lab_gpu.cli import checks, frame, local_log, screen
from lab_gpu.cli.checks import BAD, OK, WARN, Finding
from lab_gpu.cli.config import setting
from lab_gpu.client.whereabouts import own_home, own_socket
from lab_gpu.core.errors import LabGpuError
from lab_gpu.core.places import database_path
from lab_gpu.core.version import VERSION

SUMMARY = "check this machine and say what to do"
EXAMPLES = ("lab-gpu doctor", "lab-gpu doctor --json")
STYLES = {OK: "green", WARN: "yellow", BAD: "red"}
ANSWER_LIMIT_S = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    found = list(findings(args))
    worst = any(finding.grade == BAD for finding in found)
    if args.json:
        frame.print_json({"ok": not worst, "checks": [finding.to_doc() for finding in found]})
    else:
        for line in lines(found):
            frame.out(line)
    return 1 if worst else 0


def lines(found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        grade = screen.colour(f"{finding.grade:4}", STYLES[finding.grade])
        advice = f"; {finding.advice}" if finding.advice and finding.grade != OK else ""
        yield f"{grade}  {finding.name:13} {finding.text}{advice}"
    counts = [sum(finding.grade == grade for finding in found) for grade in (OK, WARN, BAD)]
    yield "{} ok, {} to know about, {} to mend".format(*counts)


def findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield from programs()
    yield from places()
    yield from host()
    yield from the_master(args)


def programs() -> Iterator[Finding]:
    yield checks.python()
    yield checks.nvml(os.environ)
    yield checks.nvidia_smi()
    yield checks.tool("bash", ("bash", "--version"), True, "install bash: every task runs in it")
    yield checks.tool("tmux", ("tmux", "-V"), False, "only --tmux needs it: install tmux")
    yield checks.conda(os.environ)


def places() -> Iterator[Finding]:
    home, uid = own_home(os.environ), os.getuid()
    yield checks.permissions(home, uid)
    try:
        yield checks.socket_permissions(own_socket(home), uid)
    except LabGpuError as problem:
        yield Finding("socket", BAD, str(problem))
    yield checks.database(database_path(home))
    root = log_root(home)
    yield checks.log_root(root)
    yield checks.disk_space("disk", home)
    if os.stat(checks.nearest_folder(root)).st_dev != os.stat(checks.nearest_folder(home)).st_dev:
        yield checks.disk_space("log disk", root)
    yield checks.file_system(home, mounts())


def log_root(home: str) -> str:
    """The folder a task's log goes to when nobody says otherwise."""
    lab = local_log.LAB_ROOT
    usable = os.path.isdir(lab) and os.access(lab, os.W_OK | os.X_OK)
    return setting("log_root") or (lab if usable else f"{home}/logs")


def mounts() -> str:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def host() -> Iterator[Finding]:
    yield checks.clock(own_home(os.environ), time.time())
    yield checks.lingering(getpass.getuser(), os.getuid())
    yield checks.inotify()


def the_master(args: argparse.Namespace) -> Sequence[Finding]:
    try:
        return checks.master(
            frame.master(args).get("/api/v1/server", timeout_s=ANSWER_LIMIT_S), None, VERSION
        )
    except LabGpuError as problem:
        return checks.master(None, str(problem), VERSION)

"""How a master was asked to start, and what of that a later start repeats."""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lab_gpu.core.places import home_dir, settings_path


@dataclass(frozen=True, slots=True)
class Options:
    home: str
    host: str = "127.0.0.1"
    port: int | None = None
    tcp: bool = True
    policy: str | None = None
    manual_tick: bool = False
    autostarted: bool = False
    ready_fd: int = 1
    foreground: bool = False

    def lasting(self) -> dict[str, object]:
        """What makes two starts the same."""
        doc = asdict(self)
        for name in ("home", "autostarted", "ready_fd", "foreground"):
            del doc[name]
        return doc


def hostname() -> str:
    return socket.gethostname()


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m lab_gpu.daemon", description="The master of Lab-GPU.")
    user_home = os.path.expanduser("~")
    parser.add_argument("--home", default=home_dir(os.environ, hostname(), user_home))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tcp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--policy")
    parser.add_argument("--manual-tick", action="store_true")
    parser.add_argument("--autostarted", action="store_true")
    parser.add_argument(
        "--foreground", action="store_true", help="say in words on stderr what else is told in JSON"
    )
    parser.add_argument("--ready-fd", type=int, default=1)
    given = parser.parse_args(arguments)
    return Options(
        home=os.path.abspath(given.home),
        host=given.host,
        port=given.port,
        tcp=given.tcp,
        policy=os.path.abspath(given.policy) if given.policy else None,
        manual_tick=given.manual_tick,
        autostarted=given.autostarted,
        ready_fd=given.ready_fd,
        foreground=given.foreground,
    )


def remember(options: Options) -> None:
    with open(settings_path(options.home), "w", encoding="utf-8") as file:
        json.dump(options.lasting(), file)

"""Tells systemd that we are ready, where it asked to be told (Type=notify)."""

from __future__ import annotations

import os
import socket


def sd_notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(state.encode(), address)
    except OSError:
        pass  # systemd went away; the master goes on

"""Where things lie. Pure: whoever asks says who they are."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

SOCKET_PATH_LIMIT = 100
MACHINE_SOCKET = "/run/lab-gpu/lab-gpu.sock"
DEFAULT_PORT = 1895


def home_dir(environ: Mapping[str, str], hostname: str, user_home: str) -> str:
    return environ.get("LAB_GPU_HOME") or f"{user_home}/.lab-gpu/{hostname}"


def database_path(home: str) -> str:
    return f"{home}/lab-gpu.db"


def token_path(home: str) -> str:
    return f"{home}/token"


def log_path(home: str) -> str:
    return f"{home}/master.log"


def state_path(home: str) -> str:
    """What the running master says of itself: pid, address, version."""
    return f"{home}/master.json"


def settings_path(home: str) -> str:
    """What the last start was asked for, so that a restart does the same."""
    return f"{home}/settings.json"


def runtime_dir(uid: int) -> str:
    return f"/tmp/lab-gpu-{uid}"


def socket_path(home: str, uid: int, on_network: bool = False) -> str:
    """In the home; elsewhere when a socket cannot be there (network file system) or the path would be too long."""
    path = f"{home}/lab-gpu.sock"
    if on_network or len(path.encode()) > SOCKET_PATH_LIMIT:
        return f"{runtime_dir(uid)}/{crc32(home.encode()):08x}.sock"
    return path


def socket_note_path(home: str) -> str:
    """A file that names the socket's path where it is not in the home."""
    return f"{home}/socket"

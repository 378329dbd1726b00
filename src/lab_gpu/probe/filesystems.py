"""Where a path really lies. A path that does not exist yet counts as its parent."""

from __future__ import annotations

import os

from lab_gpu.core.network_mounts import is_network

_OCTAL = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def on_network(path: str) -> bool:
    """Whether other hosts may write there too: locks and write-ahead logs are not safe then."""
    return is_network(file_system_type(path))


def file_system_type(path: str) -> str:
    """As the kernel names it ("ext4", "nfs4", "fuse.sshfs"); "" where it does not tell."""
    real = existing(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        return type_of_mount(mounts.read(), real, os.stat(real).st_dev)


def existing(path: str) -> str:
    """The path itself, or the nearest of its parents that exists, without links."""
    real = os.path.realpath(path)
    while not os.path.lexists(real) and real != "/":
        real = os.path.dirname(real)
    return real


def type_of_mount(mountinfo: str, real: str, device: int) -> str:
    """The mount of the file's device; where none has it (btrfs subvolumes), the mount point next above it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    longest, found = -1, ""
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        words = fields.split(" ")
        if not separator or len(words) < 5:
            continue
        if words[2] == number:
            return rest.split(" ", 1)[0]
        point = _plain(words[4])
        # Of mounts on one point the later hides the earlier.
        if _is_under(real, point) and len(point) >= longest:
            longest, found = len(point), rest.split(" ", 1)[0]
    return found


def _is_under(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _plain(written: str) -> str:
    for code, letter in _OCTAL.items():
        written = written.replace(code, letter)
    return written

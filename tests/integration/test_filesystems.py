"""Where paths lie: the kernel's own list for this machine, written ones for what it has not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab_gpu.probe import filesystems
from lab_gpu.probe.filesystems import existing, file_system_type, on_network, type_of_mount

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
41 27 0:51 / /mnt/with\\040space rw - fuse.sshfs me@host: rw
42 27 0:52 /sub /data rw - btrfs /dev/vdb rw
43 42 0:53 / /data/scratch rw - lustre mds@tcp:/x rw
44 27 0:54 / /over rw - ext4 /dev/vdc rw
45 44 0:55 / /over rw - cifs //server/share rw
"""


def test_this_machines_own(tmp_path: Path) -> None:
    assert file_system_type("/proc/self") == "proc"
    assert not on_network("/proc")
    there = str(tmp_path / "not" / "there" / "yet")
    assert file_system_type(there) == file_system_type(str(tmp_path)) and existing(there) == str(
        tmp_path.resolve()
    )


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert file_system_type(str(tmp_path / "link" / "nothing")) == "proc"


@pytest.mark.parametrize(
    ("path", "device", "kind"),
    [
        ("/etc/x", os.makedev(254, 0), "ext4"),
        ("/home/me", os.makedev(0, 50), "nfs4"),
        ("/mnt/with space/x", os.makedev(0, 99), "fuse.sshfs"),
        ("/data/file", os.makedev(0, 99), "btrfs"),  # a subvolume has a device of its own
        ("/data/scratch/file", os.makedev(0, 99), "lustre"),
        ("/database", os.makedev(0, 99), "ext4"),
        ("/over/file", os.makedev(0, 99), "cifs"),
    ],
)
def test_the_mount_of_a_path(path: str, device: int, kind: str) -> None:
    assert type_of_mount(MOUNTS, path, device) == kind


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "afs", "ceph", "9p")
        ),
        *((kind, True) for kind in ("fuse.sshfs", "fuse.ceph", "fuse.rclone")),
        *(
            (kind, False)
            for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.gocryptfs", "zfs", "")
        ),
    ],
)
def test_what_counts_as_network(kind: str, network: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "file_system_type", lambda path: kind)
    assert on_network("/anywhere") is network

"""Which file systems other hosts may write too, by the names the kernel gives them."""

from __future__ import annotations

_TYPES = (
    "9p acfs afs beegfs ceph cifs coda davfs glusterfs gpfs lustre ncp ncpfs nfs nfs4 ocfs2 orangefs panfs"
    " pvfs2 quobyte smb3 smbfs wekafs"
)
_FUSE_PROGRAMS = (
    "beegfs-ondemand ceph ceph-fuse cvmfs davfs2 gcsfuse glusterfs goofys juicefs JuiceFS mfs moosefs"
    " mountpoint-s3 rclone s3fs seaweedfs smbnetfs sshfs"
)
NETWORK_TYPES = frozenset(_TYPES.split())
NETWORK_FUSE = frozenset(_FUSE_PROGRAMS.split())


def is_network(kind: str) -> bool:
    """`kind` as a list of mounts has it: "ext4", "nfs4", "fuse.sshfs"."""
    kind, _, program = kind.partition(".")
    return program in NETWORK_FUSE if kind == "fuse" else kind in NETWORK_TYPES

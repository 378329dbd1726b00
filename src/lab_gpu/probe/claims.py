"""The claims directory: what the masters of one host hold, told to each other, so that no GPU is promised twice.

One file per master, `<uid>-<pid>-<start>.json`, replaced whole. A claim counts while its master or its
process lives. New claims are written only under the directory's lock, after all others were read under it.
The reader thread and the loop share one object: what they share is replaced whole, never changed in place.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.errors import Broken
from lab_gpu.probe.claim_files import (
    TEMPORARY,
    Master,
    Told,
    boot_id,
    document_of,
    is_alive,
    master_of,
    parse,
    read_believed,
    write_new,
)
from lab_gpu.probe.host_lock import HostLock
from lab_gpu.probe.processes import UserNames, read_stat

PLACES = ("/run/lock/lab-gpu", "/tmp/lab-gpu-claims")
FILES_PER_USER = 64
SETTLE_S = 1.0  # between another user's mkdir and its chmod

ProcessNames = frozenset[tuple[int, int]]


class ClaimsDirectory:
    """`LAB_GPU_CLAIMS_DIR` names it; else it is the first of PLACES that can be had at that moment."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        chosen = environ.get("LAB_GPU_CLAIMS_DIR")
        self._places = (chosen,) if chosen else PLACES
        pid = os.getpid()
        own = read_stat(pid)
        self._me = Master(os.geteuid(), pid, own.started if own else 0)
        self._file_name = self._me.file_name
        self._boot_id = boot_id()
        self._lock = HostLock()
        self._names = UserNames()
        self._directory = ""
        self._keep_fd = -1
        self._published: ProcessNames = frozenset()
        self._parsed: dict[str, tuple[bytes, Told | None]] = {}

    # --- the port ------------------------------------------------------------------------------

    def others(self) -> tuple[OthersClaim, ...]:
        """Never raises: a reading without claims is one, and a launch asks again under the lock."""
        return tuple(self._others(self._published, self._names.of))

    def exchange(self, mine: Sequence[Claim], fits: Callable[[Sequence[OthersClaim]], bool]) -> bool:
        directory = self._settle()
        with self._lock.held(f"{directory}/lock"):
            ours = self._published | _processes(mine)
            if not fits(tuple(self._others(ours, self._names.remembered))):
                return False
            self._write(directory, mine)
        return True

    def publish(self, mine: Sequence[Claim]) -> None:
        self._write(self._settle(), mine)

    def close(self) -> None:
        """Our file stays: what runs on holds its GPUs still."""
        self._lock.close()
        if self._keep_fd >= 0:
            os.close(self._keep_fd)
            self._keep_fd = -1

    # --- reading -------------------------------------------------------------------------------

    def _others(self, ours: ProcessNames, name_of: Callable[[int], str]) -> Iterable[OthersClaim]:
        parsed: dict[str, tuple[bytes, Told | None]] = {}
        for directory in self._places:
            if why_not_trusted(directory) is None:
                yield from self._others_in(directory, ours, name_of, parsed)
        self._parsed = parsed

    def _others_in(
        self,
        directory: str,
        ours: ProcessNames,
        name_of: Callable[[int], str],
        parsed: dict[str, tuple[bytes, Told | None]],
    ) -> Iterable[OthersClaim]:
        of_user: dict[int, int] = {}
        for name in _listed(directory):
            master = master_of(name)
            if master is None or master == self._me:
                continue
            path = f"{directory}/{name}"
            told = self._told(path, master, parsed)
            if told is None or of_user.get(master.uid, 0) >= FILES_PER_USER:
                continue
            of_user[master.uid] = of_user.get(master.uid, 0) + 1
            living = self._living(path, master, told, ours)
            if living:
                owner = name_of(master.uid)
                yield from (OthersClaim(owner, claim) for claim in living)

    def _told(self, path: str, master: Master, parsed: dict[str, tuple[bytes, Told | None]]) -> Told | None:
        content = read_believed(path, master.uid)
        if content is None:
            return None
        before = self._parsed.get(path)
        parsed[path] = before if before and before[0] == content else (content, parse(content))
        return parsed[path][1]

    def _living(self, path: str, master: Master, told: Told, ours: ProcessNames) -> tuple[Claim, ...]:
        """Of a dead master what its processes still hold; of our predecessor not what we have taken over."""
        if told.boot_id == self._boot_id:
            if master.alive:
                return told.claims
            alive = [claim for claim in told.claims if is_alive(claim.pid, claim.started, master.uid)]
        else:
            alive = []
        adopted = ours if master.uid == self._me.uid else frozenset()
        if master.uid == self._me.uid and _processes(alive) <= self._published:
            _remove(path)
        return tuple(claim for claim in alive if (claim.pid, claim.started) not in adopted)

    # --- writing -------------------------------------------------------------------------------

    def _write(self, directory: str, mine: Sequence[Claim]) -> None:
        try:
            if mine:
                self._replace(directory, document_of(self._boot_id, mine))
            else:
                _remove(f"{directory}/{self._file_name}")
        except OSError as error:
            why = f"{directory} cannot be written ({error.strerror})"
            raise Broken(f"cannot reserve GPUs: {why}; make room there, or mend its mode (1777)") from None
        self._published = _processes(mine)

    def _replace(self, directory: str, content: bytes) -> None:
        temporary = f"{directory}/.{self._file_name}.{os.urandom(4).hex()}"
        write_new(temporary, content)
        try:
            os.rename(temporary, f"{directory}/{self._file_name}")
        except OSError:
            # Somebody sits on our name, which can be foreseen, and a sticky directory keeps it for them.
            self._file_name = self._me.file_name.replace(".json", f"-{os.urandom(4).hex()}.json")
            try:
                os.rename(temporary, f"{directory}/{self._file_name}")
            except OSError:
                _remove(temporary)
                raise

    # --- the directory -------------------------------------------------------------------------

    def _settle(self) -> str:
        """The directory to use now. One that came up in a better place since is moved to."""
        for place in self._places:
            if os.path.lexists(place) or _make(place):
                why = _why_not_settled(place)
                if why:
                    raise Broken(f"cannot share claims on GPUs in {place}: {why}")
                if place != self._directory:
                    self._move(place)
                return place
        raise Broken(
            f"cannot share claims on GPUs: {self._places[-1]} cannot be made;"
            " name a directory all users may write in LAB_GPU_CLAIMS_DIR"
        )

    def _move(self, place: str) -> None:
        self.close()
        if self._directory:
            _remove(f"{self._directory}/{self._file_name}")
        self._directory = place
        try:
            # Cleaners of /tmp (systemd-tmpfiles) pass over a directory that somebody has locked.
            self._keep_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._keep_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass
        for name in _listed(place):
            writer = master_of(name, TEMPORARY)
            if writer and writer.uid == self._me.uid and not writer.alive:
                _remove(f"{place}/{name}")


def why_not_trusted(directory: str) -> str | None:
    """Where its owner, or anybody, could remove other users' files, claims are worth nothing."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory; remove it"
    ours = found.st_uid in (0, os.geteuid())
    if found.st_mode & stat.S_ISVTX or (ours and not found.st_mode & stat.S_IWOTH):
        return None
    return f"it is not safe for several users; remove it, or run chmod 1777 {directory} as its owner"


def _why_not_settled(directory: str) -> str | None:
    """Whoever makes it needs a moment to give it its mode: one just changed is looked at again."""
    while True:
        why = why_not_trusted(directory)
        if why is None and not os.access(directory, os.W_OK | os.X_OK):
            why = f"it cannot be written by this user; run chmod 1777 {directory} as its owner"
        if why is None or not _changed_lately(directory):
            return why
        time.sleep(0.01)


def _changed_lately(path: str) -> bool:
    try:
        return abs(time.time() - os.lstat(path).st_ctime) < SETTLE_S
    except OSError:
        return False


def _make(place: str) -> bool:
    try:
        os.mkdir(place, 0o1777)
        os.chmod(place, 0o1777)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, or not ours to remove


def _processes(claims: Iterable[Claim]) -> ProcessNames:
    return frozenset((claim.pid, claim.started) for claim in claims)

"""Several masters on one host: what they tell each other, and what nobody can do to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.errors import Broken
from lab_gpu.core.ids import GpuUuid
from lab_gpu.probe import claims as claims_module
from lab_gpu.probe import host_lock
from lab_gpu.probe.claim_files import Master, boot_id, document_of
from lab_gpu.probe.claims import ClaimsDirectory
from lab_gpu.probe.processes import read_stat
from tests.support.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "nvml"))
pytest_plugins = ("stub",)
if TYPE_CHECKING:
    from stub import StubGpus

MASTER = str(Path(__file__).with_name("claims_master.py"))
ALICE, BOB = (4001, 4002) if os.getuid() == 0 else (os.getuid(), os.getuid())
GPU = GpuUuid("GPU-1")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")


def never(others: Sequence[OthersClaim]) -> bool:
    return False


def always(others: Sequence[OthersClaim]) -> bool:
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place other users can get to, which pytest's own is not."""
    root = Path(tempfile.mkdtemp(prefix="lg-", dir="/tmp"))
    root.chmod(0o755)
    (root / "claims").mkdir()
    (root / "claims").chmod(0o1777)
    yield root / "claims"
    shutil.rmtree(root)


@pytest.fixture
def claims(folder: Path) -> Iterator[ClaimsDirectory]:
    ours = ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(folder)})
    yield ours
    ours.close()


@pytest.fixture
def neighbour() -> Iterator[Master]:
    """A living process that might be a master."""
    process = subprocess.Popen(["sleep", "600"])
    yield Master(os.getuid(), process.pid, started(process.pid))
    process.kill()
    process.wait()


def started(pid: int) -> int:
    stat = read_stat(pid)
    assert stat
    return stat.started


def claim_of(master: Master, mib: int = 1000) -> Claim:
    return Claim(GPU, mib, master.pid, master.started)


def written_by(folder: Path, master: Master, *claims: Claim, boot: str | None = None) -> Path:
    path = folder / master.file_name
    path.write_bytes(document_of(boot or boot_id(), claims or [claim_of(master)]))
    path.chmod(0o644)
    return path


def start_master(*arguments: object, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, MASTER, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environ}, **pipes)  # type: ignore[call-overload, no-any-return]


# --- telling each other ------------------------------------------------------------------------


def test_what_one_holds_the_other_sees(claims: ClaimsDirectory, folder: Path, neighbour: Master) -> None:
    assert claims.others() == ()
    written_by(folder, neighbour, claim_of(neighbour, 5000))
    (seen,) = claims.others()
    assert seen.claim == claim_of(neighbour, 5000) and seen.owner


def test_nothing_is_written_that_does_not_fit(
    claims: ClaimsDirectory, folder: Path, neighbour: Master
) -> None:
    written_by(folder, neighbour)
    mine = Master(os.getuid(), os.getpid(), started(os.getpid()))
    asked: list[Sequence[OthersClaim]] = []

    def fits(others: Sequence[OthersClaim]) -> bool:
        asked.append(others)
        return len(asked) > 1

    assert not claims.exchange([claim_of(mine)], fits) and not (folder / mine.file_name).exists()
    assert claims.exchange([claim_of(mine)], fits)
    file = folder / mine.file_name
    assert [other.claim for other in asked[1]] == [claim_of(neighbour)]
    assert json.loads(file.read_text())["claims"][0]["gpu"] == GPU and file.stat().st_mode & 0o777 == 0o644
    claims.publish([])
    assert sorted(os.listdir(folder)) == sorted(["lock", neighbour.file_name])


def test_an_error_in_the_check_lets_the_lock_go(claims: ClaimsDirectory, folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        claims.exchange([], lambda others: bool(1 / 0))
    other = ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(folder)})
    assert other.exchange([], always)
    other.close()


@as_root
@pytest.mark.timeout(100)
def test_two_users_500_launches_no_gpu_over_promised(
    claims: ClaimsDirectory, folder: Path, stub_gpus: StubGpus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = folder.parent
    for _ in range(2):
        stub_gpus.gpu(total_mib=24576)
    shutil.copytree(stub_gpus.folder, shared / "gpus")
    shutil.copytree(stub_gpus.library, shared / "library")
    environ = {"LAB_GPU_STUB_NVML": str(shared / "gpus"), "LD_LIBRARY_PATH": str(shared / "library")}
    masters = []
    for uid in (ALICE, BOB):
        (shared / f"log-{uid}").touch()
        os.chown(shared / f"log-{uid}", uid, uid)
        masters.append(start_master("launches", uid, folder, shared / f"log-{uid}", 250, uid, **environ))
    peak_mib, owners = Counter[str](), set[str]()

    def watch(others: Sequence[OthersClaim]) -> bool:
        held = Counter[str]()
        for other in others:
            held[other.claim.gpu] += other.claim.mib
            owners.add(other.owner)
        for gpu, mib in held.items():
            peak_mib[gpu] = max(peak_mib[gpu], mib)
        return False

    while any(master.poll() is None for master in masters):
        claims.exchange([], watch)
        time.sleep(0.0005)
    for master in masters:
        _, error = master.communicate()
        assert master.returncode == 0, error
    assert owners == {str(ALICE), str(BOB)} and len(peak_mib) == 2
    assert all(mib <= 24576 for mib in peak_mib.values())
    assert replayed_peak_mib([shared / f"log-{uid}" for uid in (ALICE, BOB)]) <= 24576
    assert claims.others() == ()


def replayed_peak_mib(logs: Sequence[Path]) -> int:
    """The most that ran on one GPU at one time, by what the masters wrote down as they started and ended things."""
    events = sorted(tuple(line.split()) for log in logs for line in log.read_text().splitlines())
    events.sort(key=lambda event: int(event[0]))
    assert sum(int(mib) > 0 for _, _, mib in events) == 500 and sum(mib == "0" for _, _, mib in events) > 20
    held, peak = Counter[str](), 0
    for _, gpu, mib in events:
        held[gpu] += int(mib)
        peak = max(peak, held[gpu])
    assert set(held.values()) == {0}
    return peak


@pytest.mark.parametrize("uid", {ALICE, os.getuid()})
def test_claims_of_a_crashed_master_live_with_its_tasks(
    claims: ClaimsDirectory, folder: Path, uid: int
) -> None:
    master = start_master("crash", uid, folder)
    assert master.stdout
    task = int(master.stdout.readline())
    try:
        assert [other.claim.pid for other in claims.others()] == [task]
        master.kill()
        master.communicate()
        assert [(other.claim.mib, other.claim.pid) for other in claims.others()] == [(4096, task)]
        assert not claims.exchange([], lambda others: not others)
    finally:
        os.kill(task, signal.SIGKILL)
    wait_until(lambda: claims.others() == ())  # at once, though nobody may have reaped it yet
    assert claims.exchange([], lambda others: not others)
    left = [name for name in os.listdir(folder) if name.endswith(".json")]
    assert bool(left) == (uid != os.getuid())  # our own user's dead files are cleared away


def test_what_we_took_over_from_our_predecessor_counts_once(
    claims: ClaimsDirectory, folder: Path, neighbour: Master
) -> None:
    dead = Master(os.getuid(), 4_194_304, 5)
    file = written_by(folder, dead, claim_of(neighbour), Claim(GPU, 7, 4_194_303, 3))
    assert [other.claim for other in claims.others()] == [claim_of(neighbour)]
    claims.publish([claim_of(neighbour)])
    assert claims.others() == () and not file.exists()


def test_claims_of_another_boot_are_of_the_dead(
    claims: ClaimsDirectory, folder: Path, neighbour: Master
) -> None:
    written_by(folder, neighbour, boot="11111111-2222-3333-4444-555555555555")
    assert claims.others() == ()


def test_left_overs_of_a_crash_in_mid_write_are_cleared(folder: Path) -> None:
    left = folder / f".{os.getuid()}-4194304-5.json.0badcafe"
    left.touch()
    other = ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(folder)})
    other.publish([])
    other.close()
    assert not left.exists()


# --- hostile files -----------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def _symlink(path: Path) -> None:
    aside = path.rename(path.with_name("aside"))
    path.symlink_to(aside)


def _hard_link(path: Path) -> None:
    os.link(path, path.with_name("again"))


def _huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _writable(path: Path) -> None:
    path.chmod(0o666)


def _says(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _claims(**changed: object) -> Callable[[Path], object]:
    entry = {"gpu": GPU, "mib": 1, "pid": 1, "started": 1, **changed}
    return _says(json.dumps({"boot": boot_id(), "claims": [entry]}))


HOSTILE = {
    "fifo": _fifo,
    "symlink": _symlink,
    "hard link": _hard_link,
    "huge": _huge,
    "folder": _folder,
    "writable by all": _writable,
    "empty": _says(""),
    "no json": _says("{"),
    "deep": _says("[" * 200_000),
    "list": _says("[1]"),
    "no boot": _says('{"claims": []}'),
    "claims no list": _says(json.dumps({"boot": boot_id(), "claims": {"gpu": 1}})),
    "not utf-8": lambda path: path.write_bytes(b'{"boot": "\xff"}'),
    "negative": _claims(mib=-5),
    "a bool": _claims(mib=True),
    "beyond reason": _claims(mib=1 << 70),
    "pid 0": _claims(pid=0),
    "a gpu too long": _claims(gpu="G" * 1000),
    "a gpu that is none": _claims(gpu=None),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_neither_block_nor_count(
    claims: ClaimsDirectory, folder: Path, neighbour: Master, kind: str
) -> None:
    file = written_by(folder, neighbour)
    assert len(claims.others()) == 1
    HOSTILE[kind](file)
    assert claims.others() == ()
    assert claims.exchange([], lambda others: others == ())


@as_root
def test_nobody_claims_in_anothers_name(claims: ClaimsDirectory, folder: Path, neighbour: Master) -> None:
    forged = written_by(folder, neighbour)
    os.chown(forged, BOB, BOB)
    assert claims.others() == ()
    for_init = Master(BOB, 1, started(1))  # a process that lives for ever, and is not his
    os.chown(written_by(folder, for_init, claim_of(for_init)), BOB, BOB)
    assert claims.others() == ()


def test_somebody_who_sits_on_our_name_does_not_stop_us(claims: ClaimsDirectory, folder: Path) -> None:
    mine = Master(os.getuid(), os.getpid(), started(os.getpid()))
    (folder / mine.file_name).mkdir()
    assert claims.exchange([claim_of(mine)], always)
    other_names = [name for name in os.listdir(folder) if name.startswith(f"{mine.uid}-{mine.pid}-")]
    assert len(other_names) == 2
    claims.publish([])
    assert sorted(os.listdir(folder)) == [mine.file_name, "lock"]


# --- the lock ----------------------------------------------------------------------------------

HOLDER = """\
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_who_sits_on_the_lock_is_named_and_not_waited_for_twice(
    claims: ClaimsDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_lock, "WAIT_S", 0.3)
    monkeypatch.setattr(host_lock, "WAIT_AGAIN_S", 0.0)
    assert claims.exchange([], always)
    command = [sys.executable, "-c", HOLDER, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        began = time.monotonic()
        with pytest.raises(
            Broken, match=rf"^cannot reserve GPUs: process {holder.pid} of .*; end that process$"
        ):
            claims.exchange([], always)
        assert time.monotonic() - began >= 0.3
        with pytest.raises(Broken, match="for 0 s"):
            claims.exchange([], always)
        assert holder.stdin
        holder.stdin.close()
    assert claims.exchange([], always)


def test_a_lock_that_was_removed_is_made_again(claims: ClaimsDirectory, folder: Path) -> None:
    assert claims.exchange([], always)
    (folder / "lock").unlink()
    assert claims.exchange([], always)
    assert (folder / "lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_a_lock_that_is_none(
    claims: ClaimsDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], None]
) -> None:
    monkeypatch.setattr(host_lock, "WAIT_S", 0.05)
    make(str(folder / "lock"))
    with pytest.raises(Broken, match="lock cannot be opened"):
        claims.exchange([], always)


# --- the directory -----------------------------------------------------------------------------


def test_it_is_made_for_everybody(folder: Path) -> None:
    folder.rmdir()
    ours = ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(folder)})
    assert ours.others() == ()
    assert ours.exchange([], always)
    ours.close()
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_one_that_anybody_could_empty_is_refused(
    claims: ClaimsDirectory, folder: Path, neighbour: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "SETTLE_S", 0.0)
    written_by(folder, neighbour)
    folder.chmod(0o777)
    with pytest.raises(Broken, match=r"^cannot share claims on GPUs in .*: it is not safe.*chmod 1777"):
        claims.exchange([], always)
    assert claims.others() == ()


@as_root
def test_one_of_another_user_must_be_sticky(
    claims: ClaimsDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "SETTLE_S", 0.0)
    os.chown(folder, BOB, BOB)
    assert claims.exchange([], always)
    folder.chmod(0o755)
    with pytest.raises(Broken, match="not safe for several users"):
        claims.publish([])


def test_a_link_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "SETTLE_S", 0.0)
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(Broken, match="is no directory"):
        ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(link)}).exchange([], always)


def test_one_that_cannot_be_made(folder: Path) -> None:
    with pytest.raises(Broken, match="cannot be made; name a directory"):
        ClaimsDirectory({"LAB_GPU_CLAIMS_DIR": str(folder / "no" / "where")}).publish([])


def test_a_better_place_that_comes_up_is_moved_to(
    folder: Path, neighbour: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters of before and after must not part ways: both places are read, the better one is written."""
    better = folder.parent / "run" / "claims"
    monkeypatch.setattr(claims_module, "PLACES", (str(better), str(folder)))
    mine = Master(os.getuid(), os.getpid(), started(os.getpid()))
    ours = ClaimsDirectory({})
    written_by(folder, neighbour)
    assert ours.exchange([claim_of(mine)], always) and (folder / mine.file_name).exists()
    better.parent.mkdir()
    assert not ours.exchange([claim_of(mine)], lambda others: len(others) == 0)
    assert ours.exchange([claim_of(mine)], lambda others: len(others) == 1)
    assert (better / mine.file_name).exists() and not (folder / mine.file_name).exists()
    ours.close()


def test_a_full_disk_is_a_sentence(
    claims: ClaimsDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Master(os.getuid(), os.getpid(), started(os.getpid()))
    monkeypatch.setattr(os, "write", lambda fd, content: 0)
    with pytest.raises(Broken, match=r"cannot be written \(No space left on device\)"):
        claims.publish([claim_of(mine)])
    monkeypatch.undo()
    assert os.listdir(folder) == []

"""What `lab-gpu doctor` looks at: small functions of what they are given. They answer a Finding, never raise.

A finding is `ok`, `warn` (less than it could be) or `bad` (something will not work), and says what to do.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from lab_gpu.core.network_mounts import is_network

OK, WARN, BAD = "ok", "warn", "bad"
LEAST_FREE_BYTES, SCARCE_FREE_BYTES = 256 << 20, 2 << 30
LEAST_INOTIFY_INSTANCES = 64
EARLIEST_SANE_TIME = 1_735_689_600  # 2025-01-01: no clock is right before this was written
TOOL_LIMIT_S = 10
READ_LIMIT_S = 5.0
DAMAGED = "stop the master, move it away together with its -wal, and put a copy back or start empty"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor. `advice` is what to do, where something is to be done."""

    name: str
    grade: str
    text: str
    advice: str | None = None

    def to_doc(self) -> dict[str, Any]:
        return asdict(self)


def run_tool(words: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a short command; 127 where it is not there, 124 where it hangs."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TOOL_LIMIT_S} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, (done.stdout or done.stderr).strip()


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    text = f"Python {version[0]}.{version[1]} at {sys.executable}"
    if version < (3, 10):
        return Finding("python", BAD, text, "install Lab-GPU into Python 3.10 or later")
    return Finding("python", OK, text)


def nvml(environ: Mapping[str, str]) -> Finding:
    if environ.get("LAB_GPU_NO_NVML") == "1":
        return Finding(
            "nvml", WARN, "switched off by LAB_GPU_NO_NVML=1", "unset it where the GPUs shall be read"
        )
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        advice = "install the NVIDIA driver, or declare a virtual node with `lab-gpu server add-node`"
        return Finding("nvml", WARN, f"no GPU can be read: {error}", advice)
    try:
        return _nvml_gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpus(binding: Any) -> Finding:
    """A GPU that the driver lists but cannot be asked is what people hunt for: it is named."""
    count, sick = binding.nvmlDeviceGetCount(), []
    for index in range(count):
        try:
            binding.nvmlDeviceGetMemoryInfo(binding.nvmlDeviceGetHandleByIndex(index))
        except binding.NVMLError as error:
            sick.append(f"GPU {index}: {error}")
    if sick:
        return Finding("nvml", BAD, "; ".join(sick), "look at `dmesg` and reset the GPU or reboot")
    return Finding(
        "nvml", OK, f"{count} GPU{'' if count == 1 else 's'}, driver {binding.nvmlSystemGetDriverVersion()}"
    )


def nvidia_smi(run: Callable[[Sequence[str]], tuple[int, str]] = run_tool) -> Finding:
    status, text = run(("nvidia-smi", "-L"))
    if status == 0:
        return Finding("nvidia-smi", OK, f"GPUs listed: {len(text.splitlines())}")
    if status == 127:
        return Finding(
            "nvidia-smi", WARN, "not on PATH", "it is the fallback where NVML fails; it comes with the driver"
        )
    first = text.splitlines()[0] if text else f"exit status {status}"
    return Finding(
        "nvidia-smi", BAD, f"fails: {first}", "the driver and its kernel module must be of one version"
    )


def tool(name: str, words: Sequence[str], needed: bool, advice: str) -> Finding:
    """`needed` makes a missing one bad, else it is only worth a word."""
    status, text = run_tool(words)
    if status == 0:
        return Finding(name, OK, text.splitlines()[0] if text else "found")
    return Finding(name, BAD if needed else WARN, "not on PATH" if status == 127 else text, advice)


def conda(environ: Mapping[str, str]) -> Finding:
    found = environ.get("CONDA_EXE") or shutil.which("conda", path=environ.get("PATH"))
    if found and os.access(found, os.X_OK):
        return Finding("conda", OK, found)
    if found:
        return Finding(
            "conda", WARN, f"CONDA_EXE names {found}, which cannot be run", "unset it or install conda there"
        )
    return Finding("conda", WARN, "not found", "only `--env NAME` needs it; the path of a venv works without")


def log_root(path: str) -> Finding:
    """A file can be made there, or in the folder in which the root itself would be made."""
    try:
        tempfile.TemporaryFile(dir=nearest_folder(path)).close()
    except OSError as error:
        advice = "name another one: lab-gpu config set log_root DIR"
        return Finding("log root", BAD, f"{path} cannot be written: {error.strerror}", advice)
    return Finding("log root", OK, path)


def permissions(home: str, uid: int) -> Finding:
    """The home belongs to its owner alone to write, and its token to its owner alone to read."""
    if not os.path.isdir(home):
        return Finding("permissions", OK, f"{home} is not there yet; the first start makes it")
    faults = [*_wrong_mode(home, uid, 0o022), *_wrong_mode(f"{home}/token", uid, 0o077)]
    if faults:
        return Finding(
            "permissions",
            BAD,
            "; ".join(faults),
            f"chmod go-w {home}; chmod 600 {home}/token; chown both to you",
        )
    if not os.access(home, os.W_OK | os.X_OK):
        return Finding(
            "permissions", BAD, f"{home} cannot be written", f"chmod u+rwx {home}, or set LAB_GPU_HOME"
        )
    return Finding("permissions", OK, home)


def socket_permissions(path: str, uid: int) -> Finding:
    if not os.path.exists(path):
        return Finding("socket", OK, f"{path} is not there: no master runs")
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return Finding("socket", BAD, f"{path} is no socket", "remove it and start the master again")
    faults = list(_wrong_mode(os.path.dirname(path), uid, 0o022))
    if faults:
        return Finding("socket", BAD, "; ".join(faults), f"chmod go-w {os.path.dirname(path)}")
    return Finding("socket", OK, path)


def _wrong_mode(path: str, uid: int, forbidden: int) -> Sequence[str]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    if found.st_uid != uid and uid != 0:
        return (f"{path} belongs to uid {found.st_uid}",)
    if found.st_mode & forbidden:
        return (f"{path} has mode {stat.S_IMODE(found.st_mode):o}",)
    return ()


def disk_space(name: str, path: str) -> Finding:
    place = nearest_folder(path)
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    text = f"{free / (1 << 30):.1f} GiB free at {path}"
    if free < LEAST_FREE_BYTES or (room.f_files and room.f_favail == 0):
        return Finding(name, BAD, text, "make room: a full disk stops every submit")
    return (
        Finding(name, WARN, text, "make room soon") if free < SCARCE_FREE_BYTES else Finding(name, OK, text)
    )


def nearest_folder(path: str) -> str:
    place = os.path.abspath(path)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place


def database(path: str, limit_s: float = READ_LIMIT_S) -> Finding:
    """Read whole where the limit allows it. Nothing is written: a ledger that nobody has open stays untouched."""
    if not os.path.exists(path):
        return Finding("database", OK, f"{path} is not there yet; the first start makes it")
    wanted = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    give_up_at = time.monotonic() + limit_s
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?{wanted}", uri=True, timeout=1)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > give_up_at, 10_000)
            (found,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if any(word in str(error) for word in ("interrupted", "locked")):
            return Finding("database", OK, f"{path} is in use, or too large to be read whole here")
        return Finding("database", BAD, f"{path} cannot be opened: {error}", "check the disk and its rights")
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        return Finding("database", BAD, f"{path} is damaged: {' '.join(found.split())}", DAMAGED)
    return Finding("database", OK, path)


def file_system(path: str, mounts: str) -> Finding:
    """`mounts` is the text of /proc/self/mounts."""
    kind = file_system_of(os.path.realpath(path), mounts)
    if is_network(kind):
        return Finding(
            "file system",
            WARN,
            f"{path} lies on {kind}",
            "a local one is faster: set LAB_GPU_HOME to a local disk",
        )
    return Finding("file system", OK, f"{path} lies on {kind}")


def file_system_of(path: str, mounts: str) -> str:
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def clock(folder: str, now: float) -> Finding:
    """The clock is past any doubt, and agrees with the file system that stamps the logs."""
    if now < EARLIEST_SANE_TIME:
        return Finding(
            "clock", BAD, f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}", "set the clock; run NTP"
        )
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(folder)) as file:
            ahead_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return Finding("clock", OK, "set; the file system could not be asked")
    if abs(ahead_s) > 5:
        return Finding(
            "clock", WARN, f"the file system's clock is {ahead_s:+.0f} s off", "run NTP on both hosts"
        )
    return Finding("clock", OK, "set, and the file system agrees")


def lingering(
    user: str, uid: int, systemd_dir: str = "/run/systemd/system", marks: str = "/var/lib/systemd/linger"
) -> Finding:
    """A host with logind may end what a user left behind at logout, the master and its tasks with it."""
    if uid == 0 or not os.path.isdir(systemd_dir):
        return Finding("lingering", OK, "not needed here")
    if os.path.exists(f"{marks}/{user}"):
        return Finding("lingering", OK, f"on for {user}")
    return Finding(
        "lingering", WARN, f"off for {user}: this host may end tasks at logout", "loginctl enable-linger"
    )


def inotify(folder: str = "/proc/sys/fs/inotify") -> Finding:
    try:
        with open(f"{folder}/max_user_instances", encoding="ascii") as file:
            instances = int(file.read())
    except (OSError, ValueError):
        return Finding("inotify", WARN, "its limits cannot be read", "look at /proc/sys/fs/inotify")
    if instances < LEAST_INOTIFY_INSTANCES:
        advice = "sysctl fs.inotify.max_user_instances=512"
        return Finding("inotify", WARN, f"only {instances} instances for each user", advice)
    return Finding("inotify", OK, f"{instances} instances for each user")


def master(answer: Mapping[str, Any] | None, fault: str | None, version: str) -> Sequence[Finding]:
    """`answer` is what /api/v1/server said; `fault` why nothing did; `version` this program's own."""
    if answer is None:
        return (Finding("master", WARN, fault or "none runs"),)
    found = [Finding("master", OK, f"pid {answer['pid']}, {answer.get('url') or answer.get('socket')}")]
    if answer["version"] != version:
        text = f"the master is {answer['version']}, this command {version}"
        found.append(Finding("version", WARN, text, "lab-gpu server restart; running tasks go on"))
    else:
        found.append(Finding("version", OK, version))
    return [*found, *(Finding("master", WARN, str(each), None) for each in answer.get("warnings") or ())]

"""Stub GPUs for tests: builds the stub library once, and writes the text files its GPUs are read from.

Fixtures: `nvml_library` (a folder for LD_LIBRARY_PATH) and `stub_gpus` (a StubGpus, loaded into this very process).
Where the library cannot be built (no gcc, no package index) the tests that ask for it are skipped, saying why.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from generate import rest_of_library

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"
HEADERS = "nvidia-nvml-dev>=13,<14"
LIMIT_S = 180
_stamps = itertools.count(1)


class CannotBuild(Exception):
    """This machine has not what it takes; str() says what."""


class StubGpus:
    """What the stub's driver shows. Every change is seen by the next reading, in this process and in any other."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.library = folder, library
        self._driver: dict[str, object] = {}
        self._lines: list[tuple[str, dict[str, object]]] = []
        (folder / "processes").mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def environ(self) -> dict[str, str]:
        """For other processes that shall see these GPUs."""
        return {"LAB_GPU_STUB_NVML": str(self.folder), "LD_LIBRARY_PATH": str(self.library)}

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-00000000-0000-4000-8000-{index:012d}"

    def gpu(self, name: str = "NVIDIA GeForce RTX 3090", **fields: object) -> str:
        """Adds a GPU; its UUID. Fields as in stub.c."""
        index = sum(kind == "gpu" for kind, _ in self._lines)
        fields = {"uuid": self.uuid(index), "name": name, **fields}
        self._add("gpu", fields)
        return str(fields["uuid"])

    def mig(self, gpu: int, slot: int, uuid: str, **fields: object) -> None:
        self._add("mig", {"gpu": gpu, "slot": slot, "uuid": uuid, **fields})

    def process(self, pid: int, gpu: int | str, mib: int | None, **fields: object) -> None:
        """A process the driver lists whether or not it lives."""
        told = {} if mib is None else {"mib": mib}
        self._add("process", {"gpu": gpu, "pid": pid, **told, **fields})

    def processes(self, listed: Sequence[tuple[int, int, int]]) -> None:
        """Many at once: (pid, gpu, MiB)."""
        self._lines += [("process", {"gpu": gpu, "pid": pid, "mib": mib}) for pid, gpu, mib in listed]
        self.write()

    def living(self, pid: int, gpu: int | str, mib: int) -> None:
        """A process the driver lists while it lives."""
        (self.folder / "processes" / str(pid)).write_text(f"process\tgpu={gpu}\tpid={pid}\tmib={mib}\n")

    def change(self, gpu: int, **fields: object) -> None:
        [line for kind, line in self._lines if kind == "gpu"][gpu].update(fields)
        self.write()

    def driver(self, **fields: object) -> None:
        self._driver = dict(fields)
        self.write()

    def clear_processes(self) -> None:
        self._lines = [line for line in self._lines if line[0] != "process"]
        self.write()

    def write(self) -> None:
        lines = [("driver", self._driver), *self._lines]
        text = "".join(
            "\t".join([kind, *(f"{key}={value}" for key, value in fields.items())]) + "\n"
            for kind, fields in lines
        )
        temporary = self.folder / "gpus.new"
        temporary.write_text(text)
        # The clock of the file system is too coarse to tell two writes of one moment apart.
        os.utime(temporary, ns=(0, next(_stamps) * 1_000_003))
        temporary.rename(self.folder / "gpus")

    def _add(self, kind: str, fields: Mapping[str, object]) -> None:
        self._lines.append((kind, dict(fields)))
        self.write()


def load_here(gpus: StubGpus) -> None:
    """A library already loaded is found by its name: whoever asks for the driver's in this process gets the stub."""
    os.environ["LAB_GPU_STUB_NVML"] = gpus.environ["LAB_GPU_STUB_NVML"]
    ctypes.CDLL(str(gpus.library / LIBRARY))


def build(cache: Path) -> Path:
    """The folder of the built library; built at most once for each state of its sources."""
    sources = (HERE / "stub.c").read_text(), (HERE / "generate.py").read_text(), HEADERS
    folder = cache / hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / LIBRARY).exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _compile(_headers(cache), Path(work))
                folder.mkdir(exist_ok=True)
                (Path(work) / LIBRARY).rename(folder / LIBRARY)
    return folder


def _headers(cache: Path) -> Path:
    """The folder of NVIDIA's nvml.h, from its package on the index; it is not ours to keep in the repository."""
    kept = cache / "headers"
    if not (kept / "nvml.h").exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, HEADERS]
            _run(pip, f"{HEADERS} cannot be downloaded")
            with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith("/nvml.h"))
                kept.mkdir(exist_ok=True)
                (Path(work) / "nvml.h").write_bytes(wheel.read(name))
                (Path(work) / "nvml.h").rename(kept / "nvml.h")
    return kept


def _compile(headers: Path, work: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CannotBuild("gcc is not installed")
    rest = work / "rest.c"
    rest.write_text(rest_of_library((headers / "nvml.h").read_text(), (HERE / "stub.c").read_text()))
    flags = ["-O1", "-shared", "-fPIC", f"-I{headers}", f"-Wl,-soname,{LIBRARY}", "-o", str(work / LIBRARY)]
    _run([compiler, *flags, str(HERE / "stub.c"), str(rest), "-lpthread"], "the stub does not compile")


def _run(command: list[str], failed: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{failed}: {error}") from None
    if done.returncode:
        raise CannotBuild(f"{failed}: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def nvml_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = getattr(request.config, "cache", None)
    try:
        return build(Path(kept.mkdir("nvml-stub")) if kept else tmp_path_factory.mktemp("nvml-stub"))
    except CannotBuild as why:
        pytest.skip(f"the stub NVML library cannot be built here: {why}")


@pytest.fixture
def stub_gpus(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubGpus]:
    monkeypatch.delenv("LAB_GPU_NO_NVML", raising=False)
    monkeypatch.setenv("LAB_GPU_STUB_NVML", "")  # taken back at the end, whatever load_here sets
    gpus = StubGpus(tmp_path / "stub-gpus", nvml_library)
    load_here(gpus)
    yield gpus

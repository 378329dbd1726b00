"""GPU readings from `nvidia-smi`, for where its library cannot be loaded.

It tells of computing processes only, so on a desktop the memory of what draws stays unaccounted for; nor does
it tell the memory of MIG devices, so a GPU in MIG mode is closed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from lab_gpu.core.ids import GpuUuid
from lab_gpu.core.snapshot import GpuFacts, GpuProcess, HostFacts
from lab_gpu.probe.nvml import LIBRARY, host_memory_mib
from lab_gpu.probe.processes import ProcessTable, printable

LIMIT_S = 15.0
PLACES = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi")
# The name stands last: it may hold commas. Old versions do not know the MIG field.
FIELDS = (
    "index",
    "uuid",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "compute_mode",
    "mig.mode.current",
    "name",
)
WITHOUT_MIG = tuple(field for field in FIELDS if field != "mig.mode.current")
NO_GPU = "No devices were found"


class SmiFailed(Exception):
    """It could not be asked, or had no answer; str() is why."""


class SmiProbe:
    def __init__(self) -> None:
        self._fields: tuple[str, ...] = FIELDS
        self._processes = ProcessTable()
        self._stuck: subprocess.Popen[str] | None = None  # one that not even SIGKILL ended

    @staticmethod
    def program() -> str | None:
        return shutil.which("nvidia-smi") or next(
            (place for place in PLACES if os.access(place, os.X_OK)), None
        )

    def read(self) -> HostFacts:
        at = time.time()
        try:
            gpus, strays = self._read_gpus()
        except SmiFailed as failed:
            return HostFacts(at, "nvidia-smi", problem=f"cannot read the GPUs: {failed}")
        problem = f"nvidia-smi could not read every GPU: {printable(strays[0])}" if strays else None
        return HostFacts(at, "nvidia-smi", gpus, problem)

    def close(self) -> None:
        """Nothing is open between two readings."""

    def _read_gpus(self) -> tuple[tuple[GpuFacts, ...], list[str]]:
        code, text = self._ask("--query-gpu=" + ",".join(self._fields))
        if code and "not a valid field" in text and self._fields is FIELDS:
            self._fields = WITHOUT_MIG
            code, text = self._ask("--query-gpu=" + ",".join(self._fields))
        rows, strays = split_rows(text, len(self._fields))
        if NO_GPU in text and not rows:
            return (), []
        if code and not rows:
            raise SmiFailed(f"nvidia-smi ended with {code}: {printable(strays[0]) if strays else 'no word'}")
        self._processes.begin()
        by_gpu = self._processes_by_gpu() if rows else {}
        return tuple(self._facts(row, by_gpu) for row in rows), strays

    def _facts(self, row: list[str], by_gpu: Mapping[str, tuple[GpuProcess, ...]]) -> GpuFacts:
        told = dict(zip(self._fields, row, strict=True))
        return gpu_from(told, by_gpu.get(told["uuid"], ()))

    def _processes_by_gpu(self) -> dict[str, tuple[GpuProcess, ...]]:
        code, text = self._ask("--query-compute-apps=gpu_uuid,pid,used_memory")
        found: dict[str, tuple[GpuProcess, ...]] = {}
        for uuid, pid, memory in split_rows(text, 3)[0] if not code else ():
            process = self._processes.look(int(pid)) if pid.isdigit() else None
            if process is not None:
                entry = GpuProcess(
                    pid=int(pid),
                    started=process.started,
                    mib=whole(memory),
                    owner=process.owner,
                    command=process.command,
                    uni_id=process.uni_id,
                    ancestors=process.ancestors,
                )
                found[uuid] = (*found.get(uuid, ()), entry)
        return found

    def _ask(self, question: str) -> tuple[int, str]:
        program = self.program()
        if program is None:
            raise SmiFailed("nvidia-smi is not installed; install the NVIDIA driver with its programs")
        if self._stuck is not None and self._stuck.poll() is None:
            raise SmiFailed("an nvidia-smi hangs in the driver; look into dmesg, and reboot this host")
        self._stuck = None
        command = [program, question, "--format=csv,noheader,nounits"]
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            asked = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SmiFailed(f"{program} cannot be started ({error.strerror}); repair or remove it") from None
        return self._answer(asked)

    def _answer(self, asked: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            text, _ = asked.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            if asked.stdout:
                asked.stdout.close()
            self._stuck = asked
            raise SmiFailed(f"nvidia-smi gave no answer within {LIMIT_S:g} s; look into dmesg") from None
        return asked.returncode, text


def split_rows(text: str, width: int) -> tuple[list[list[str]], list[str]]:
    """Rows of so many fields that begin with a number or a GPU's UUID, and the lines that are none."""
    rows, strays = [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = [field.strip() for field in line.split(",", width - 1)]
        is_row = len(row) == width and (row[0].isdigit() or row[0].startswith(("GPU-", "MIG-")))
        if is_row:
            rows.append(row)
        else:
            strays.append(line)
    return rows, strays


def gpu_from(told: Mapping[str, str], processes: tuple[GpuProcess, ...]) -> GpuFacts:
    total_mib, used_mib = whole(told["memory.total"]), whole(told["memory.used"])
    if total_mib is None:
        total_mib, used_mib = host_memory_mib(), sum(process.mib or 0 for process in processes)
    mig = told.get("mig.mode.current") == "Enabled"
    values: dict[str, Any] = {
        "utilization": whole(told["utilization.gpu"]),
        "temperature_c": whole(told["temperature.gpu"]),
        "power_w": number(told["power.draw"]),
        "exclusive_mode": told["compute_mode"].startswith("Exclusive"),
    }
    return GpuFacts(
        uuid=GpuUuid(told["uuid"]),
        index=int(told["index"]),
        name=printable(told["name"]),
        total_mib=total_mib,
        used_mib=used_mib or 0,
        processes=processes,
        mig=mig,
        problem=problem_of(told, mig),
        **values,
    )


def problem_of(told: Mapping[str, str], mig: bool) -> str | None:
    index = told["index"]
    words = " ".join(value for field, value in told.items() if field != "name").lower()
    if "gpu is lost" in words:
        return f"GPU {index} fell off the bus; reset it (nvidia-smi -r -i {index}) or reboot this host"
    if "unknown error" in words or "err!" in words or "requires reset" in words:
        return f"GPU {index} cannot be read; look into dmesg, and reset it or reboot this host"
    if told["compute_mode"] == "Prohibited":
        return (
            f"GPU {index} is in prohibited compute mode, which lets no program use it;"
            f" run nvidia-smi -i {index} -c DEFAULT"
        )
    if mig:
        return (
            f"GPU {index} is in MIG mode, whose devices nvidia-smi does not measure;"
            f" make {LIBRARY} loadable or switch the mode off (nvidia-smi -i {index} -mig 0)"
        )
    return None


def number(text: str) -> float | None:
    """None for "[N/A]", "[Not Supported]" and whatever else is no number."""
    try:
        return float(text)
    except ValueError:
        return None


def whole(text: str) -> int | None:
    value = number(text)
    return None if value is None else round(value)

"""GPU readings from the driver's own library, through nvidia-ml-py.

What is wrong with one GPU is that GPU's `problem`, what is wrong with the driver the host's; neither raises.
Memory is counted as `nvidia-smi` does: the total is the card's, the part the driver reserves for itself is
nobody's use. A GPU in MIG mode is shown as its MIG devices, numbered (GPU + 1) * 100 + device.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lab_gpu.core.ids import GpuUuid
from lab_gpu.core.snapshot import GpuFacts, GpuProcess, HostFacts
from lab_gpu.probe.processes import ProcessTable, printable

LIBRARY = "libnvidia-ml.so.1"
LOST_RETRY_S = 10.0  # a GPU that came back is seen only by a library that is opened anew
EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = 1, 2, 3
MIB_SHIFT = 20


@dataclass(slots=True)
class _Card:
    """A device the library has opened, and what it was found not to answer."""

    handle: Any
    index: int
    uuid: str
    name: str
    unanswered: set[tuple[Any, ...]] = field(default_factory=set)


class NvmlProbe:
    def __init__(self) -> None:
        self.absent = False  # this host has no such library
        self.unloaded = False  # it has, and the kernel has no driver for it
        self._nvml: Any = None
        self._opened_at: float | None = None
        self._cards: dict[int, _Card] = {}
        self._last_of: dict[int, tuple[str, str, int]] = {}  # uuid, name, total of cards once seen
        self._lost = False
        self._processes = ProcessTable()

    def read(self) -> HostFacts:
        at = time.time()
        if not self._has_library():
            return HostFacts(at, "nvml", problem=_absent())
        try:
            self._open()
            self._processes.begin()
            self._lost = False
            count = self._nvml.nvmlDeviceGetCount()
            gpus = tuple(gpu for index in range(count) for gpu in self._gpus_at(index))
        except self._nvml.NVMLError as error:
            self.close()
            self.unloaded = error.value == self._nvml.NVML_ERROR_DRIVER_NOT_LOADED
            return HostFacts(at, "nvml", problem=self._host_problem(error))
        return HostFacts(at, "nvml", gpus)

    def close(self) -> None:
        """Lets go of the driver, which can then be updated; the next reading opens it again."""
        if self._opened_at is None:
            return
        self._opened_at = None
        self._cards = {}
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # a driver that went away has nothing left to close

    # --- the library ---------------------------------------------------------------------------

    def _has_library(self) -> bool:
        """The binding is imported only where there is a library to bind: most laptops never pay for it."""
        if self._nvml is not None:
            return True
        import ctypes

        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            self.absent = True
            return False
        import pynvml

        self._nvml, self.absent = pynvml, False
        return True

    def _open(self) -> None:
        now = time.monotonic()
        if self._opened_at is not None and self._lost and now - self._opened_at >= LOST_RETRY_S:
            self.close()
        if self._opened_at is None:
            self._nvml.nvmlInit()
            self._opened_at, self.unloaded = now, False

    def _ask(self, card: _Card, question: str, *more: Any) -> Any:
        """The answer, or None where this driver or card has none to give. Real failures raise."""
        asked = (question, *more)
        if asked in card.unanswered:
            return None
        nvml = self._nvml
        try:
            return getattr(nvml, question)(card.handle, *more)
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            ):
                card.unanswered.add(asked)
                return None
            if error.value in (nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NO_DATA):
                return None
            raise

    # --- cards ---------------------------------------------------------------------------------

    def _gpus_at(self, index: int) -> Iterable[GpuFacts]:
        nvml = self._nvml
        try:
            card = self._cards.get(index) or self._new_card(index)
            mode = self._ask(card, "nvmlDeviceGetMigMode")
            if mode and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE:
                return self._mig_devices(card)
            return (self._facts(card, card.index),)
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            ):
                raise
            return (self._failed(index, error),)

    def _new_card(self, index: int) -> _Card:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        card = _Card(handle, index, nvml.nvmlDeviceGetUUID(handle), printable(nvml.nvmlDeviceGetName(handle)))
        self._cards[index] = card
        return card

    def _failed(self, index: int, error: Any) -> GpuFacts:
        self._cards.pop(index, None)
        self._lost = True
        uuid, name, total_mib = self._last_of.get(index, (f"GPU-unreadable-{index}", "unreadable GPU", 0))
        return GpuFacts(GpuUuid(uuid), index, name, total_mib, problem=self._gpu_problem(index, error))

    def _facts(self, card: _Card, index: int, of_parent: dict[str, Any] | None = None) -> GpuFacts:
        processes = self._processes_on(card)
        total_mib, used_mib = self._memory(card, processes)
        utilization = self._ask(card, "nvmlDeviceGetUtilizationRates")
        power_mw = self._ask(card, "nvmlDeviceGetPowerUsage")
        facts: dict[str, Any] = {
            "temperature_c": self._ask(card, "nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            "exclusive_mode": False,
            **self._compute_mode(card),
            **(of_parent or {}),
        }
        if of_parent is None:
            self._last_of[index] = (card.uuid, card.name, total_mib)
        return GpuFacts(
            uuid=GpuUuid(card.uuid),
            index=index,
            name=card.name,
            total_mib=total_mib,
            used_mib=used_mib,
            utilization=None if utilization is None else int(utilization.gpu),
            power_w=None if power_mw is None else power_mw / 1000,
            processes=processes,
            **facts,
        )

    def _compute_mode(self, card: _Card) -> dict[str, Any]:
        mode = self._ask(card, "nvmlDeviceGetComputeMode")
        if mode == PROHIBITED:
            return {
                "problem": f"GPU {card.index} is in prohibited compute mode, which lets no program use it;"
                f" run nvidia-smi -i {card.index} -c DEFAULT"
            }
        return {"exclusive_mode": mode in (EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS)}

    def _memory(self, card: _Card, processes: Iterable[GpuProcess]) -> tuple[int, int]:
        """Total and used MiB. Old drivers know only a form that counts the driver's own share as used."""
        read = self._ask(card, "nvmlDeviceGetMemoryInfo", self._nvml.nvmlMemory_v2)
        if read is None:
            read = self._ask(card, "nvmlDeviceGetMemoryInfo")
        if read is None:
            return host_memory_mib(), sum(process.mib or 0 for process in processes)
        return read.total >> MIB_SHIFT, read.used >> MIB_SHIFT

    def _mig_devices(self, parent: _Card) -> tuple[GpuFacts, ...]:
        nvml = self._nvml
        shared = {
            "temperature_c": self._ask(parent, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "mig": True,
            **self._compute_mode(parent),
        }
        devices = []
        for place in range(self._ask(parent, "nvmlDeviceGetMaxMigDeviceCount") or 0):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent.handle, place)
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
                continue
            name = printable(nvml.nvmlDeviceGetName(handle))
            device = _Card(handle, parent.index, nvml.nvmlDeviceGetUUID(handle), name)
            devices.append(self._facts(device, (parent.index + 1) * 100 + place, shared))
        return tuple(devices) or (self._mig_without_devices(parent),)

    def _mig_without_devices(self, card: _Card) -> GpuFacts:
        total_mib, used_mib = self._memory(card, ())
        problem = (
            f"GPU {card.index} is in MIG mode and shows no MIG device a program could use;"
            f" make one (nvidia-smi mig) or switch the mode off (nvidia-smi -i {card.index} -mig 0)"
        )
        uuid = GpuUuid(card.uuid)
        return GpuFacts(uuid, card.index, card.name, total_mib, used_mib, mig=True, problem=problem)

    # --- processes -----------------------------------------------------------------------------

    def _processes_on(self, card: _Card) -> tuple[GpuProcess, ...]:
        """One entry for each process. One that computes and draws is in both lists, with the same memory."""
        computing, drawing = self._listed(card, "Compute"), self._listed(card, "Graphics")
        for pid, mib in computing.items():
            drawn_mib = drawing.get(pid)
            computing[pid] = mib if drawn_mib is None else max(mib or 0, drawn_mib)
        met = []
        for pid, mib in {**drawing, **computing}.items():
            process = self._processes.look(pid)
            if process is not None:
                met.append(
                    GpuProcess(
                        pid=pid,
                        started=process.started,
                        mib=mib,
                        graphics=pid not in computing,
                        owner=process.owner,
                        command=process.command,
                        uni_id=process.uni_id,
                        ancestors=process.ancestors,
                    )
                )
        return tuple(met)

    def _listed(self, card: _Card, kind: str) -> dict[int, int | None]:
        found = self._ask(card, f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if found is None:
            found = self._ask(card, f"nvmlDeviceGet{kind}RunningProcesses_v2")
        return {
            each.pid: None if each.usedGpuMemory is None else each.usedGpuMemory >> MIB_SHIFT
            for each in found or ()
        }

    # --- words ---------------------------------------------------------------------------------

    def _host_problem(self, error: Any) -> str:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            why = "the NVIDIA driver is not loaded; load it (modprobe nvidia) or reboot this host"
        elif error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            why = "the NVIDIA driver was updated while the old one is still loaded; reboot this host"
        elif error.value == nvml.NVML_ERROR_NO_PERMISSION:
            why = "this user may not open /dev/nvidia*; ask the administrator of this host for the right"
        else:
            why = f"the NVIDIA driver says '{error}'; look into dmesg, and reboot this host if it stays"
        return f"cannot read the GPUs: {why}"

    def _gpu_problem(self, index: int, error: Any) -> str:
        nvml = self._nvml
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            return f"GPU {index} fell off the bus; reset it (nvidia-smi -r -i {index}) or reboot this host"
        if error.value == nvml.NVML_ERROR_RESET_REQUIRED:
            return f"GPU {index} must be reset; run nvidia-smi -r -i {index} or reboot this host"
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            return (
                f"GPU {index} may not be used by this user; ask the administrator of this host for the right"
            )
        return f"GPU {index} cannot be read ({error}); look into dmesg, and reset it or reboot this host"


def host_memory_mib() -> int:
    """What a GPU without memory of its own (GB10, Jetson) works in: the host's."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemTotal:"))


def _absent() -> str:
    return f"cannot read the GPUs: {LIBRARY} is not installed; install the NVIDIA driver with its libraries"

"""This host's GPUs from the best source there is now: NVML, else nvidia-smi, else none.

NVML is tried again at every reading, so the host goes back to it as soon as it answers. GPUs once seen stay
in the facts, closed, while no source can read them: what is promised on them is still held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lab_gpu.core.snapshot import GpuFacts, HostFacts
from lab_gpu.probe.nvml import NvmlProbe

if TYPE_CHECKING:
    from lab_gpu.probe.smi import SmiProbe

SMI_PAUSE_S = 10.0  # a failing nvidia-smi can take seconds each time
PCI_DEVICES = "/sys/bus/pci/devices"
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA, 3D controller: not the audio part of a card


class HostProbe:
    """`LAB_GPU_NO_NVML=1` in the environment: it finds no GPU."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._off = environ.get("LAB_GPU_NO_NVML") == "1"
        self._nvml = NvmlProbe()
        self._smi: SmiProbe | None = None
        self._smi_after = 0.0
        self._seen: tuple[GpuFacts, ...] = ()

    def read(self) -> HostFacts:
        if self._off:
            return HostFacts(time.time(), "none")
        facts = self._nvml.read()
        if facts.problem:
            facts = self._instead(facts)
        return self._with_unseen(facts)

    def close(self) -> None:
        self._nvml.close()

    def _instead(self, nvml: HostFacts) -> HostFacts:
        """nvidia-smi is a fresh process: its library fits the driver where ours is of before an update."""
        smi = self._by_smi()
        if smi is not None and (smi.gpus or not smi.problem):
            return smi
        if self._seen:
            return nvml
        if self._nvml.absent:
            return smi or HostFacts(nvml.at, "none")
        if self._nvml.unloaded and not has_nvidia_card():
            return HostFacts(nvml.at, "none")
        return nvml

    def _by_smi(self) -> HostFacts | None:
        if time.monotonic() < self._smi_after:
            return None
        from lab_gpu.probe.smi import SmiProbe

        if SmiProbe.program() is None:
            return None
        self._smi = self._smi or SmiProbe()
        facts = self._smi.read()
        if facts.problem and not facts.gpus:
            self._smi_after = time.monotonic() + SMI_PAUSE_S
        return facts

    def _with_unseen(self, facts: HostFacts) -> HostFacts:
        if facts.gpus or not facts.problem:
            self._seen = facts.gpus
            return facts
        return replace(facts, gpus=tuple(_unread(gpu, facts.problem) for gpu in self._seen))


def _unread(gpu: GpuFacts, problem: str) -> GpuFacts:
    return GpuFacts(gpu.uuid, gpu.index, gpu.name, gpu.total_mib, mig=gpu.mig, problem=problem)


def has_nvidia_card() -> bool:
    """Some hosts have the driver's libraries and nothing to drive: no problem to tell anybody about."""
    with suppress(OSError):
        for device in os.listdir(PCI_DEVICES):
            with suppress(OSError):
                if _word(device, "vendor") == NVIDIA_VENDOR and _word(device, "class").startswith(
                    DISPLAY_CLASSES
                ):
                    return True
    return False


def _word(device: str, name: str) -> str:
    with open(f"{PCI_DEVICES}/{device}/{name}", encoding="ascii") as file:
        return file.read().strip()

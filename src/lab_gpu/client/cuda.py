"""Which GPUs this process shows to CUDA, and whether it is too late to say so.

CUDA reads CUDA_VISIBLE_DEVICES once, when it is initialised. That it has been is told by torch, TensorFlow or
JAX where they are imported, and by /dev/nvidia-uvm open in this process: cuInit opens it, readers of NVML do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any

from lab_gpu.core.errors import Refused

VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


class CudaStarted(Refused, RuntimeError):
    """CUDA has already chosen its GPUs in this process."""


def check_not_started() -> None:
    who = started_by()
    if who is not None:
        raise CudaStarted(
            f"cannot bind GPUs to this process: {who} has already initialised CUDA, which looks for GPUs "
            "only once; call acquire() before the first use of a GPU, or use request_device() and pass the GPU on"
        )


def started_by() -> str | None:
    """Who has initialised CUDA in this process, as far as can be seen."""
    if _torch():
        return "torch"
    if _tensorflow():
        return "TensorFlow"
    if _jax():
        return "JAX"
    return "some library" if _driver_open() else None


def _torch() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def _tensorflow() -> bool:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return bool(getattr(context, "_initialized", False))


def _jax() -> bool:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or {}
    return any(name in backends for name in ("cuda", "gpu", "rocm"))


def _driver_open() -> bool:
    folder = "/proc/self/fd"
    return any(_target(f"{folder}/{name}") == "/dev/nvidia-uvm" for name in os.listdir(folder))


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


class Binding:
    """The variables of this process while it holds GPUs. Several leases show all of theirs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[object, tuple[Sequence[str], Sequence[str]]] = {}
        self._before: dict[str, str | None] = {}

    def add(self, holder: object, visible: Sequence[str], uuids: Sequence[str]) -> None:
        with self._lock:
            if not self._held:
                self._before = {name: os.environ.get(name) for name in VARIABLES}
            self._held[holder] = (visible, uuids)
            self._show()

    def remove(self, holder: object) -> None:
        """With the last one gone the variables are what they were before."""
        with self._lock:
            if self._held.pop(holder, None) is not None:
                self._show() if self._held else self._restore()

    def _restore(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _show(self) -> None:
        visible = dict.fromkeys(name for names, _ in self._held.values() for name in names)
        uuids = dict.fromkeys(name for _, names in self._held.values() for name in names)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        os.environ["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)


BOUND = Binding()

"""What the masters of one host tell each other: who holds how much of which GPU."""

from __future__ import annotations

from dataclasses import dataclass

from lab_gpu.core.ids import GpuUuid


@dataclass(frozen=True, slots=True)
class Claim:
    """What one master holds on one GPU, and for which process (its own until there is another)."""

    gpu: GpuUuid
    mib: int  # the total of the GPU where it is taken whole
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class OthersClaim:
    owner: str
    claim: Claim

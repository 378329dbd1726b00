"""Recognises in what a program printed last that it ran out of GPU memory."""

from __future__ import annotations

import os
import re

TAIL_BYTES = 1 << 18  # read while the loop waits
_SIGNS = re.compile(
    rb"torch\.(?:cuda\.)?OutOfMemoryError"
    rb"|CUDA out of memory"
    rb"|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|cudaErrorMemoryAllocation"
    rb"|cupy\.cuda\.memory\.OutOfMemoryError"
    rb"|OOM when allocating tensor"
    # gRPC says RESOURCE_EXHAUSTED too, of quotas that are no memory.
    rb"|RESOURCE_EXHAUSTED[^\n]{0,80}(?:[Oo]ut of memory|OOM|[Ff]ailed to allocate)"
)


def speaks_of_oom(text: bytes) -> bool:
    return _SIGNS.search(text) is not None


def log_ends_in_oom(path: str) -> bool:
    """Whether the end of a log shows it. A log that cannot be read shows nothing."""
    try:
        # A pipe in its place must not keep the loop waiting, nor one who still writes.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
            return speaks_of_oom(log.read(TAIL_BYTES) or b"")
    except OSError:
        return False

"""What a task or lease may ask of GPUs, checked without knowing which GPUs there are."""

from __future__ import annotations

from lab_gpu.core.model import Request
from lab_gpu.wire.tasks import ResourceBody

MOST_MIB = 1 << 40
MOST_GPUS = 1024


def request_of(body: ResourceBody) -> Request:
    gpu_ids = tuple(body.gpu_ids or ())
    return Request(
        gpus=body.gpus if body.gpus is not None else len(gpu_ids) or 1,
        vram_mib=body.mem_mib,
        exclusive=body.exclusive,
        gpu_type=body.gpu_type or None,
        gpu_ids=gpu_ids,
        node=body.node or None,
        min_free_mib=body.min_free_mib,
        max_util=body.max_util,
    )


def problems(request: Request) -> list[str]:
    found = []
    if not 0 <= request.gpus <= MOST_GPUS:
        found.append(f"gpus must be from 0 to {MOST_GPUS}, not {request.gpus}")
    for name, mib in (("mem_mib", request.vram_mib), ("min_free_mib", request.min_free_mib)):
        if mib is not None and not 1 <= mib <= MOST_MIB:
            found.append(f"{name} must be at least 1 MiB and a size that a GPU can have, not {mib}")
    if request.max_util is not None and not 0 <= request.max_util <= 100:
        found.append(f"max_util must be from 0 to 100 percent, not {request.max_util}")
    return found + _index_problems(request) + _no_gpu_problems(request)


def _index_problems(request: Request) -> list[str]:
    ids = request.gpu_ids
    if any(index < 0 for index in ids):
        return ["gpu_ids must not be negative; use the indices that nvidia-smi shows"]
    if len(set(ids)) < len(ids):
        return ["gpu_ids names a GPU twice; name each once"]
    if ids and request.gpus > len(ids):
        return [f"gpus asks for {request.gpus} of the {len(ids)} in gpu_ids; name more or ask for fewer"]
    return []


def _no_gpu_problems(request: Request) -> list[str]:
    if request.gpus != 0:
        return []
    given = {
        "mem_mib": request.vram_mib,
        "exclusive": request.exclusive,
        "gpu_type": request.gpu_type,
        "gpu_ids": request.gpu_ids,
        "min_free_mib": request.min_free_mib,
        "max_util": request.max_util,
    }
    named = [name for name, value in given.items() if value not in (None, False, ())]
    return (
        [f"a task of 0 GPUs cannot have {', '.join(named)}; leave that out or ask for a GPU"] if named else []
    )

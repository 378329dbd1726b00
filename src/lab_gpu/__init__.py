"""One queue for every GPU in the lab. Importing this costs next to nothing: names are loaded when used."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lab_gpu.client.aio import AsyncClient
    from lab_gpu.client.handles import AsyncHandle, Handle, Result
    from lab_gpu.client.leases import AsyncLease, Gpu, Lease, Placement
    from lab_gpu.client.sdk import Client
    from lab_gpu.core.errors import (
        Broken,
        Forbidden,
        LabGpuError,
        LabGpuTimeoutError,
        NoMaster,
        NotFound,
        Refused,
        TooLate,
        Unauthorized,
    )

    __version__: str

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AsyncLease",
    "Broken",
    "Client",
    "Forbidden",
    "Gpu",
    "Handle",
    "LabGpuError",
    "LabGpuTimeoutError",
    "Lease",
    "NoMaster",
    "NotFound",
    "Placement",
    "Refused",
    "Result",
    "TooLate",
    "Unauthorized",
    "__version__",
]

_HOMES = {
    "AsyncClient": "lab_gpu.client.aio",
    "AsyncHandle": "lab_gpu.client.handles",
    "AsyncLease": "lab_gpu.client.leases",
    "Client": "lab_gpu.client.sdk",
    "Gpu": "lab_gpu.client.leases",
    "Handle": "lab_gpu.client.handles",
    "Lease": "lab_gpu.client.leases",
    "Placement": "lab_gpu.client.leases",
    "Result": "lab_gpu.client.handles",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from lab_gpu.core.version import VERSION

        value: object = VERSION
    elif name in __all__:
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, "lab_gpu.core.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Every error a person can meet, split by who must act.

LabGpuError                 one sentence: "cannot X: why; do Y"
├── Refused                 the person asked for something that cannot be: correct it          (HTTP 422, exit 2)
│   └── TooLate             it was right a moment ago: look again                              (HTTP 409, exit 1)
├── NotFound                no such task, node, lease                                           (HTTP 404, exit 1)
├── Unauthorized            nobody knows who asks                                               (HTTP 401, exit 1)
├── Forbidden               it belongs to somebody else                                         (HTTP 403, exit 1)
├── NoMaster                nobody answers: start one                                           (exit 3)
├── Broken                  the master's own side failed (disk, database): the caretaker acts   (HTTP 503, exit 75)
└── LabGpuTimeoutError      time was up; also a TimeoutError                                    (HTTP 504, exit 124)
"""


class LabGpuError(Exception):
    """`str(error)` is the whole sentence; `problems` lists every mistake where several were found at once."""

    slug = "error"
    http_status = 500
    exit_code = 1

    def __init__(self, sentence: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.problems = problems


class Refused(LabGpuError):
    slug, http_status, exit_code = "refused", 422, 2


class TooLate(Refused):
    slug, http_status, exit_code = "too_late", 409, 1


class NotFound(LabGpuError):
    slug, http_status = "not_found", 404


class Unauthorized(LabGpuError):
    slug, http_status = "unauthorized", 401


class Forbidden(LabGpuError):
    slug, http_status = "forbidden", 403


class NoMaster(LabGpuError):
    slug, exit_code = "no_master", 3


class Broken(LabGpuError):
    slug, http_status, exit_code = "broken", 503, 75


class LabGpuTimeoutError(LabGpuError, TimeoutError):
    slug, http_status, exit_code = "timeout", 504, 124


def _all(kind: type[LabGpuError]) -> list[type[LabGpuError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _all(child))]


BY_SLUG: dict[str, type[LabGpuError]] = {kind.slug: kind for kind in _all(LabGpuError)}

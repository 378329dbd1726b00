"""Start run.sh: a session of its own, no descriptor but those named, every signal as by default."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

# What we ignore or block (SIGPIPE, what nohup left us) would stay ignored in every task.
_RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def find_bash(path: str) -> str | None:
    folders = ["/bin", *path.split(":")]
    names = (os.path.join(folder, "bash") for folder in folders if folder)
    return next((name for name in names if os.access(name, os.X_OK)), None)


def spawn(
    arguments: Sequence[str], environment: Mapping[str, str], *, output_fd: int, pipe_fd: int, pipe_as: int
) -> int:
    """Output goes to `output_fd`, errors of the runner itself nowhere, input is empty."""
    actions: list[tuple[int, int, int] | tuple[int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, output_fd, 1),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _leaking() if fd > 2),
        (os.POSIX_SPAWN_DUP2, pipe_fd, pipe_as),
    ]
    return os.posix_spawn(
        arguments[0],
        list(arguments),
        dict(environment),
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET,
    )


def _leaking() -> list[int]:
    """Descriptors without close-on-exec: what we were started with, and what C libraries opened."""
    leaking = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                leaking.append(int(name))
        except OSError:  # the listing's own
            continue
    return leaking

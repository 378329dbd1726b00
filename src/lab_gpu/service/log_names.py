"""Where an attempt's log lies: `<root>/<task>.log`, older attempts beside it, nobody's file written over."""

from __future__ import annotations

import os

from lab_gpu.core.attempts import LaunchFailed

MARK = ".lab-gpu"
LAB_ROOT = "/nas/logs"


class LogNames:
    """A root carries the mark of the master that first used it; in another master's root our names say who we are."""

    def __init__(self, home: str, owner: str, host: str) -> None:
        self._home, self._owner, self._host = home, owner, host
        self._marks: dict[str, bool] = {}
        self._default: str | None = None

    def default_root(self, configured: str | None) -> str:
        if configured:
            return configured
        if self._default is None:
            usable = os.path.isdir(LAB_ROOT) and os.access(LAB_ROOT, os.W_OK | os.X_OK)
            self._default = LAB_ROOT if usable else os.path.join(self._home, "logs")
        return self._default

    def path(self, root: str, task: int) -> str:
        """The newest attempt's file. Raises LaunchFailed where the root cannot be written."""
        root = os.path.abspath(os.path.expanduser(root))
        stem = f"{task}" if self._ours(root) else f"{task}-{self._owner}@{self._host}"
        return os.path.join(root, f"{stem}.log")

    def _ours(self, root: str) -> bool:
        if root not in self._marks:
            self._marks[root] = self._mark(root)
        return self._marks[root]

    def _mark(self, root: str) -> bool:
        mine = f"{self._host}:{self._home}\n"
        path = os.path.join(root, MARK)
        try:
            os.makedirs(root, exist_ok=True)
            with open(path, "x", encoding="utf-8") as mark:
                mark.write(mine)
            return True
        except FileExistsError:
            return _content(path) == mine.encode("utf-8", "surrogateescape")
        except OSError as error:
            raise LaunchFailed(
                f"cannot write logs in {root}: {error.strerror}; name another folder with --log-root"
            ) from None


def _content(path: str) -> bytes | None:
    """None where it is no file that can be read: then it is nobody's mark, least of all ours."""
    try:
        mark = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(mark, 4096)
    except OSError:
        return None
    finally:
        os.close(mark)


def older(path: str, number: int) -> str:
    """What attempt `number`'s log is called once a newer attempt has the plain name."""
    stem = path[: -len(".log")] if path.endswith(".log") else path
    return f"{stem}.{number}.log"


def free(path: str) -> str:
    """The name itself, or the next one nobody has: no file is ever written over."""
    if not os.path.lexists(path):
        return path
    number = 1
    while os.path.lexists(candidate := older(path, number)):
        number += 1
    return candidate

"""Finds what `--env` names: a conda environment by name or path, or a virtual environment by path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from lab_gpu.core.errors import Refused
from lab_gpu.core.model import Activation
from lab_gpu.core.nearest import nearest_first

_USUAL_ROOTS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")
_SHOWN = 8


class Environments:
    """The environments one submitter can see. Looks at the disk once for each name."""

    def __init__(self, environment: Mapping[str, str], home: str) -> None:
        self._environment = environment
        self._home = home
        self._found: dict[tuple[str, str | None, str], Activation | Refused] = {}

    def find(self, wanted: str, conda_hint: str | None, workdir: str) -> Activation:
        key = (wanted, conda_hint, workdir)
        if key not in self._found:
            try:
                self._found[key] = self._look(wanted, conda_hint, workdir)
            except Refused as refusal:
                self._found[key] = refusal
        answer = self._found[key]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _look(self, wanted: str, conda_hint: str | None, workdir: str) -> Activation:
        roots = list(self._roots(conda_hint))
        if "/" in wanted or wanted in ("~", ".", ".."):
            return _by_path(os.path.join(workdir, self._expand(wanted)), wanted, roots)
        named = self._named(roots)
        if wanted in named:
            path, root = named[wanted]
            return _conda(path, root, wanted)
        beside = os.path.join(workdir, wanted)
        if _is_venv(beside):
            return Activation("venv", os.path.normpath(beside))
        raise Refused(_unknown(wanted, named, roots))

    def _expand(self, path: str) -> str:
        return self._home + path[1:] if path == "~" or path.startswith("~/") else path

    def _roots(self, hint: str | None) -> Iterable[str]:
        guesses = [hint or "", self._environment.get("CONDA_EXE", ""), *self._on_path(), *_USUAL_ROOTS]
        seen = set()
        for guess in guesses:
            root = os.path.normpath(_root_of(self._expand(guess))) if guess else ""
            if root and root not in seen and _is_conda_root(root):
                seen.add(root)
                yield root

    def _on_path(self) -> list[str]:
        folders = self._environment.get("PATH", "").split(":")
        return [
            os.path.join(each, "conda")
            for each in folders
            if each and os.path.isfile(os.path.join(each, "conda"))
        ]

    def _named(self, roots: list[str]) -> dict[str, tuple[str, str | None]]:
        """Each name with its folder and the conda it belongs to; the first conda found wins."""
        found: dict[str, tuple[str, str | None]] = {}
        for root in roots:
            found.setdefault("base", (root, root))
        for folder, owner in self._folders(roots):
            for path in _inside(folder):
                found.setdefault(os.path.basename(path), (path, owner))
        for path in self._listed():
            found.setdefault(os.path.basename(path), (path, _conda_of(path, roots)))
        return found

    def _folders(self, roots: list[str]) -> Iterable[tuple[str, str | None]]:
        yield from ((os.path.join(root, "envs"), root) for root in roots)
        first = roots[0] if roots else None
        own = f"{self._environment.get('CONDA_ENVS_PATH', '')}:{self._environment.get('CONDA_ENVS_DIRS', '')}"
        for folder in (*own.split(":"), "~/.conda/envs"):
            if folder:
                yield self._expand(folder), first

    def _listed(self) -> list[str]:
        """conda's own list of environments that were made by path."""
        try:
            with open(os.path.join(self._home, ".conda", "environments.txt"), encoding="utf-8") as file:
                paths = [line.strip() for line in file if line.strip()]
        except (OSError, UnicodeDecodeError):
            return []
        return [path for path in paths if _is_conda(path)]


def _root_of(executable: str) -> str:
    """The root of a conda, from its executable; a root is taken as it is."""
    if os.path.basename(executable) in ("conda", "mamba", "micromamba") and not os.path.isdir(executable):
        return os.path.dirname(os.path.dirname(os.path.realpath(executable)))
    return executable


def _inside(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [path for path in (os.path.join(folder, name) for name in names) if _is_conda(path)]


def _is_conda_root(path: str) -> bool:
    return _is_conda(path) or os.path.isfile(os.path.join(path, "etc", "profile.d", "conda.sh"))


def _is_conda(path: str) -> bool:
    return os.path.isdir(os.path.join(path, "conda-meta"))


def _is_venv(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "bin", "activate"))


def _conda_of(path: str, roots: list[str]) -> str | None:
    inside = [root for root in roots if path == root or path.startswith(root + "/")]
    return next(iter(inside or roots), None)


def _conda(path: str, root: str | None, wanted: str) -> Activation:
    if root is None:
        raise Refused(
            f"the conda of the environment '{wanted}' was not found; set CONDA_EXE to its bin/conda"
        )
    return Activation("conda", path, root)


def _by_path(path: str, wanted: str, roots: list[str]) -> Activation:
    path = os.path.normpath(path)
    if _is_conda(path):
        return _conda(path, _conda_of(path, roots), wanted)
    if _is_venv(path):
        return Activation("venv", path)
    if not os.path.isdir(path):
        raise Refused(f"there is no environment at {path}; create it, or name another with --env")
    raise Refused(f"{path} is no environment; name the folder that holds bin/activate or conda-meta")


def _unknown(wanted: str, named: Mapping[str, object], roots: list[str]) -> str:
    if not named:
        where = f"conda at {roots[0]} has none" if roots else "no conda was found"
        return f"there is no environment '{wanted}' ({where}); give the path of one with --env"
    shown = nearest_first(wanted, named)[:_SHOWN]
    more = f" and {len(named) - len(shown)} more" if len(named) > len(shown) else ""
    return f"there is no conda environment '{wanted}'; there are: {', '.join(shown)}{more}"

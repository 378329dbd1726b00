"""What `--env` means for a command that runs here: a venv by its path, a conda environment by name or path.

It is activated by its own scripts, as a person would, in the shell that then runs the command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from shlex import quote

from lab_gpu.core.errors import Refused

_USUAL_ROOTS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")
_SHOWN = 8


def activation_lines(wanted: str, environ: Mapping[str, str]) -> list[str]:
    """Lines of bash; each ends the shell where it fails, so that nothing runs in the wrong environment."""
    path = os.path.abspath(os.path.expanduser(wanted))
    if "/" in wanted or wanted in (".", "..", "~"):
        return _by_path(path, wanted, environ)
    named = _named(environ)
    if wanted in named:
        return _conda_lines(named[wanted], environ)
    if _is_venv(path):
        return _venv_lines(path)
    known = ", ".join(sorted(named)[:_SHOWN])
    there = f"there are {known}" if known else "no conda environment was found"
    raise Refused(f"cannot use the environment '{wanted}': {there}; name one of these, or the path of a venv")


def _by_path(path: str, wanted: str, environ: Mapping[str, str]) -> list[str]:
    if _is_conda(path):
        return _conda_lines(path, environ)
    if _is_venv(path):
        return _venv_lines(path)
    raise Refused(
        f"cannot use the environment {wanted}: neither bin/activate nor conda-meta is in it; name its folder"
    )


def _venv_lines(path: str) -> list[str]:
    return [f"source {quote(path + '/bin/activate')} || exit"]


def _conda_lines(path: str, environ: Mapping[str, str]) -> list[str]:
    roots = list(_roots(environ))
    inside = [root for root in roots if path == root or path.startswith(root + "/")]
    if not roots:
        raise Refused(f"cannot activate {path}: its conda was not found; set CONDA_EXE to its bin/conda")
    root = (inside or roots)[0]
    return [
        f"source {quote(root + '/etc/profile.d/conda.sh')} || exit",
        f"conda activate {quote(path)} || exit",
    ]


def _roots(environ: Mapping[str, str]) -> Iterator[str]:
    """Where conda is installed: the active one first, then those on PATH, then the usual places."""
    on_path = (f"{folder}/conda" for folder in environ.get("PATH", "").split(":") if folder)
    programs = [environ.get("CONDA_EXE", ""), *on_path]
    found = [
        os.path.dirname(os.path.dirname(os.path.realpath(each))) for each in programs if os.path.isfile(each)
    ]
    for root in dict.fromkeys([*found, *map(os.path.expanduser, _USUAL_ROOTS)]):
        if os.path.isfile(f"{root}/etc/profile.d/conda.sh"):
            yield root


def _named(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    roots = list(_roots(environ))
    folders = [f"{root}/envs" for root in roots]
    folders += [
        each for name in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS") for each in environ.get(name, "").split(":")
    ]
    for root in roots:
        found.setdefault("base", root)
    for folder in (*folders, "~/.conda/envs"):
        for path in _inside(os.path.expanduser(folder)):
            found.setdefault(os.path.basename(path), path)
    for path in _listed():
        found.setdefault(os.path.basename(path), path)
    return found


def _inside(folder: str) -> list[str]:
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return []
    return [path for name in sorted(names) if _is_conda(path := f"{folder}/{name}")]


def _listed() -> list[str]:
    """conda's own list of the environments that were made by path."""
    try:
        with open(os.path.expanduser("~/.conda/environments.txt"), encoding="utf-8") as file:
            return [path for line in file if (path := line.strip()) and _is_conda(path)]
    except (OSError, UnicodeDecodeError):
        return []


def _is_conda(path: str) -> bool:
    return os.path.isdir(f"{path}/conda-meta")


def _is_venv(path: str) -> bool:
    return os.path.isfile(f"{path}/bin/activate")

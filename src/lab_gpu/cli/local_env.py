"""What `--env` means for a command that runs here: a venv by its path, a conda environment by name or path.

It is activated by its own scripts, as a person would, in the shell that then runs the command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from shlex import quote

from lab_gpu.core.errors import Refused
from lab_gpu.runner.environments import Environments


def activation_lines(wanted: str, environ: Mapping[str, str]) -> list[str]:
    """Lines of bash; each ends the shell where it fails, so that nothing runs in the wrong environment."""
    here = Environments(environ, os.path.expanduser("~"))
    try:
        found = here.find(os.path.expanduser(wanted), None, os.getcwd())
    except Refused as refusal:
        raise Refused(f"cannot use the environment '{wanted}': {refusal}") from None
    if found.kind == "venv":
        return [f"source {quote(found.path + '/bin/activate')} || exit"]
    return [
        f"source {quote(f'{found.conda_root}/etc/profile.d/conda.sh')} || exit",
        f"conda activate {quote(found.path)} || exit",
    ]

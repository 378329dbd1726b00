"""The SDK's hints hold for a strict checker, on the oldest Python we run on."""

import os
import subprocess
import sys


def test_a_users_program_passes_a_strict_checker() -> None:
    program = os.path.join(os.path.dirname(__file__), "sdk_usage.py")
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-version",
        "3.10",
        "--config-file",
        os.devnull,
    ]
    done = subprocess.run([*words, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""The environment report of an attempt: shell lines that append it to a file, with builtins only.

Three sections, each with what is known then: before the command's shell, before the command, after it.
"""

from __future__ import annotations

from shlex import quote

REPORT_NAME = "environment.txt"
SCHEDULER_HEADING = "===== Scheduler Environment ====="
START_HEADING = "===== Command Script Start ====="
EXIT_HEADING = "===== Command Script Exit ====="

_TIMESTAMP = r"builtin printf 'Timestamp: %(%Y-%m-%dT%H:%M:%S%z)T\n' -1"


def scheduler_section(path: str) -> str:
    return _appended(
        path,
        f"builtin printf '%s\\n' '{SCHEDULER_HEADING}'",
        _TIMESTAMP,
        r"""builtin printf 'PATH: %s\n' "$PATH" """.rstrip(),
        _found("Python on PATH: ", "python"),
    )


def start_section(path: str) -> str:
    return _appended(
        path,
        f"builtin printf '%s\\n' '{START_HEADING}'",
        r"""builtin printf 'Script PATH: %s\n' "$PATH" """.rstrip(),
        _found("command -v python: ", "python"),
        _found("command -v conda: ", "conda"),
    )


def exit_section(path: str) -> str:
    """Reads the shell variable `code`."""
    return _appended(
        path,
        f"builtin printf '%s\\n' '{EXIT_HEADING}'",
        _TIMESTAMP,
        r"""builtin printf 'Exit code: %s\nPATH: %s\n' "$code" "$PATH" """.rstrip(),
        _found("python -> ", "python"),
    )


def _found(label: str, program: str) -> str:
    return f"builtin printf '{label}'; builtin command -v {program} || builtin printf 'not found\\n'"


def _appended(path: str, *lines: str) -> str:
    """A report that cannot be written (a full disk) never stands in the way of the command."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"{{\n{body}\n}} 2>/dev/null >>{quote(path)} || :\n"

"""The environment report of an attempt, in three sections, each with what is known then.

The two before the command are shell lines, builtins only; the one after it is text, added when the end is settled.
"""

from __future__ import annotations

from datetime import datetime
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


def exit_text(code: int, at: float, so_far: str) -> str:
    """The last section, made by whoever settles the attempt: no GPU waits for it. PATH is as the first one found it."""
    when = datetime.fromtimestamp(at).astimezone()
    lines = [EXIT_HEADING, f"Timestamp: {when:%Y-%m-%dT%H:%M:%S%z}", f"Exit code: {code}"]
    for label, shown in (("PATH: ", "PATH: "), ("Python on PATH: ", "python -> ")):
        found = next((line for line in so_far.splitlines() if line.startswith(label)), None)
        if found:
            lines.append(shown + found.removeprefix(label))
    return "\n".join(lines) + "\n"


def _found(label: str, program: str) -> str:
    return f"builtin printf '{label}'; builtin command -v {program} || builtin printf 'not found\\n'"


def _appended(path: str, *lines: str) -> str:
    """A report that cannot be written (a full disk) never stands in the way of the command."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"{{\n{body}\n}} 2>/dev/null >>{quote(path)} || :\n"

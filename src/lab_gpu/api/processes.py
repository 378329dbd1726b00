"""Tells a process from a later one with the same number."""

from __future__ import annotations


def start_of(pid: int) -> int | None:
    """Its start in clock ticks since boot, as /proc has it; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in brackets may hold anything, brackets and blanks included; the fields after it do not.
    return int(text[text.rindex(b")") + 2 :].split()[19])

"""Names for the instants at which a crash would matter most. Nothing happens there; the crash tests take their place."""

from __future__ import annotations


def reached(label: str) -> None:
    """`label` is one of LABELS, in the order of one trip."""


LABELS = (
    "armed",  # made, its row written, not committed
    "armed_committed",
    "launch_written",  # the row says launching, not committed
    "launch_committed",  # committed, its shell not yet told
    "told",  # its shell may have begun
    "begun_written",  # the row says running, not committed
    "exit_seen",  # its runner is gone, nothing written
    "end_written",  # the row says ended, not committed
    "end_committed",
    "orders_written",
    "orders_committed",  # not yet answered
)

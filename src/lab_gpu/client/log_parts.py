"""What a shown log is made of: bytes, and marks between them."""

from __future__ import annotations


class Cut:
    """A hole: bytes that were taken out of the middle so that the log does not fill the disk."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class Heading:
    """What follows is another attempt's."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Live:
    """All that was there has been given: what follows is new."""


class Gone:
    """The log of an attempt was removed."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


Part = bytes | Cut | Heading | Live | Gone

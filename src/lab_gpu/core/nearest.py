"""Names near to one that was mistyped. difflib is loaded only then: a cold start does not pay for it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The likeliest of the known words; None where none is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest_first(word: str, known: Iterable[str]) -> list[str]:
    """All known words, the likeliest first."""
    from difflib import SequenceMatcher

    return sorted(known, key=lambda each: -SequenceMatcher(None, word.lower(), each.lower()).ratio())

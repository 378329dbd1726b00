"""Whether a GPU is of the type a person named: its words, in order, as whole words of its name."""

from __future__ import annotations

import re

_BETWEEN_WORDS = re.compile(r"[\s-]+")


def is_of_type(gpu_name: str, gpu_type: str) -> bool:
    """ "A100" is an NVIDIA A100-SXM4-80GB; "A10" is not."""
    words = iter(words_of(gpu_name))
    return all(wanted in words for wanted in words_of(gpu_type))


def words_of(name: str) -> list[str]:
    return [word for word in _BETWEEN_WORDS.split(name.casefold()) if word]

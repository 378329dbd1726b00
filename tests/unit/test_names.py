"""A GPU type is named by whole words of the card's name, in their order."""

from __future__ import annotations

import pytest

from lab_gpu.core.names import is_of_type


@pytest.mark.parametrize(
    ("name", "wanted", "matches"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX 3090", True),
        ("NVIDIA GeForce RTX 3090", "rtx 3090", True),
        ("NVIDIA GeForce RTX 3090", "rtx-3090", True),
        ("NVIDIA GeForce RTX 3090", "nvidia 3090", True),
        ("NVIDIA GeForce RTX 3090", "3090 RTX", False),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090", True),
        ("NVIDIA GeForce RTX 3090", "RTX 3090 Ti", False),
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", True),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A10", "A100", False),
        ("Tesla V100S-PCIE-32GB", "v100", False),
    ],
)
def test_words_in_order_as_whole_words(name: str, wanted: str, matches: bool) -> None:
    assert is_of_type(name, wanted) is matches

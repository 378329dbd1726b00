"""The local engine keeps the contract of every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_suite import EngineSuite

from lab_gpu.engines.local import LocalEngine
from lab_gpu.testing.attempts import AttemptScene


class TestLocalEngine(EngineSuite):
    @pytest.fixture
    def scene(self) -> Iterator[AttemptScene]:
        scene = AttemptScene(LocalEngine())
        yield scene
        scene.close()

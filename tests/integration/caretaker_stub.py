"""A master's HTTP API as the caretaker's commands see it: canned answers on a Unix socket, questions kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import json_door

Answer = Any  # a document, (status, document), or a callable of (query, body) that gives one of them

SERVER = {
    "pid": 4711,
    "version": "0.1.0",
    "started_at": "2026-01-02T03:04:05Z",
    "home": "/home/ann/.lab-gpu/box",
    "host": "box",
    "url": "http://127.0.0.1:1895",
    "socket": "/home/ann/.lab-gpu/box/lab-gpu.sock",
    "log": "/home/ann/.lab-gpu/box/master.log",
    "policy_path": None,
    "manual_tick": False,
    "autostarted": False,
    "epoch": 1,
    "commit": 9,
    "database_bytes": 4096,
    "warnings": [],
}


def problem(status: int, slug: str, sentence: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": "about:blank", "title": slug, "status": status, "detail": sentence, "slug": slug}


class Stub:
    def __init__(self, home: str) -> None:
        self.home = home
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: dict[tuple[str, str], Answer] = {("GET", "/api/v1/server"): SERVER}

    def on(self, method: str, path: str, answer: Answer | Callable[..., Answer]) -> None:
        self.answers[method, path] = answer

    def bodies(self, path: str) -> list[Any]:
        return [body for _, asked, _, body in self.asked if asked == path]

    def _answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, query, body))
        said = self.answers.get((method, path), problem(404, "not_found", f"cannot find {path}"))
        if callable(said):
            said = said(query, body)
        return said if isinstance(said, tuple) else (200, said)

    @contextmanager
    def listening(self) -> Iterator[Stub]:
        socket = f"{self.home}/lab-gpu.sock"
        with json_door.listening(socket, self._answer):
            yield self
        os.unlink(socket)


@contextmanager
def short_home() -> Iterator[str]:
    """A home whose socket path is short enough."""
    home = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    try:
        yield home
    finally:
        shutil.rmtree(home)


def environment(home: str, **more: str) -> dict[str, str]:
    """Nothing of the person who runs the tests gets in."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "LAB_GPU_HOME": home,
        "LAB_GPU_CLAIMS_DIR": f"{home}/claims",
        "LAB_GPU_NO_NVML": "1",
        "LANG": "C.UTF-8",
        **more,
    }


def lab_gpu(home: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The real command, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lab_gpu", *words],
        env=environment(home, **more),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

"""A process that starts, answers and stops as a master does, as far as the caretaker's commands can tell."""

from __future__ import annotations

import json
import os
import sys
import threading
from itertools import pairwise
from typing import Any

from caretaker_stub import SERVER, Stub


def main(words: list[str]) -> int:
    given = dict(pairwise(words))
    home, ready = given["--home"], int(given.get("--ready-fd", "1"))
    running, asked = noted(home), lasting(words, given)
    if running:
        same = running["settings"] == asked
        error = (
            None
            if same
            else "cannot start a master: one runs with other settings; use `lab-gpu server restart`"
        )
        return answer(ready, {"running": running, "same": same, "error": error})
    if given.get("--port") == "1":
        return answer(
            ready, {"error": "cannot listen on port 1: it is in use; name another --port", "exit": 2}
        )
    with open(f"{home}/settings.json", "w", encoding="utf-8") as file:
        json.dump(asked, file)
    return serve(home, given, {"argv": words, "settings": asked}, ready)


def lasting(words: list[str], given: dict[str, str]) -> dict[str, Any]:
    """What makes two starts the same."""
    port = given.get("--port")
    return {
        "host": given.get("--host", "127.0.0.1"),
        "port": int(port) if port else None,
        "tcp": "--no-tcp" not in words,
        "policy": given.get("--policy"),
        "manual_tick": "--manual-tick" in words,
    }


def noted(home: str) -> dict[str, Any] | None:
    try:
        with open(f"{home}/master.json", encoding="utf-8") as file:
            return dict(json.load(file))
    except OSError:
        return None


def answer(ready: int, document: dict[str, Any]) -> int:
    os.write(ready, json.dumps(document).encode() + b"\n")
    return int(document.get("exit", 0))


def serve(home: str, given: dict[str, str], asked: dict[str, Any], ready: int) -> int:
    url = f"http://{given.get('--host', '127.0.0.1')}:{given.get('--port', '1895')}"
    note = {"pid": os.getpid(), "url": url, "socket": f"{home}/lab-gpu.sock", "version": "0.1.0", **asked}
    over, stub = threading.Event(), Stub(home)
    stub.on("GET", "/api/v1/server", {**SERVER, **note, "home": home})
    stub.on("GET", "/api/v1/status", {"counts": {"running": 2, "queued": 1}})
    stub.on("GET", "/api/v1/gpus", {"nodes": [], "source": "none", "problem": None})
    stub.on("POST", "/api/v1/server/stop", lambda *_: over.set() or {})
    with stub.listening():
        with open(f"{home}/master.json", "w", encoding="utf-8") as file:
            json.dump(note, file)
        answer(ready, {"ready": True, **note, "log": f"{home}/master.log", "home": home, "notes": []})
        over.wait(60)
    os.unlink(f"{home}/master.json")
    return 0


sys.exit(main(sys.argv[1:]))

"""A daemon as far as its starter can tell: locks its home, listens, says ready, stops when asked.

What else it shall do is in <home>/mood: die, mute, refuse, slow.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from itertools import pairwise

from fake_master import ROUTES, FakeMaster


def main(words: list[str]) -> int:
    given = dict(pairwise(words))
    home, ready = given["--home"], int(given["--ready-fd"])
    settings = {"policy": given.get("--policy"), "tcp": "--no-tcp" not in words}
    mood = read(f"{home}/mood")
    if mood == "die":
        print("Traceback: no module named fastapi", file=sys.stderr)
        return 1
    if mood == "mute":
        time.sleep(60)
    if mood == "refuse":
        return tell(ready, {"error": "cannot listen on port 1: it is in use; choose another", "exit": 2})
    lock = open(f"{home}/master.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note = json.loads(read(f"{home}/master.json") or "{}")
        same = note.get("settings") == settings
        return tell(
            ready, {"running": note, "same": same, "error": "cannot start: one runs; use restart", "exit": 1}
        )
    return serve(home, ready, {"settings": settings, "autostarted": "--autostarted" in words})


def serve(home: str, ready: int, note: dict[str, object]) -> int:
    over = threading.Event()

    def stop(master: FakeMaster, asked: object) -> dict[str, object]:
        over.set()
        return {}

    ROUTES["POST", "/api/v1/server/stop"] = stop
    note |= {
        "pid": os.getpid(),
        "socket": f"{home}/lab-gpu.sock",
        "version": read(f"{home}/version") or "999",
    }
    seen = {"cwd": os.getcwd(), "session": os.getsid(0), "parent": os.getppid(), "environ": dict(os.environ)}
    with FakeMaster(f"{home}/lab-gpu.sock"):
        with open(f"{home}/seen.json", "w") as file:
            json.dump(seen, file)
        with open(f"{home}/master.json", "w") as file:
            json.dump(note, file)
        with open(f"{home}/starts", "a") as file:
            print(os.getpid(), file=file)
        tell(ready, {"ready": True, **note, "log": f"{home}/master.log", "notes": ["1 task(s) adopted"]})
        over.wait(60)
    os.unlink(f"{home}/master.json")
    return 0


def tell(ready: int, doc: dict[str, object]) -> int:
    os.write(ready, json.dumps(doc).encode() + b"\n")
    if ready > 2:
        os.close(ready)
    return 0


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A stage for the command line: a small master of the test's own on a Unix socket, and `lab-gpu` as a real process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import json_door

Json = dict[str, Any]
STAMP = "2026-11-19T10:00:00.000Z"
FINAL = ("completed", "failed", "cancelled")


class Refusal(Exception):
    def __init__(self, status: int, slug: str, detail: str, problems: list[str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.slug, self.detail, self.problems = status, slug, detail, problems or []


class Master:
    """Tasks in memory; `asked` keeps every question; tests change tasks by `become`, which wakes all who wait."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.socket = f"{folder}/m.sock"
        self.tasks: dict[int, Json] = {}
        self.asked: list[tuple[str, str, Json, Any]] = []
        self.changed = threading.Condition()
        self.events: list[Json] = []
        self.policy: Json = {"enforce_time_limit": False}
        self.refuse: Callable[[str, str, Any], None] = lambda method, path, body: None
        self.first_reason: str | None = None
        self.first_state = "queued"
        self.nodes: list[Json] = []
        self.leases: list[Json] = []

    def add(self, **said: Any) -> Json:
        number = len(self.tasks) + 1
        task = {
            "id": number, "name": None, "owner": "ann", "state": self.first_state, "phase": None, "attempt": 0,
            "reason": self.first_reason, "reason_code": None, "max_retries": 0, "exit_code": None, "gpus": [],
            "node": None, "command": "true", "priority": 0, "queue": None, "batch": None, "array_index": None,
            "request": {"gpus": 1, "vram_mib": None, "exclusive": False, "gpu_type": None, "gpu_ids": [],
                        "node": None, "min_free_mib": None, "max_util": None},
            "submitted_at": STAMP, "started_at": None, "ended_at": None, "not_before": None, "log_path": None,
            "estimated_start": None, "version": 1, "workdir": "/tmp", "env": None, "setenv": {}, "attempts": [],
            "submit_dir": None, "time_limit_s": None, "estimate_s": None, "kill_at_limit": False,
            "never_twice": False, "held": False, "after": [], "retry": {}, "dependents": [],
        }  # fmt: skip
        self.tasks[number] = {**task, **{key: said[key] for key in said if key in task and key != "gpus"}}
        return self.tasks[number]

    def become(self, number: int, state: str, **more: Any) -> None:
        with self.changed:
            self.tasks[number].update({"state": state, **more})
            if state == "running" and not self.tasks[number]["attempts"]:
                self._begin(self.tasks[number])
            if state in FINAL:
                for attempt in self.tasks[number]["attempts"]:
                    attempt["state"] = "ended"
            self.events.append({"seq": len(self.events) + 1, "kind": state, "task": number, "at": STAMP})
            self.changed.notify_all()

    def _begin(self, task: Json) -> None:
        path = f"{self.folder}/{task['id']}.log"
        with open(path, "ab"):
            pass
        attempt = {"id": task["id"], "number": 1, "uni_id": "u", "state": "running", "ending": None,
                   "exit_code": None, "signal": None, "node": "n", "gpus": [], "vram_mib": None, "pid": 1,
                   "log_path": path, "directory": "/tmp", "started_at": STAMP, "ended_at": None,
                   "detail": None, "outside": False}  # fmt: skip
        task.update(attempts=[attempt], attempt=1, log_path=path, started_at=STAMP)

    def write_log(self, number: int, text: str) -> None:
        with open(f"{self.folder}/{number}.log", "a") as file:
            file.write(text)

    def bodies(self, path: str) -> list[Any]:
        return [body for _, asked, _, body in self.asked if asked == path]

    def answer(self, method: str, path: str, query: Json, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, query, body))
        try:
            return 200, self._answer(method, path, query, body)
        except Refusal as refusal:
            document = {"detail": refusal.detail, "slug": refusal.slug, "problems": refusal.problems}
            return refusal.status, document

    def _answer(self, method: str, path: str, query: Json, body: Any) -> Any:
        self.refuse(method, path, body)
        parts = path.removeprefix("/api/v1/").split("/")
        named = getattr(self, f"{method.lower()}_{parts[0]}_{len(parts)}", None)
        if named is None:
            raise Refusal(404, "not_found", f"cannot find {method} {path}: no such route; see the manual")
        return named(parts, query, body)

    def post_tasks_1(self, parts: list[str], query: Json, body: Any) -> Json:
        if body.get("dry_run"):
            gpu = {"node": "n", "index": 0, "uuid": "u0", "name": "A100"}
            return {
                "would": [{"start": True, "node": "n", "gpus": [gpu], "reason": None} for _ in body["tasks"]]
            }
        made = []
        for task in body["tasks"]:
            array = task.get("array")
            indices = range(array["first"], array["last"] + 1, array["step"]) if array else [None]
            made += [self.add(**{**task, "array_index": index}) for index in indices]
        return {"tasks": made, "warnings": []}

    def get_tasks_1(self, parts: list[str], query: Json, body: Any) -> Json:
        tasks = list(self.tasks.values())
        if "state" in query:
            tasks = [task for task in tasks if task["state"] in query["state"].split(",")]
        if query.get("order", "new") == "new":
            tasks.reverse()
        begin = int(query.get("cursor", 0))
        end = begin + int(query.get("limit", 50))
        return {"tasks": tasks[begin:end], "next": str(end) if end < len(tasks) else None}

    def get_tasks_2(self, parts: list[str], query: Json, body: Any) -> Json:
        return self._task(int(parts[1]))

    def get_tasks_3(self, parts: list[str], query: Json, body: Any) -> Json:
        task = self._task(int(parts[1]))
        return {
            "id": task["id"], "state": task["state"], "code": "gpus", "text": "every GPU is taken",
            "gpus": [{"node": "n", "index": 0, "code": "full", "text": "task 1 holds it"}],
            "earliest_start": None, "behind": 1, "advice": ["lab-gpu edit 2 --mem 4G"], "position": 2, "of": 3,
        }  # fmt: skip

    def patch_tasks_2(self, parts: list[str], query: Json, body: Any) -> Json:
        return self._task(int(parts[1]))

    def post_tasks_2(self, parts: list[str], query: Json, body: Any) -> Json:
        """Actions: what waits is cancelled at once, what runs when it is asked to."""
        done, errors = [], []
        for number in body["ids"]:
            if number not in self.tasks:
                text = f"cannot {body['action']} task {number}: there is no such task; see lab-gpu list"
                errors.append({"id": number, "slug": "not_found", "text": text})
                continue
            if body["action"] == "cancel":
                self.become(number, "cancelled")
            done.append(self.tasks[number])
        return {"tasks": done, "errors": errors}

    def post_wait_1(self, parts: list[str], query: Json, body: Any) -> Json:
        def met() -> bool:
            ended = [self._task(number)["state"] in FINAL for number in body["ids"]]
            return any(ended) if body["for"] == "any" else all(ended)

        with self.changed:
            done = self.changed.wait_for(met, body["timeout_s"])
        return {"tasks": [self.tasks[number] for number in body["ids"]], "done": done}

    def get_events_1(self, parts: list[str], query: Json, body: Any) -> Json:
        if "after" not in query:
            return {"events": [], "last": len(self.events)}
        after = int(query["after"])
        with self.changed:
            self.changed.wait_for(lambda: len(self.events) > after, float(query.get("timeout_s", 0)))
        return {"events": self.events[after:], "last": len(self.events)}

    def get_status_1(self, parts: list[str], query: Json, body: Any) -> Json:
        tasks = list(self.tasks.values())
        counts = {
            state: sum(task["state"] == state for task in tasks) for state in ("queued", "running", *FINAL)
        }
        server = {"pid": 1, "version": "0.1.0", "host": "gpubox", "url": None, "socket": self.socket,
                  "manual_tick": False, "warnings": []}  # fmt: skip
        return {
            "server": server,
            "nodes": self.nodes,
            "tasks": tasks,
            "counts": counts,
            "leases": self.leases,
        }

    def get_policy_1(self, parts: list[str], query: Json, body: Any) -> Json:
        return {"policy": self.policy, "path": None, "night": False}

    def get_server_1(self, parts: list[str], query: Json, body: Any) -> Json:
        return {"pid": 1, "version": "0.1.0", "manual_tick": False}

    def _task(self, number: int) -> Json:
        if number not in self.tasks:
            raise Refusal(404, "not_found", f"cannot find task {number}: there is none; see lab-gpu list")
        return self.tasks[number]


class Stage:
    """One test's world: a master, a home, a directory to stand in, and `lab-gpu` run in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.here = f"{folder}/here"
        os.mkdir(self.here)
        self.master = Master(folder)
        self.env = {
            **{name: text for name, text in os.environ.items() if not name.startswith("LAB_GPU_")},
            "HOME": folder,
            "XDG_CONFIG_HOME": f"{folder}/config",
            "LAB_GPU_HOME": f"{folder}/home",
            "LAB_GPU_HOST": f"unix:{self.master.socket}",
            "LAB_GPU_AUTOSTART": "0",
        }
        self._children: list[subprocess.Popen[str]] = []

    def lab_gpu(self, *words: str, code: int | None = 0, stdin: str | None = None, **env: str) -> Done:
        ran = subprocess.run(
            [sys.executable, "-m", "lab_gpu", *words], cwd=self.here, env={**self.env, **env}, input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, timeout=60,
            encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip
        done = Done(ran.returncode, ran.stdout, ran.stderr)
        assert code is None or done.code == code, done
        assert "Traceback" not in done.err, done.err
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "lab_gpu", *words], cwd=self.here, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=_restore_interrupt,
        )  # fmt: skip
        self._children.append(child)
        return child

    def write(self, name: str, text: str) -> str:
        with open(f"{self.here}/{name}", "w") as file:
            file.write(text)
        return f"{self.here}/{name}"

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.communicate()


def _restore_interrupt() -> None:
    """A test run in the background ignores SIGINT, and would hand that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@contextmanager
def staged() -> Iterator[Stage]:
    folder = tempfile.mkdtemp(prefix="lg-", dir="/tmp")
    stage = Stage(folder)
    try:
        with json_door.listening(stage.master.socket, stage.master.answer):
            try:
                yield stage
            finally:
                stage.close()
    finally:
        shutil.rmtree(folder)

"""What `make up` does once all is installed: a master that answers, GPUs it knows, one task run to its end.

A master that answered already has proved itself before: then this only says where things are.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from lab_gpu.client.transport import Api, find_master
from lab_gpu.core.errors import LabGpuError, NoMaster

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SAMPLE_NAME = "hello"
SAMPLE = 'echo "Hello from task $LAB_GPU_TASK_ID on GPU ${CUDA_VISIBLE_DEVICES:-none}: the queue works."'
SAMPLE_WAIT_S = 30.0


def main() -> int:
    os.environ.pop("LAB_GPU_HOST", None)  # this is about the master of this user on this machine
    try:
        api, fresh = reach_master()
        declare_gpus(api)
        task = sample_task(api, run_anew=fresh)
        print(f"task {task['id']}  {what_became(api, task)}")
        say_where(api)
    except LabGpuError as error:
        print(f"make up: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if task["state"] in ("completed", "queued", "running") else 1


def reach_master() -> tuple[Api, bool]:
    """The running master, or a new one; True says it is new."""
    try:
        return own_master(), False
    except NoMaster:
        lab_gpu("server", "start")
        return own_master(), True


def own_master() -> Api:
    api = find_master()
    api.get("/api/health")
    return api


def declare_gpus(api: Api) -> None:
    """On a machine without a GPU two virtual ones stand in: tasks run, their memory is only counted."""
    if api.get("/api/v1/gpus")["nodes"]:
        return
    node = ("--name", "local", "--gpus", "2", "--vram", "24", "--gpu-type", "Virtual GPU")
    lab_gpu("server", "add-node", *node)


def lab_gpu(*words: str) -> None:
    """A command as a person would type it. Its advice to declare a node is what comes next anyway."""
    command = [os.path.join(os.path.dirname(sys.executable), "lab-gpu"), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in done.stdout.splitlines():
        if "add-node" not in line:
            print(line, file=sys.stderr)
    if done.returncode:
        sys.exit(done.returncode)


def sample_task(api: Api, run_anew: bool) -> dict[str, Any]:
    done = api.get("/api/v1/tasks", {"name": SAMPLE_NAME, "state": "completed", "limit": 1})["tasks"]
    if done and not run_anew:
        return dict(done[0])
    waiting = api.get("/api/v1/tasks", {"name": SAMPLE_NAME, "state": "queued,running", "limit": 1})["tasks"]
    task = waiting[0] if waiting else submit_sample(api)
    return finished(api, task, SAMPLE_WAIT_S if run_anew or not waiting else 0)


def submit_sample(api: Api) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    sample = {"command": SAMPLE, "name": SAMPLE_NAME, "mem_mib": 1024}
    body = {"tasks": [sample], "environment": environment, "workdir": ROOT}
    return dict(api.post("/api/v1/tasks", body)["tasks"][0])


def finished(api: Api, task: dict[str, Any], patience_s: float) -> dict[str, Any]:
    answer = api.post("/api/v1/wait", {"ids": [task["id"]], "timeout_s": patience_s, "for": "all"})
    return dict(answer["tasks"][0])


def what_became(api: Api, task: dict[str, Any]) -> str:
    """Its last log line, or why there is none yet."""
    if task["state"] != "completed":
        reason = api.get(f"/api/v1/tasks/{task['id']}/why")["text"]
        return f"{task['state']}: {reason}"
    lines = api.get(f"/api/v1/tasks/{task['id']}/logs")["text"].splitlines()
    return str(lines[-1]) if lines else "(its log is empty)"


def say_where(api: Api) -> None:
    server = api.get("/api/v1/server")
    print(f"API     {server['url'] or server['socket']}{'/api/v1' if server['url'] else ''}")
    print(f"home    {server['home']}")
    command = shlex.quote(os.path.join(bin_folder(), "lab-gpu"))
    print("next, each line can be pasted as it stands:")
    print(f"""  {command} submit --mem 10G 'sleep 3; echo "trained on GPU $CUDA_VISIBLE_DEVICES"'""")
    print(f"  {command} status")
    print(f"  {command} logs -f @")


def bin_folder() -> str:
    """As short as the person's own shell can follow it: PWD is where make was typed, even with make -C."""
    typed_in = os.environ.get("PWD", "")
    folder = "" if os.path.realpath(typed_in) == os.path.realpath(ROOT) else ROOT
    return os.path.join(folder, ".venv/bin")


if __name__ == "__main__":
    sys.exit(main())

"""`lab-gpu agent run`: runs a command here in the foreground and counts it as an attempt of a task.

The command comes first: a master that is away or knows no such task costs a warning, never the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from lab_gpu.cli import foreground, frame, local_env, local_log
from lab_gpu.cli.config import setting
from lab_gpu.client.whereabouts import own_home
from lab_gpu.core.errors import LabGpuError, Refused
from lab_gpu.core.units import format_mib, parse_size_mib
from lab_gpu.runner.oom_text import log_ends_in_oom

if TYPE_CHECKING:
    from lab_gpu.client.transport import Api

SUMMARY = "run a command here and count it as an attempt of a task"
EXAMPLES = (
    'lab-gpu agent run --task-id 1 --mem-used 10 --env my-conda "python train.py"',
    'lab-gpu agent run --task-id 1 --mem-used 10 --log-root ./logs "python train.py"',
    "lab-gpu agent run --task-id @ --mem-used 10 -- python train.py --epochs 3",
)
UNCOUNTED = "the command runs all the same, but it is not counted"


def arguments(parser: argparse.ArgumentParser) -> None:
    words = "the task that gets this attempt; @ is your last one"
    frame.completes(parser.add_argument("--task-id", required=True, metavar="ID", help=words), "task_ids")
    parser.add_argument("--mem-used", metavar="GB", help="GPU memory it uses, counted while it runs")
    parser.add_argument(
        "--env", metavar="ENV", help="a conda environment (name or path) or the path of a venv"
    )
    words = "folder of the log (else the setting log_root, /nas/logs, or logs in the home)"
    frame.completes(parser.add_argument("--log-root", metavar="DIR", help=words), "dirs")
    frame.add_command(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    command = frame.command_text(args)
    words = _shell("\n".join([*_activation(args.env), command]))
    mem_mib = None if args.mem_used is None else parse_size_mib(args.mem_used)
    api, task = _task_of(args)
    root, stem = _log_place(args, api, task)
    about = {"mem_mib": mem_mib, "command": command, "log_path": os.path.join(root, f"{stem}.log")}
    attempt = _begun(api, task, about)
    path, log = _log(api, attempt, root, stem)
    frame.say(f"lab-gpu: {_name(task, attempt)} runs here; its log is {path}")
    code = 1
    try:
        code = foreground.run(words, _environment(task, mem_mib, attempt), log, frame.say)
    finally:
        # A newer attempt may have taken the name meanwhile: the descriptor still knows its own file.
        oom = code != 0 and log_ends_in_oom(f"/proc/self/fd/{log}")
        os.close(log)
        _ended(api, attempt, {"exit_code": code, "oom": oom, "peak_mib": mem_mib})
    return _report(args, task, attempt, {"exit_code": code, "oom": oom, "mem_mib": mem_mib, "log_path": path})


def _log_place(args: argparse.Namespace, api: Api | None, task: int) -> tuple[str, str]:
    """Found before anybody hears of the attempt: what cannot be logged is not begun."""
    home, wanted = own_home(os.environ), args.log_root or setting("log_root")
    root = local_log.prepared_root(wanted, home, None if wanted else _root_of_policy(api))
    return root, local_log.stem_of(task, root, home)


def _log(api: Api | None, attempt: dict[str, Any], root: str, stem: str) -> tuple[str, int]:
    try:
        return local_log.opened(root, stem, attempt)
    except Refused:
        _ended(api, attempt, {"exit_code": 1, "oom": False, "peak_mib": None})
        raise


def _root_of_policy(api: Api | None) -> str | None:
    try:
        return api.get("/api/v1/policy")["policy"].get("log_root") if api else None
    except LabGpuError:
        return None


def _activation(env: str | None) -> list[str]:
    return local_env.activation_lines(env, os.environ) if env else []


def _shell(script: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        raise Refused("cannot run the command: there is no bash on PATH; install bash")
    return [bash, "-c", script]


def _task_of(args: argparse.Namespace) -> tuple[Api | None, int]:
    """`@` needs a master to say which task that is; a number does not."""
    word = args.task_id.strip()
    try:
        api = frame.master(args)
    except LabGpuError as problem:
        if not (word.isascii() and word.isdigit()):
            raise
        frame.say(f"lab-gpu: {problem}; {UNCOUNTED}")
        return None, int(word)
    ids = frame.task_ids([word], api)
    if len(ids) != 1:
        raise Refused(f"cannot add an attempt to {len(ids)} tasks: --task-id takes one")
    return api, ids[0]


def _begun(api: Api | None, task: int, about: dict[str, Any]) -> dict[str, Any]:
    """What the master says of the new attempt; nothing where it is not counted."""
    if api is None:
        return {}
    body = {**about, "pid": os.getpid(), "gpu_indices": _gpus_in_view()}
    try:
        answer: dict[str, Any] = api.post(f"/api/v1/tasks/{task}/outside-attempts", body)
    except LabGpuError as problem:
        frame.say(f"lab-gpu: {problem}; {UNCOUNTED}")
        return {}
    return answer


def _gpus_in_view() -> list[int] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES already names by index; None where it names none or is not set."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [int(word) for word in words] if all(word.isdigit() for word in words) else None


def _environment(task: int, mem_mib: int | None, attempt: dict[str, Any]) -> dict[str, str]:
    """What every task is told, and never a token. GPUs a person chose stay chosen."""
    environ = {name: value for name, value in os.environ.items() if name != "LAB_GPU_TOKEN"}
    environ |= {"LAB_GPU_TASK_ID": str(task), "LAB_GPU_SUBMIT_DIR": os.getcwd(), "PYTHONUNBUFFERED": "1"}
    if attempt:
        environ |= {"LAB_GPU_ATTEMPT": str(attempt["number"]), "LAB_GPU_UNI_ID": str(attempt["uni_id"])}
    if mem_mib is not None:
        environ["LAB_GPU_MEM_MB"] = str(mem_mib)
    if attempt.get("gpus") and "CUDA_VISIBLE_DEVICES" not in environ:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu["index"]) for gpu in attempt["gpus"])
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return environ


def _ended(api: Api | None, attempt: dict[str, Any], body: dict[str, Any]) -> None:
    """Tells the master, and waits for one that is just being restarted: nobody else knows the exit code."""
    if api is None or not attempt:
        return
    path = f"/api/v1/outside-attempts/{attempt['attempt_id']}/end"
    try:
        frame.patiently(lambda: api.post(path, body), limit_s=10.0)
    except LabGpuError as problem:
        frame.say(f"lab-gpu: {problem}; the master was not told that the command ended")


def _name(task: int, attempt: dict[str, Any]) -> str:
    return f"task {task}, attempt {attempt['number']}," if attempt else f"task {task}"


def _report(args: argparse.Namespace, task: int, attempt: dict[str, Any], ending: dict[str, Any]) -> int:
    code = int(ending["exit_code"])
    counted = (
        f", {format_mib(ending['mem_mib'])} of GPU memory counted" if attempt and ending["mem_mib"] else ""
    )
    why = ", out of GPU memory" if ending["oom"] else ""
    frame.say(f"lab-gpu: {_name(task, attempt)} ended with exit code {code}{why}{counted}")
    if args.json:
        sys.stdout.flush()
        frame.print_json({"task_id": task, "attempt": attempt.get("number"), **ending})
    return code

"""The texts of run.sh and command.sh for one attempt, and of what passes between them and the master.

run.sh starts command.sh and writes `exit_code` when that has ended; command.sh waits for one line on a pipe,
creates `begun`, and is then the user's own script. Bash builtins only: no process but the command's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

from lab_gpu.core.attempts import ATTEMPT_VARIABLES, Begun, ExitRecord, GpuLine, LaunchFailed, LaunchOrder
from lab_gpu.core.model import Activation, ProcessName
from lab_gpu.runner import report

RUN_NAME, COMMAND_NAME = "run.sh", "command.sh"
BEGUN_NAME, EXIT_NAME, LOG_LINK_NAME = "begun", "exit_code", "tmux.log"
PIPE_FD = 9  # below 10: bash keeps its own descriptors from there on

# An option of the shell that submitted (noexec, xtrace, nounset) would change or stop our lines.
_SHELL_OPTIONS = ("SHELLOPTS", "BASHOPTS")
_NEVER_PASSED = frozenset((*_SHELL_OPTIONS, *ATTEMPT_VARIABLES, "LAB_GPU_TOKEN", "CUDA_VISIBLE_DEVICES"))
_FRACTION, _GROWTH = "XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEGUN = re.compile(rb"(\d+) (\d+) (\S+) (\d+(?:[.,]\d+)?) end\n")
_RECORD = re.compile(rb"(\d{1,3})\n(\d+(?:[.,]\d+)?) end\n")
BARRED_TEXT = b"barred: the master found that this attempt had not begun\n"


def environment(order: LaunchOrder) -> dict[str, str]:
    """What run.sh and the command see, but for the GPUs, which only the start line brings."""
    passed = {name: value for name, value in order.environment.items() if name not in _NEVER_PASSED}
    if order.strip_path and "PATH" in passed:
        passed["PATH"] = without_folder(passed["PATH"], order.strip_path)
    passed.setdefault("PYTHONUNBUFFERED", "1")
    if order.vram_mib is not None:
        passed.setdefault(_GROWTH, "true")
    passed.update((name, value) for name, value in order.setenv.items() if name not in _NEVER_PASSED)
    passed.update(_ours(order))
    return passed


def without_folder(path: str, folder: str) -> str:
    gone = folder.rstrip("/")
    return ":".join(part for part in path.split(":") if part.rstrip("/") != gone or not part)


def _ours(order: LaunchOrder) -> dict[str, str]:
    grace_s = int(order.grace_s) if order.grace_s == int(order.grace_s) else order.grace_s
    known = {
        "LAB_GPU_TASK_ID": order.task,
        "LAB_GPU_ATTEMPT": order.number,
        "LAB_GPU_UNI_ID": order.uni_id,
        "LAB_GPU_NAME": order.name,
        "LAB_GPU_GRACE_S": grace_s,
        "LAB_GPU_MEM_MB": order.vram_mib,
        "LAB_GPU_SUBMIT_DIR": order.submit_dir,
        "LAB_GPU_ARRAY_INDEX": order.array_index,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def run_text(order: LaunchOrder, bash: str) -> bytes:
    """It lives in its directory and names its files relative to it: made anew, another one is not its own."""
    return _encoded(
        f"""#!{bash} -p
# Lab-GPU: task {order.task}, attempt {order.number}. Starts command.sh and records how it ended.
trap : HUP INT QUIT TERM USR1 USR2
builtin cd -P -- {quote(order.directory)} || exit 1
{report.scheduler_section(report.REPORT_NAME)}{quote(bash)} {quote(order.directory)}/{COMMAND_NAME} 2>&1
code=$?
first=
builtin read -r first _ <{BEGUN_NAME}
if [[ $first == [0-9]* ]]; then
  {_clock("now")}
  builtin printf '%s\\n%s end\\n' "$code" "$now" >{EXIT_NAME} ||
    builtin printf '%s\\n%s end\\n' "$code" "$now" >>{BEGUN_NAME}  # a full disk has room in a block it gave
fi
exit "$code"
"""
    )


def command_text(order: LaunchOrder, bash: str, boot_id: str, cgroup: str | None = None) -> bytes:
    """Raises LaunchFailed for a command no shell script can hold."""
    if "\0" in order.command:
        raise LaunchFailed(
            f"cannot start task {order.task}: its command holds a NUL character; submit it without"
        )
    directory = quote(order.directory)
    join_cgroup = f"builtin printf '%s' \"$$\" 2>/dev/null >{quote(cgroup)}/cgroup.procs\n" if cgroup else ""
    return _encoded(
        f"""#!{bash}
# Lab-GPU: task {order.task}, attempt {order.number}. Waits for its GPUs; the command itself is at the end.
{join_cgroup}{_activation(order)}{report.start_section(f"{order.directory}/{report.REPORT_NAME}")}\
builtin read -r _lab_gpu_stat </proc/self/stat
_lab_gpu_stat=(${{_lab_gpu_stat##*) }})
TMOUT=0 IFS='|' builtin read -r -u {PIPE_FD} _lab_gpu_go _lab_gpu_visible _lab_gpu_uuids \
_lab_gpu_fraction || exit 0
exec {PIPE_FD}<&- >>{quote(order.log_path)} 2>&1 || exit 1
{_clock("_lab_gpu_now")}
set -C
{{ builtin printf '%s %s %s %s end\\n' "$$" "${{_lab_gpu_stat[19]}}" {quote(boot_id)} "$_lab_gpu_now" \
>{directory}/{BEGUN_NAME}; }} 2>/dev/null || exit 0
set +C
{_exports(order)}{_checks(order)}unset ${{!_lab_gpu_*}}
# The command:
{order.command}
"""
    )


def _activation(order: LaunchOrder) -> str:
    """Before the wait: it may take a second and needs no GPU. Its failure is told after the start."""
    if order.activation is None:
        return ""
    script, activate = _activation_steps(order.activation, order.environment)
    why = f"lab-gpu: cannot activate the {order.activation.kind} environment {order.activation.path}"
    missing = f"{why}: {script} is not there; name another one with --env"
    failed = f"{why}: its own activation failed; look at the lines above, or name another one with --env"
    return f"""_lab_gpu_failed=
if [ ! -r {quote(script)} ]; then _lab_gpu_failed={quote(missing)}
elif ! {{ {activate}; }}; then _lab_gpu_failed={quote(failed)}
fi
{_setenv_again(order)}"""


def _setenv_again(order: LaunchOrder) -> str:
    """--setenv wins over what an activation sets, but for PATH, which would undo it."""
    kept = {"PATH", *_NEVER_PASSED, *_ours(order)}
    again = {
        name: value for name, value in order.setenv.items() if name not in kept and _NAME.fullmatch(name)
    }
    return "".join(f"export {name}={quote(value)}\n" for name, value in again.items())


def _activation_steps(activation: Activation, environ: Mapping[str, str]) -> tuple[str, str]:
    if activation.kind == "venv":
        script = f"{activation.path}/bin/activate"
        return script, f"builtin . {quote(script)}"
    script = f"{_conda_root(activation, environ)}/etc/profile.d/conda.sh"
    return script, f"builtin . {quote(script)} && conda activate {quote(activation.path)}"


def _conda_root(activation: Activation, environ: Mapping[str, str]) -> str:
    if activation.conda_root:
        return activation.conda_root
    above, envs, _ = activation.path.rpartition("/envs/")
    program = environ.get("CONDA_EXE", "")
    if not envs and program.count("/") > 1:
        return program.rsplit("/", 2)[0]
    return above if envs else activation.path


def _exports(order: LaunchOrder) -> str:
    lines = ['export CUDA_VISIBLE_DEVICES="$_lab_gpu_visible"']
    if "NVIDIA_VISIBLE_DEVICES" not in order.setenv:
        lines.append('export NVIDIA_VISIBLE_DEVICES="$_lab_gpu_uuids"')
    if _FRACTION not in order.environment and _FRACTION not in order.setenv:
        lines.append(f'[ -z "$_lab_gpu_fraction" ] || export {_FRACTION}="$_lab_gpu_fraction"')
    return "\n".join(lines) + "\n"


def _checks(order: LaunchOrder) -> str:
    no_workdir = (
        f"lab-gpu: cannot run in {order.workdir}: it is not there or may not be entered; "
        "make it, or submit again with another --workdir"
    )
    lines = f"builtin cd -- {quote(order.workdir)} 2>/dev/null || {_failure(quote(no_workdir))}\n"
    if order.activation is not None:
        lines = '[ -z "$_lab_gpu_failed" ] || ' + _failure('"$_lab_gpu_failed"') + "\n" + lines
    return lines


def _failure(sentence: str) -> str:
    return f"{{ builtin printf '%s\\n' {sentence} >&2; exit 1; }}"


def _clock(variable: str) -> str:
    """bash before 5.0 has no EPOCHREALTIME: whole seconds there."""
    return (
        f"{variable}=${{EPOCHREALTIME-}}; [ -n \"${variable}\" ] || builtin printf -v {variable} '%(%s)T' -1"
    )


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise LaunchFailed(
            "cannot start the task: its command is not valid text; submit it as UTF-8"
        ) from None


def start_line(line: GpuLine) -> bytes:
    """Fields stand between bars, so that an empty one is still one."""
    return f"go|{line.visible}|{line.uuids}|{line.memory_fraction}\n".encode()


def parse_begun(content: bytes) -> Begun | None:
    """None where its shell did not get to finish it: then the command never ran."""
    found = _BEGUN.match(content)
    if found is None:
        return None
    pid, started, boot_id, at = found.groups()
    return Begun(ProcessName(int(pid), int(started)), boot_id.decode(), _seconds(at))


def parse_record(content: bytes) -> ExitRecord | None:
    """None where its end mark is missing."""
    found = _RECORD.fullmatch(content)
    return ExitRecord(int(found[1]), _seconds(found[2])) if found else None


def parse_record_in_begun(content: bytes) -> ExitRecord | None:
    """The record run.sh appended to `begun` because a full disk had no room for a new file."""
    begun = _BEGUN.match(content)
    return parse_record(content[begun.end() :]) if begun else None


def _seconds(written: bytes) -> float:
    return float(written.replace(b",", b"."))  # EPOCHREALTIME uses the locale's own decimal mark

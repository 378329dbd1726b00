"""The desk: bodies in, checked tasks out. Every mistake of every task is found before anything is refused."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lab_gpu.core.errors import Refused
from lab_gpu.core.learned import signature
from lab_gpu.core.model import PRIORITY_MAX, PRIORITY_MIN, Activation, NewTask, RetryRule, TaskSpec
from lab_gpu.core.policy import Policy
from lab_gpu.core.units import LONGEST_S
from lab_gpu.runner.environments import Environments
from lab_gpu.service import arrays
from lab_gpu.service.requests import problems as request_problems
from lab_gpu.service.requests import request_of
from lab_gpu.wire.tasks import SubmitBody, TaskBody

MOST_ENVIRONMENT_BYTES = 1 << 20
MOST_COMMAND_BYTES = 8 << 20
MOST_NAME_CHARS = 200
MOST_RETRIES = 1_000_000
BATCH_BITS = 53  # a whole number every reader of JSON keeps
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = "LAB_GPU_TOKEN"


@dataclass(frozen=True, slots=True)
class Owner:
    """In whose name tasks run."""

    uid: int
    name: str
    home: str


@dataclass(frozen=True, slots=True)
class Submission:
    tasks: list[NewTask]
    environment: dict[str, str]


class Desk:
    """`login_environment` is asked where a submit brings no environment. Several threads may use it."""

    def __init__(self, owner: Owner, login_environment: Callable[[], Mapping[str, str]]) -> None:
        self._owner = owner
        self._login_environment = login_environment

    def accept(self, body: SubmitBody, policy: Policy, now: float) -> Submission:
        given = self._login_environment() if body.environment is None else body.environment
        environment = {name: value for name, value in given.items() if name != _SECRET}
        sheet = _Sheet(self._owner, policy, now, environment, body)
        problems = [] if body.environment is None else _environment_problems(environment)
        problems += sheet.problems(body.tasks)
        if problems:
            raise Refused(_all_in_one(problems), tuple(problems))
        return Submission(sheet.build(body.tasks), environment)


class _Sheet:
    """One submit in work: what its tasks share is looked up once."""

    def __init__(
        self,
        owner: Owner,
        policy: Policy,
        now: float,
        environment: Mapping[str, str],
        body: SubmitBody,
    ) -> None:
        self._owner, self._policy, self._now = owner, policy, now
        self._folder, self._submit_dir = body.workdir or owner.home, body.workdir
        self._environments = Environments(environment, owner.home)
        self._strip_path = own_bin_to_strip(environment, sys.prefix)
        self._folder_problem = cache(_folder_problem)
        self._log_root_problem = cache(_log_root_not_there if body.dry_run else _log_root_problem)

    def problems(self, bodies: Sequence[TaskBody]) -> list[str]:
        found = []
        for place, body in enumerate(bodies, 1):
            prefix = f"task {place}: " if len(bodies) > 1 else ""
            found += [prefix + each for each in self._task_problems(place, body, len(bodies))]
        # Whether they wait in a circle can be told only of tasks that are sound by themselves.
        whole = () if found else (arrays.cycle_problem(bodies), arrays.too_much(bodies))
        return found + [each for each in whole if each]

    def _task_problems(self, place: int, body: TaskBody, bodies: int) -> list[str]:
        found = _text_problems(body) + request_problems(request_of(body)) + _time_problems(body, self._now)
        found += _number_problems(body) + _setenv_problems(body.setenv or {})
        found += arrays.after_problems(place, body, bodies)
        workdir = self._workdir(body)
        looked_up = [self._folder_problem(workdir), arrays.array_problem(body.array) if body.array else None]
        if body.log_root is not None:
            looked_up.append(self._log_root_problem(self._path(body.log_root)))
        if body.env is not None:
            looked_up.append(self._env_problem(body, workdir))
        return found + [each for each in looked_up if each]

    def _env_problem(self, body: TaskBody, workdir: str) -> str | None:
        try:
            self._activation(body, workdir)
        except Refused as refusal:
            return str(refusal)
        return None

    def _activation(self, body: TaskBody, workdir: str) -> Activation | None:
        if body.env is None:
            return None
        if not body.env or "\0" in body.env:
            raise Refused("env is empty; name an environment or leave it out")
        return self._environments.find(body.env, body.conda_root, workdir)

    def _workdir(self, body: TaskBody) -> str:
        return self._path(body.workdir) if body.workdir else self._folder

    def _path(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = self._owner.home + path[1:]
        return os.path.normpath(os.path.join(self._folder, path))

    def build(self, bodies: Sequence[TaskBody]) -> list[NewTask]:
        layout = arrays.lay_out(bodies)
        shared = secrets.randbits(BATCH_BITS) if layout.tasks > 1 else None
        built = []
        for body, indices in zip(bodies, layout.indices, strict=True):
            after = arrays.dependencies(body.after, layout) if body.after else ()
            # The limit of an array counts by batch, so an array that has one is a batch by itself.
            own_batch = body.array is not None and body.array.limit is not None and len(bodies) > 1
            batch = secrets.randbits(BATCH_BITS) if own_batch or (body.array and not shared) else shared
            common = self._common(body)
            built += [NewTask(**common, after=after, batch=batch, array_index=index) for index in indices]
        return built

    def _common(self, body: TaskBody) -> dict[str, Any]:
        workdir = self._workdir(body)
        return {
            "owner": self._owner.name,
            "uid": self._owner.uid,
            "command": body.command,
            "workdir": workdir,
            "request": request_of(body),
            "spec": self._spec(body, workdir),
            "name": body.name or None,
            "priority": body.priority,
            "time_limit_s": body.time_limit_s,
            "estimate_s": body.estimate_s,
            "begin_at": body.begin_at,
            "queue": body.queue or None,
            "held": body.held,
            "batch_limit": body.array.limit if body.array else None,
            "signature": signature(self._owner.name, body.command),
        }

    def _spec(self, body: TaskBody, workdir: str) -> TaskSpec:
        return TaskSpec(
            setenv=body.setenv or {},
            activation=self._activation(body, workdir),
            submit_dir=self._submit_dir,
            log_root=self._path(body.log_root) if body.log_root is not None else None,
            retry=self._retry(body),
            kill_at_limit=body.kill_at_limit,
            never_twice=body.never_twice,
            no_output_limit_s=body.no_output_limit_s,
            strip_path=self._strip_path,
        )

    def _retry(self, body: TaskBody) -> RetryRule:
        policy = self._policy
        said = "max_retries" in body.model_fields_set
        return RetryRule(
            max_retries=body.max_retries if said else policy.max_retries,
            pause_s=policy.retry_pause_s if body.retry_pause_s is None else body.retry_pause_s,
            before_backoff=policy.max_retry_before_backoff,
            backoff_s=policy.backoff_duration_s,
        )


def own_bin_to_strip(environment: Mapping[str, str], prefix: str) -> str | None:
    """The master's own virtual environment leaves PATH unless it was the active one at submit."""
    folder = os.path.join(prefix, "bin")
    if prefix == sys.base_prefix or folder not in environment.get("PATH", "").split(":"):
        return None
    active = environment.get("VIRTUAL_ENV")
    return None if active and os.path.realpath(active) == os.path.realpath(prefix) else folder


def _all_in_one(problems: Sequence[str]) -> str:
    rest = len(problems) - 1
    more = f" (and {rest} more mistake{'s' if rest > 1 else ''})" if rest else ""
    return f"cannot submit: {problems[0]}{more}"


def _unwritable(text: str) -> str | None:
    if "\0" in text:
        return "holds a NUL byte; take it out"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds bytes that are not UTF-8; write it in UTF-8"
    return None


def _text_problems(body: TaskBody) -> list[str]:
    if not body.command.strip():
        return ["the command is empty; say what shall run"]
    found = [f"the command {why}" for why in [_unwritable(body.command)] if why]
    if len(body.command) > MOST_COMMAND_BYTES:
        found.append("the command is longer than 8 MiB; put it in a script")
    words = (
        ("name", body.name),
        ("queue", body.queue),
        ("node", body.node),
        ("gpu_type", body.gpu_type),
        ("workdir", body.workdir),
        ("log_root", body.log_root),
    )
    for field, word in words:
        if not word:
            continue
        if why := _unwritable(word):
            found.append(f"{field} {why}")
        elif field in ("name", "queue") and (len(word) > MOST_NAME_CHARS or not word.isprintable()):
            found.append(f"{field} must be one line of at most {MOST_NAME_CHARS} characters")
    return found


def _time_problems(body: TaskBody, now: float) -> list[str]:
    found = []
    limits = (
        ("time_limit_s", body.time_limit_s),
        ("estimate_s", body.estimate_s),
        ("no_output_limit_s", body.no_output_limit_s),
    )
    for field, seconds in limits:
        if seconds is not None and not 0 < seconds <= LONGEST_S:
            found.append(f"{field} must be more than 0 and at most ten years, not {seconds:g}")
    if body.retry_pause_s is not None and not 0 <= body.retry_pause_s <= LONGEST_S:
        found.append(f"retry_pause_s must not be negative and at most ten years, not {body.retry_pause_s:g}")
    if body.begin_at is not None and not 0 <= body.begin_at <= now + LONGEST_S:
        found.append("begin_at must be seconds since 1970, within the next ten years")
    if body.kill_at_limit and body.time_limit_s is None:
        found.append("kill_at_limit needs a time_limit_s; give one or leave it out")
    return found


def _number_problems(body: TaskBody) -> list[str]:
    found = []
    if not PRIORITY_MIN <= body.priority <= PRIORITY_MAX:
        found.append(f"priority must be from {PRIORITY_MIN} to {PRIORITY_MAX}, not {body.priority}")
    if body.max_retries is not None and not 0 <= body.max_retries <= MOST_RETRIES:
        found.append(f"max_retries must be from 0 to {MOST_RETRIES}, or null for no limit")
    return found


def _setenv_problems(setenv: Mapping[str, str]) -> list[str]:
    found = []
    for name, value in setenv.items():
        if not _NAME.fullmatch(name):
            found.append(
                f"setenv cannot set '{name}': a name is letters, digits and _, and begins with no digit"
            )
        elif name == _SECRET:
            found.append(f"setenv cannot set {name}: no task may carry the master's token")
        elif "\0" in value:
            found.append(f"setenv cannot set {name}: its value holds a NUL byte")
    return found


def _environment_problems(environment: Mapping[str, str]) -> list[str]:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return [f"the environment holds a variable that no process can have ('{name[:40]}'); unset it"]
    size = sum(len(name) + len(value) + 2 for name, value in environment.items())
    if size > MOST_ENVIRONMENT_BYTES:
        return [
            f"the environment is {size >> 10} KiB and 1024 are the most; unset what the task does not need"
        ]
    return []


def _folder_problem(path: str) -> str | None:
    if not os.path.isabs(path):
        return f"the directory {path} is not an absolute path; begin it with /"
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        return f"the directory {path} {what}; create it or name another with --workdir"
    if not os.access(path, os.X_OK):
        return f"the directory {path} may not be entered; change its rights or name another with --workdir"
    return None


def _log_root_not_there(path: str) -> str | None:
    """For a trial, which must leave nothing behind."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return _unwritable_root(path) if os.path.isdir(path) else _unwritable_root(path, "it is no directory")


def _unwritable_root(path: str, why: str | None = None) -> str | None:
    if why is None and os.access(path, os.W_OK | os.X_OK):
        return None
    why = why or "permission denied"
    return f"logs cannot be written in {path} ({why}); name another folder with --log-root"


def _log_root_problem(path: str) -> str | None:
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return _unwritable_root(path, why)
    return _unwritable_root(path)

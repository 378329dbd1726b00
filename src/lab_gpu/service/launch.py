"""From a task in line to a started attempt: made beforehand where that can be, committed before it may begin."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab_gpu.core.attempts import Armed, GpuLine, LaunchFailed, LaunchOrder
from lab_gpu.core.documents import spec_from_doc
from lab_gpu.core.ids import AttemptId, GpuUuid, TaskId
from lab_gpu.core.model import Grant, TaskSpec
from lab_gpu.core.policy import Policy
from lab_gpu.core.snapshot import GpuFacts
from lab_gpu.service.log_names import LogNames, free, older
from lab_gpu.service.ports import Engine
from lab_gpu.service.projection import OpenTask
from lab_gpu.store.ledger import Ledger


@dataclass(slots=True)
class Ready:
    """An armed attempt and its row."""

    attempt: AttemptId
    armed: Armed
    spec: TaskSpec


class Launcher:
    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        logs: LogNames,
        home: str,
        policy: Callable[[], Policy],
    ) -> None:
        self._ledger, self._engine, self._logs, self._home = ledger, engine, logs, home
        self._policy = policy
        self._environment: tuple[int | None, dict[str, str]] = (None, {})
        self.ready: dict[TaskId, Ready] = {}

    def arm(self, task: OpenTask, now: float) -> Ready:
        """Directory, scripts, log and a waiting shell. Raises LaunchFailed. Writes the row into the open transaction."""
        try:
            order, spec = self._order(task)
            self.move_older_log(task.id, order.log_path)
        except OSError as error:
            raise LaunchFailed(_no_room(task.id, error)) from None
        armed = self._engine.arm(order)
        try:
            attempt = self._write_row(order, armed, now)
        except BaseException:  # a full disk: its shell would wait for ever
            self._engine.revoke(armed)
            raise
        ready = self.ready[task.id] = Ready(attempt, armed, spec)
        return ready

    def _write_row(self, order: LaunchOrder, armed: Armed, now: float) -> AttemptId:
        return self._ledger.attempts.arm(
            {
                "task_id": order.task,
                "number": order.number,
                "uni_id": order.uni_id,
                "directory": order.directory,
                "log_path": order.log_path,
                "boot_id": self._engine.boot_id,
                "pid": armed.process.pid,
                "pid_started": armed.process.started,
                "created_at": now,
            }
        )

    def take(self, task: TaskId) -> Ready:
        return self.ready.pop(task)

    def go(self, ready: Ready, line: GpuLine) -> None:
        """The committed attempt may begin."""
        self._engine.start(ready.armed, line)

    def revoke(self, task: TaskId, *, write: bool = True) -> None:
        """Take an armed attempt back: it was no try. After a rollback its row is gone already (`write=False`)."""
        ready = self.ready.pop(task, None)
        if ready is None:
            return
        if write:
            self._ledger.attempts.remove(ready.attempt)
        self._engine.revoke(ready.armed)

    def revoke_all(self, *, write: bool = True) -> None:
        for task in list(self.ready):
            self.revoke(task, write=write)

    def armed_pids(self) -> list[int]:
        return [ready.armed.process.pid for ready in self.ready.values()]

    def log_root(self, spec: TaskSpec) -> str:
        return spec.log_root or self._logs.default_root(self._policy().log_root)

    def _order(self, task: OpenTask) -> tuple[LaunchOrder, TaskSpec]:
        row = self._ledger.tasks.row(task.id)
        assert row is not None
        spec = spec_from_doc(json.loads(row["spec"]))
        number = task.attempts + 1
        directory = os.path.join(self._home, "tasks", f"task_{task.id}", str(number))
        _clear_away(directory)  # of an armed attempt that a killed master left: it never began
        order = LaunchOrder(
            task=task.id,
            number=number,
            uni_id=f"{task.id}-{number}-{secrets.token_hex(6)}",
            owner=task.owner,
            uid=task.uid,
            directory=directory,
            log_path=self._logs.path(self.log_root(spec), task.id),
            command=row["command"],
            workdir=row["workdir"],
            environment=self._environment_of(row["environment_id"]),
            setenv=spec.setenv,
            activation=spec.activation,
            strip_path=spec.strip_path,
            name=row["name"],
            array_index=row["array_index"],
            submit_dir=spec.submit_dir,
            grace_s=self._policy().soft_timeout_s,
            vram_mib=task.request.vram_mib,
        )
        return order, spec

    def _environment_of(self, environment_id: int | None) -> dict[str, str]:
        if self._environment[0] != environment_id:
            self._environment = (environment_id, self._ledger.tasks.environment_body(environment_id))
        return self._environment[1]

    def move_older_log(self, task: TaskId, path: str) -> None:
        """The newest attempt has the plain name: the one before gets its number. A stranger's file stays as it is."""
        if not os.path.lexists(path):
            return
        before = self._ledger.attempts.with_log(task, path)
        new = free(older(path, before["number"] if before else 0))
        os.rename(path, new)
        if before is None:
            return
        _point_link(before["directory"], new)
        self._ledger.attempts.move_log(AttemptId(before["id"]), new)


def _clear_away(path: str) -> None:
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.lexists(path):
        shutil.rmtree(path)


def _no_room(task: int, error: OSError) -> str:
    return (
        f"cannot start task {task}: {error.filename} is in the way ({error.strerror});"
        " mend its rights or move it away, then retry it"
    )


def _point_link(directory: str, log_path: str) -> None:
    """The attempt's `tmux.log` follows its log to the new name."""
    link = os.path.join(directory, "tmux.log")
    try:
        os.unlink(link)
        os.symlink(log_path, link)
    except OSError:
        pass  # the folder was cleared away; the ledger knows where the log is


def gpu_line(
    grant: Grant, facts: Mapping[GpuUuid, GpuFacts], policy: Policy, *, real_beside: bool
) -> GpuLine:
    """The GPUs as the program shall see them. Indices are looked up again at each start."""
    if not grant.gpus or (grant.virtual and real_beside):
        return GpuLine(visible="", uuids="" if not grant.gpus else "void")
    known = [facts[uuid] for uuid in grant.gpus if uuid in facts]
    by_uuid = policy.visible_devices == "uuid" or any(gpu.mig for gpu in known)
    indices = [gpu.index for gpu in known] if len(known) == len(grant.gpus) else list(grant.indices)
    visible = ",".join(grant.gpus) if by_uuid else ",".join(str(index) for index in indices)
    smallest = min((gpu.total_mib for gpu in known), default=0)
    fraction = f"{grant.vram_mib / smallest:.3f}" if grant.vram_mib and smallest else ""
    return GpuLine(visible=visible, uuids=",".join(grant.gpus), memory_fraction=fraction)

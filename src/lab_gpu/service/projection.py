"""The open tasks as the loop remembers them: what the ledger holds, grouped so that a pass costs by what it touches.

It is changed only together with the ledger, inside one transaction; when that rolls back it is read anew.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lab_gpu.core.documents import request_from_doc
from lab_gpu.core.ids import TaskId
from lab_gpu.core.learned import expected_run_s
from lab_gpu.core.model import After, Request, TaskState
from lab_gpu.core.snapshot import AskGroup, GroupKey
from lab_gpu.store.ledger import Ledger


@dataclass(slots=True)
class OpenTask:
    """A task that is queued or running, without what only its launch needs."""

    id: TaskId
    owner: str
    uid: int
    state: TaskState
    request: Request
    priority: int
    position: int
    front: int = 0
    held: bool = False
    not_before: float | None = None
    reason: tuple[str | None, str | None] = (None, None)
    queue: tuple[str, str] | None = None
    batch: int | None = None
    batch_limit: int | None = None
    time_limit_s: float | None = None
    estimate_s: float | None = None
    signature: str | None = None
    attempts: int = 0
    name: str | None = None
    waits_on: dict[TaskId, After] = field(default_factory=dict)
    group: GroupKey | None = None

    @property
    def place(self) -> tuple[int, int]:
        return (self.position, self.id)


def satisfied(kind: After, state: TaskState) -> bool | None:
    """Whether a dependency is met: None while nobody can know."""
    if not state.final:
        return None
    if kind is After.ANY:
        return True
    return (state is TaskState.COMPLETED) == (kind is After.OK)


class Projection:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.tasks: dict[TaskId, OpenTask] = {}
        self._groups: dict[GroupKey, AskGroup] = {}
        self._lists: dict[GroupKey, list[tuple[int, int]]] = {}
        self._queues: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        self._queue_running: dict[tuple[str, str], TaskId] = {}
        self._queue_turn: dict[tuple[str, str], TaskId] = {}
        self._dependents: dict[TaskId, set[TaskId]] = {}
        self._batches: dict[int, set[TaskId]] = {}
        self._running_of_batch: dict[int, int] = {}
        self._limits: dict[int, int] = {}
        self._due: list[tuple[float, TaskId]] = []
        self._learned: dict[str, float | None] = {}
        self.next_position = 1
        self.running = 0

    # --- reading -------------------------------------------------------------------------------

    def groups(self) -> list[AskGroup]:
        return list(self._groups.values())

    def rooms(self) -> dict[int, int]:
        """How many more tasks of each array with a ceiling may run."""
        return {
            batch: max(0, limit - self._running_of_batch.get(batch, 0))
            for batch, limit in self._limits.items()
        }

    def queue_head(self, queue: tuple[str, str]) -> TaskId | None:
        """Whose turn it is: the one that runs, else the first in line."""
        running = self._queue_running.get(queue)
        if running is not None:
            return running
        line = self._queues.get(queue)
        return TaskId(line[0][2]) if line else None

    def next_of_queues(self) -> list[TaskId]:
        """Those whose turn it will be when the running ones of their queues end, where nothing else keeps them."""
        found = []
        for queue, running in self._queue_running.items():
            line = self._queues[queue]
            second = next((TaskId(t) for _, _, t in line[:2] if t != running), None)
            task = self.tasks[second] if second is not None else None
            if task and not task.held and not task.waits_on and task.not_before is None:
                found.append(task.id)
        return found

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def waiting(self) -> int:
        return len(self.tasks) - self.running

    def place_in_line(self, task: OpenTask) -> tuple[int, int] | None:
        """Position among the tasks that wait for GPUs, and how many there are; None where it waits for other things."""
        if task.group is None:
            return None
        mine = (-task.front, -task.priority, *task.place)
        ahead = total = 0
        for key, line in self._lists.items():
            total += len(line)
            rank = (-key.front, -key.priority)
            if rank < mine[:2]:
                ahead += len(line)
            elif rank == mine[:2]:
                ahead += bisect_left(line, task.place)
        return ahead + 1, total

    def dependents(self, task: TaskId) -> set[TaskId]:
        return self._dependents.get(task, set())

    def expected_s(self, task: OpenTask) -> float | None:
        """What the planner counts on: the limit, else the estimate, else what was learned."""
        return task.time_limit_s or task.estimate_s or self._learn(task.signature)

    def _learn(self, signature: str | None) -> float | None:
        if signature is None:
            return None
        if signature not in self._learned:
            self._learned[signature] = expected_run_s(self._ledger.tasks.recent_runs(signature))
        return self._learned[signature]

    # --- changing ------------------------------------------------------------------------------

    def load(self) -> None:
        """Everything anew from the ledger."""
        self.__init__(self._ledger)  # type: ignore[misc]
        for row in self._ledger.tasks.open():
            self._place(from_row(row))
        for row in self._ledger.tasks.open_dependencies():
            # What ended badly meanwhile does not keep one that had started: who waited for it has failed with it.
            if satisfied(After(row["kind"]), TaskState(row["on_state"])) is None:
                self._link(self.tasks[TaskId(row["task_id"])], TaskId(row["on_task_id"]), After(row["kind"]))
        self.next_position = self._ledger.tasks.next_position()
        for queue in self._queues:
            self._pass_turn(queue)
        for task in self.tasks.values():
            self.regroup(task)

    def add(self, task: OpenTask, waits_on: Iterable[tuple[TaskId, After]] = ()) -> None:
        for on, kind in waits_on:
            self._link(task, on, kind)
        self._place(task)
        self.next_position = max(self.next_position, task.position + 1)
        if task.queue:
            self._pass_turn(task.queue)
        self.regroup(task)

    def reopened(self, on: TaskId) -> None:
        """A final task runs again: those in line that depend on it wait for it once more."""
        for row in self._ledger.tasks.queued_dependents(on):
            task = self.tasks[TaskId(row["id"])]
            self._link(task, on, After(row["kind"]))
            self.regroup(task)

    def _place(self, task: OpenTask) -> None:
        self.tasks[task.id] = task
        if task.state is TaskState.RUNNING:
            self._count_running(task, 1)
        if task.queue:
            insort(self._queues.setdefault(task.queue, []), (-task.front, task.position, task.id))
        if task.batch is not None:
            self._batches.setdefault(task.batch, set()).add(task.id)
            if task.batch_limit is not None:
                self._limits[task.batch] = task.batch_limit

    def _link(self, task: OpenTask, on: TaskId, kind: After) -> None:
        task.waits_on[on] = kind
        self._dependents.setdefault(on, set()).add(task.id)

    def _count_running(self, task: OpenTask, step: int) -> None:
        self.running += step
        if task.batch is not None:
            self._running_of_batch[task.batch] = self._running_of_batch.get(task.batch, 0) + step
        if task.queue and step > 0:
            self._queue_running[task.queue] = task.id
        elif task.queue:
            self._queue_running.pop(task.queue, None)

    def started(self, task: OpenTask, number: int) -> None:
        task.state = TaskState.RUNNING
        task.attempts = number
        task.not_before = None
        task.reason = (None, None)
        self._count_running(task, 1)
        self._reline(task, front=0)

    def requeued(self, task: OpenTask, *, front: int, position: int) -> None:
        """A running task stands in line again, behind what it depends on where that runs anew."""
        task.state = TaskState.QUEUED
        for row in self._ledger.tasks.dependencies(task.id):
            if satisfied(After(row["kind"]), TaskState(row["on_state"])) is None:
                self._link(task, TaskId(row["on_task_id"]), After(row["kind"]))
        self._count_running(task, -1)
        self.moved(task, front=front, position=position)

    def moved(self, task: OpenTask, *, front: int, position: int) -> None:
        self._ungroup(task)
        self._reline(task, front=front, position=position)

    def _reline(self, task: OpenTask, *, front: int, position: int | None = None) -> None:
        """A new place in line, in its named queue too."""
        self._ungroup(task)
        if task.queue:
            self._take_from_line(task, task.queue)
        task.front = front
        task.position = task.position if position is None else position
        self.next_position = max(self.next_position, task.position + 1)
        if task.queue:
            insort(self._queues[task.queue], (-task.front, task.position, task.id))
            self._pass_turn(task.queue)
        self.regroup(task)

    def ended(self, task: OpenTask, state: TaskState) -> list[OpenTask]:
        """Takes a final task out; returns those whose dependency on it can no longer be met."""
        self._ungroup(task)
        if task.state is TaskState.RUNNING:
            self._count_running(task, -1)
        task.state = state
        del self.tasks[task.id]
        for on in list(task.waits_on):
            self._unlink(task, on)
        self._leave_batch(task)
        if task.queue:
            self._leave_queue(task)
        if state is TaskState.COMPLETED and task.signature:
            self._learned.pop(task.signature, None)
        return self._resolve_dependents(task.id, state)

    def _leave_batch(self, task: OpenTask) -> None:
        if task.batch is None:
            return
        members = self._batches[task.batch]
        members.discard(task.id)
        if not members:
            del self._batches[task.batch]
            self._running_of_batch.pop(task.batch, None)
            self._limits.pop(task.batch, None)

    def _leave_queue(self, task: OpenTask) -> None:
        assert task.queue is not None
        self._take_from_line(task, task.queue)
        if self._queues[task.queue]:
            self._pass_turn(task.queue)
        else:
            del self._queues[task.queue]
            self._queue_turn.pop(task.queue, None)

    def _take_from_line(self, task: OpenTask, queue: tuple[str, str]) -> None:
        line = self._queues[queue]
        del line[bisect_left(line, (-task.front, task.position, task.id))]

    def _resolve_dependents(self, on: TaskId, state: TaskState) -> list[OpenTask]:
        hopeless = []
        for task_id in sorted(self._dependents.get(on, ())):
            task = self.tasks[task_id]
            if satisfied(task.waits_on[on], state):
                self._unlink(task, on)
                self.regroup(task)
            else:
                hopeless.append(task)
        return hopeless

    def _unlink(self, task: OpenTask, on: TaskId) -> None:
        task.waits_on.pop(on, None)
        waiting = self._dependents.get(on)
        if waiting is not None:
            waiting.discard(task.id)
            if not waiting:
                del self._dependents[on]

    def wake_due(self, now: float) -> bool:
        """Lets tasks whose time has come into the line."""
        woken = False
        while self._due and self._due[0][0] <= now:
            _, task_id = heapq.heappop(self._due)
            task = self.tasks.get(task_id)
            if task and task.not_before is not None and task.not_before <= now:
                task.not_before = None
                woken = self.regroup(task) or woken
        return woken

    def regroup(self, task: OpenTask) -> bool:
        """Puts a task into the group it belongs to now, or out of all. True when that changed something."""
        key = self._key(task)
        if key == task.group:
            return False
        self._ungroup(task)
        if key is not None:
            line = self._lists.get(key)
            if line is None:
                line = self._lists[key] = []
                self._groups[key] = AskGroup(key, line)
            insort(line, task.place)
        task.group = key
        return True

    def _key(self, task: OpenTask) -> GroupKey | None:
        if task.state is not TaskState.QUEUED or task.held or task.waits_on:
            return None
        if task.not_before is not None:
            heapq.heappush(self._due, (task.not_before, task.id))
            return None
        if task.queue and self.queue_head(task.queue) != task.id:
            return None
        return GroupKey(
            kind="task",
            owner=task.owner,
            request=task.request,
            priority=task.priority,
            front=task.front,
            expected_s=self.expected_s(task),
            room_key=task.batch if task.batch_limit is not None else None,
        )

    def _ungroup(self, task: OpenTask) -> None:
        if task.group is None:
            return
        line = self._lists[task.group]
        del line[bisect_left(line, task.place)]
        if not line:
            del self._lists[task.group]
            del self._groups[task.group]
        task.group = None

    def _pass_turn(self, queue: tuple[str, str]) -> None:
        """Only two tasks can be touched by a change of a queue: whose turn it was, and whose it is."""
        before, now = self._queue_turn.get(queue), self.queue_head(queue)
        if now is not None:
            self._queue_turn[queue] = now
        for task_id in (before, now):
            if task_id is not None and task_id in self.tasks:
                self.regroup(self.tasks[task_id])

    def check(self, now: float) -> Iterator[str]:
        """Every way in which this differs from a fresh reading of the ledger. A time that has passed is no time."""
        fresh = Projection(self._ledger)
        fresh.load()
        for each in (self, fresh):
            each.wake_due(now)
            for task in each.tasks.values():
                if task.not_before is not None and task.not_before <= now:
                    task.not_before = None
        if fresh.tasks.keys() != self.tasks.keys():
            yield f"tasks differ: {sorted(fresh.tasks.keys() ^ self.tasks.keys())}"
        for task_id in fresh.tasks.keys() & self.tasks.keys():
            if fresh.tasks[task_id] != self.tasks[task_id]:
                yield f"task {task_id} differs: {fresh.tasks[task_id]} is not {self.tasks[task_id]}"
        if {k: list(v.asks) for k, v in fresh._groups.items()} != {
            k: list(v.asks) for k, v in self._groups.items()
        }:
            yield "groups differ"
        if fresh.rooms() != self.rooms():
            yield "rooms differ"


def from_row(row: sqlite3.Row) -> OpenTask:
    get = row.__getitem__
    return OpenTask(
        id=TaskId(get("id")),
        owner=get("owner"),
        uid=get("uid"),
        state=TaskState(get("state")),
        request=request_from_doc(json.loads(get("request"))),
        priority=get("priority"),
        position=get("position"),
        front=get("front"),
        held=bool(get("held")),
        not_before=get("not_before"),
        reason=(get("reason_code"), get("reason")),
        queue=(get("owner"), get("queue")) if get("queue") else None,
        batch=get("batch"),
        batch_limit=get("batch_limit"),
        time_limit_s=get("time_limit_s"),
        estimate_s=get("estimate_s"),
        signature=get("signature"),
        attempts=get("attempts"),
        name=get("name"),
    )

"""What the service needs from the outside, as protocols. daemon/ passes the adapters in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lab_gpu.core.attempts import Armed, Begun, ExitRecord, GpuLine, LaunchOrder, Whereabouts
from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.model import ProcessName
from lab_gpu.core.snapshot import HostFacts


class Engine(Protocol):
    """How an attempt is started, signalled and found again on a node."""

    boot_id: str

    def arm(self, order: LaunchOrder) -> Armed:
        """Make directory, scripts, log and the waiting shell. Raises LaunchFailed and leaves nothing behind."""

    def start(self, armed: Armed, line: GpuLine) -> None:
        """Tell the waiting shell to go. Raises LaunchFailed where it is gone."""

    def revoke(self, armed: Armed) -> None:
        """Take back: the shell ends having done nothing, directory and an empty log of ours are removed."""

    def reap(self, process: ProcessName) -> None:
        """Collect the exit of a child of ours; no-op for processes that are not."""

    def has_folder(self, directory: str) -> bool:
        """False where somebody removed it, and with it all that would tell whether the command began."""

    def exit_record(self, directory: str) -> ExitRecord | None: ...

    def begun(self, directory: str) -> Begun | None: ...

    def bar(self, directory: str) -> bool:
        """Create `begun` ourselves where it is missing, so that the command can never start. True: we won."""

    def find(self, directory: str, uni_id: str, runner: ProcessName | None) -> Whereabouts:
        """Where an attempt of before a restart stands. Bars it where it had not begun."""

    def tree(self, uni_id: str, runner: ProcessName | None, session: int | None) -> tuple[ProcessName, ...]:
        """Every living process of the attempt but run.sh: its session, children, and carriers of its uni_id."""

    def confirm(self, uni_id: str) -> None:
        """Right after a start: look whether the kernel keeps the attempt together, so that `is_empty` can tell."""

    def close_report(self, directory: str, record: ExitRecord) -> None:
        """Adds to the environment report how the attempt ended."""

    def is_empty(self, uni_id: str) -> bool:
        """Whether the kernel vouches that nothing of the attempt lives; false where it cannot tell."""

    def strays(self, known: Sequence[int]) -> tuple[ProcessName, ...] | None:
        """Children we were given by the death of their parents and do not know; None where the kernel cannot tell."""

    def kill(self, uni_id: str, runner: ProcessName | None, session: int | None) -> None:
        """SIGKILL to the whole tree but run.sh, at one stroke where a cgroup holds it."""

    def alive(self, process: ProcessName) -> bool: ...

    def send(self, process: ProcessName, signal: int) -> bool:
        """Signal a process by pidfd after checking its start time; false where it is gone."""

    def catchers(self, processes: Sequence[ProcessName], signal: int) -> tuple[ProcessName, ...]:
        """Those that catch the signal (SigCgt), without forked workers of one that does, and without run.sh."""


class Probe(Protocol):
    """Reads this host's GPUs. Blocking: called by the reader thread only."""

    def read(self) -> HostFacts: ...

    def close(self) -> None: ...


class Claims(Protocol):
    """The claims directory all masters of this host share."""

    def others(self) -> tuple[OthersClaim, ...]:
        """Living claims of other masters, read without the lock (for readings)."""

    def exchange(self, mine: Sequence[Claim], fits: ClaimCheck) -> bool:
        """Under the lock: read all others', ask `fits(others)`, and only then write `mine`. False: nothing written."""

    def publish(self, mine: Sequence[Claim]) -> None:
        """Write our own file (fewer claims than before never need the check)."""


class ClaimCheck(Protocol):
    def __call__(self, others: Sequence[OthersClaim]) -> bool: ...


class Doors(Protocol):
    """The process that speaks HTTP, as the loop sees it. It may die at any time and is started again."""

    pidfd: int

    @property
    def has_unsent(self) -> bool: ...

    def fileno(self) -> int: ...

    def receive(self) -> list[dict[str, Any]]:
        """The orders that have arrived; empty where there are none yet, or the doors are gone."""

    def send(self, frame: dict[str, Any]) -> None:
        """Never blocks: what cannot be sent now follows with `flush`."""

    def flush(self) -> None: ...

    def died(self) -> float:
        """Clears up after doors that died; answers how long to wait before new ones are started."""

    def start(self) -> None: ...


class Keeper(Protocol):
    """A chore."""

    def run_once(self, now: float) -> float | None:
        """Does it; answers when to do it next, None: not before something changes."""

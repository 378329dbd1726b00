"""Attempts on this host: made ahead of time, started by a line on a pipe, found again by files and /proc.

Whoever creates `begun` first decides whether the command runs: its own shell, or the master that bars it.
"""

from __future__ import annotations

import os
import select
import signal as signals
from collections.abc import Sequence

from lab_gpu.core.attempts import Armed, Begun, ExitRecord, GpuLine, LaunchFailed, LaunchOrder, Whereabouts
from lab_gpu.core.model import ProcessName
from lab_gpu.engines import cgroup, proc, subreaper
from lab_gpu.engines.census import Census
from lab_gpu.engines.spawn import find_bash, spawn
from lab_gpu.runner import report, scripts

RECORD_LIMIT_BYTES = 4096
REVOKE_PATIENCE_MS = 200


class LocalEngine:
    """Adapter of the Engine port for the master's own host."""

    def __init__(self) -> None:
        self.boot_id = proc.boot_id()
        self._bash = find_bash(os.environ.get("PATH", os.defpath))
        self._census = Census()
        self._cgroups = cgroup.find()
        self._uni_ids: dict[int, str] = {}  # by run.sh's pid, until it is reaped
        self._joined: set[str] = set()  # whose shell was seen in its cgroup: they can be told empty
        self._late: set[int] = set()  # process groups of revoked attempts that had not ended at once
        self._subreaper = subreaper.become_subreaper()

    # -- before the command

    def arm(self, order: LaunchOrder) -> Armed:
        bash = self._bash
        if bash is None:
            raise LaunchFailed(f"cannot start task {order.task}: there is no bash on this host; install bash")
        self._late = {group for group in self._late if not subreaper.reap_group(group)}
        log_fd, made_log = _open_log(order)
        try:
            return self._arm_with(order, bash, log_fd, made_log)
        finally:
            os.close(log_fd)

    def _arm_with(self, order: LaunchOrder, bash: str, log_fd: int, made_log: bool) -> Armed:
        """Leaves nothing behind where it fails."""
        try:
            _make_folder(order.directory)
        except OSError as error:
            _take_log_away(order, made_log)
            raise LaunchFailed(_no_directory(order, error)) from None
        try:
            return self._arm_in(order, bash, log_fd, made_log)
        except OSError as error:
            self._undo(order, made_log)
            raise LaunchFailed(_no_directory(order, error)) from None
        except LaunchFailed:
            self._undo(order, made_log)
            raise

    def _arm_in(self, order: LaunchOrder, bash: str, log_fd: int, made_log: bool) -> Armed:
        group = self._cgroups.make(order.uni_id) if self._cgroups else None
        run_path = f"{order.directory}/{scripts.RUN_NAME}"
        command = scripts.command_text(order, bash, self.boot_id, group)
        _write_new(f"{order.directory}/{scripts.COMMAND_NAME}", command)
        _write_new(run_path, scripts.run_text(order, bash))
        # Its place on the disk, made before a GPU waits for it.
        _write_new(f"{order.directory}/{scripts.EXIT_NAME}", b"")
        os.symlink(order.log_path, f"{order.directory}/{scripts.LOG_LINK_NAME}")
        reading, writing = os.pipe()
        try:
            pid = self._spawn(order, [bash, "-p", run_path], log_fd, reading)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._uni_ids[pid] = order.uni_id
        runner = proc.stat(pid)
        assert runner is not None, "a child that is not reaped is in /proc"
        return Armed(order, runner.name, writing, made_log)

    def _spawn(self, order: LaunchOrder, arguments: Sequence[str], log_fd: int, reading: int) -> int:
        try:
            return spawn(
                arguments,
                scripts.environment(order),
                output_fd=log_fd,
                pipe_fd=reading,
                pipe_as=scripts.PIPE_FD,
            )
        except (ValueError, UnicodeEncodeError) as error:
            raise LaunchFailed(
                f"cannot start task {order.task}: its environment holds what no process can be given "
                f"({error}); submit it without that variable"
            ) from None

    def start(self, armed: Armed, line: GpuLine) -> None:
        order = armed.order
        try:
            if not os.path.exists(order.log_path):
                os.close(_open_log(order)[0])  # the folder was cleared while the shell waited
            _write_all(armed.pipe, scripts.start_line(line))
        except BrokenPipeError:
            raise LaunchFailed(
                f"cannot start task {order.task}: its shell ended while it waited; look at {order.log_path} "
                f"and at what your BASH_ENV does, then retry it"
            ) from None
        finally:
            os.close(armed.pipe)

    def revoke(self, armed: Armed) -> None:
        os.close(armed.pipe)
        pid = armed.process.pid
        try:
            os.killpg(pid, signals.SIGKILL)  # not reaped yet, so the number is still its own
        except ProcessLookupError:
            pass
        if not _ended_within(pid, REVOKE_PATIENCE_MS):
            self._late.add(pid)
        self._uni_ids.pop(pid, None)
        self._undo(armed.order, armed.made_log)

    def _undo(self, order: LaunchOrder, made_log: bool) -> None:
        _remove_directory(order.directory)
        _take_log_away(order, made_log)
        if self._cgroups:
            self._cgroups.kill(order.uni_id)
            self._cgroups.remove(order.uni_id)

    # -- afterwards

    def reap(self, process: ProcessName) -> None:
        subreaper.reap_group(process.pid)
        uni_id = self._uni_ids.pop(process.pid, None)
        if self._cgroups and uni_id is not None:
            self._joined.discard(uni_id)
            self._cgroups.remove(uni_id)

    def has_folder(self, directory: str) -> bool:
        return os.path.isdir(directory)

    def exit_record(self, directory: str) -> ExitRecord | None:
        record = scripts.parse_record(_file(directory, scripts.EXIT_NAME))
        return record or scripts.parse_record_in_begun(_file(directory, scripts.BEGUN_NAME))

    def close_report(self, directory: str, record: ExitRecord) -> None:
        try:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # a task may have made it a pipe
            with open(os.open(f"{directory}/{report.REPORT_NAME}", flags), "r+b", buffering=0) as file:
                so_far = file.read(RECORD_LIMIT_BYTES).decode("utf-8", "replace")
                if report.EXIT_HEADING not in so_far:
                    file.write(report.exit_text(record.code, record.at, so_far).encode())
        except OSError:
            pass  # a full disk, or nothing to add to: the report is a courtesy

    def begun(self, directory: str) -> Begun | None:
        return scripts.parse_begun(_file(directory, scripts.BEGUN_NAME))

    def bar(self, directory: str) -> bool:
        """Raises OSError where the disk lets nobody create it."""
        os.makedirs(directory, exist_ok=True)
        begun = f"{directory}/{scripts.BEGUN_NAME}"
        draft = f"{directory}/.barred-{os.getpid()}"
        _unlink(draft)
        try:
            _write_new(draft, scripts.BARRED_TEXT)
            os.link(draft, begun)  # appears with its content, so nobody ever reads half of it
        except FileExistsError:
            return False
        except OSError:  # a full disk, or a file system without links
            return _created(begun)
        finally:
            _unlink(draft)
        return True

    def find(self, directory: str, uni_id: str, runner: ProcessName | None) -> Whereabouts:
        runner_alive = runner is not None and proc.alive(runner)
        begun = None
        if not self.bar(directory):
            begun = self.begun(directory)
            if begun is None and runner_alive and runner is not None and not self._barred(directory):
                # its shell is between creating the file and filling it: it runs, as far as anybody can tell
                at = os.stat(f"{directory}/{scripts.BEGUN_NAME}").st_mtime
                begun = Begun(runner, self.boot_id, at)
        session = runner.pid if runner is not None else None
        return Whereabouts(
            begun, self.exit_record(directory), runner_alive, self.tree(uni_id, runner, session)
        )

    def _barred(self, directory: str) -> bool:
        return _file(directory, scripts.BEGUN_NAME) == scripts.BARRED_TEXT

    # -- its processes

    def tree(self, uni_id: str, runner: ProcessName | None, session: int | None) -> tuple[ProcessName, ...]:
        members = {stat.name for stat in self._census.members(uni_id, session, runner)}
        if self._cgroups:
            inside = (proc.stat(pid) for pid in self._cgroups.pids(uni_id))
            members.update(stat.name for stat in inside if stat is not None and not stat.dead)
        found = (name for name in members if name != runner and name.pid != os.getpid())
        return tuple(sorted((name for name in found if not _is_runner(name)), key=_by_age))

    def confirm(self, uni_id: str) -> None:
        if self._cgroups and self._cgroups.pids(uni_id):
            self._joined.add(uni_id)

    def is_empty(self, uni_id: str) -> bool:
        return uni_id in self._joined and self._cgroups is not None and self._cgroups.is_empty(uni_id)

    def strays(self, known: Sequence[int]) -> tuple[ProcessName, ...] | None:
        mine = subreaper.children() if self._subreaper else None
        return None if mine is None else subreaper.living_strays(mine, frozenset(known))

    def alive(self, process: ProcessName) -> bool:
        """An orphan that came to us and died is reaped on the way."""
        now = proc.stat_of(process)
        if now is None:
            return False
        if now.dead and process.pid not in self._uni_ids and now.parent == os.getpid() and self._subreaper:
            subreaper.reap(process.pid)
        return not now.dead

    def send(self, process: ProcessName, signal: int) -> bool:
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            if not proc.alive(process):  # the pid went to another one before we held it
                return False
            signals.pidfd_send_signal(fd, signal)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(fd)
        return True

    def kill(self, uni_id: str, runner: ProcessName | None, session: int | None) -> None:
        if self._cgroups:
            self._cgroups.kill(uni_id)
        for process in self.tree(uni_id, runner, session):
            self.send(process, signals.SIGKILL)

    def catchers(self, processes: Sequence[ProcessName], signal: int) -> tuple[ProcessName, ...]:
        stats = {stat.name.pid: stat for stat in map(proc.stat_of, processes) if stat is not None}
        catching = {
            pid
            for pid, stat in stats.items()
            if not stat.dead
            and proc.catches(pid, signal)
            and not _is_runner(stat.name)
            and not proc.only_cleans_up(pid, signal)
        }
        told = [pid for pid in catching if not _worker_of_catcher(pid, stats, catching)]
        # asked once more: a fork that became a program of its own meanwhile catches nothing now, and would die of it
        return tuple(sorted((stats[pid].name for pid in told if proc.catches(pid, signal)), key=_by_age))


def _by_age(process: ProcessName) -> tuple[int, int]:
    return process.started, process.pid


def _worker_of_catcher(pid: int, stats: dict[int, proc.Stat], catching: set[int]) -> bool:
    """It forked from one that is told, and started no program of its own."""
    above, seen = stats[pid].parent, {pid}
    while above in stats and above not in seen:
        if above in catching and proc.forked_from(stats[pid], stats[above]):
            return True
        seen.add(above)
        above = stats[above].parent
    return False


def _is_runner(process: ProcessName) -> bool:
    arguments = proc.command_line(process.pid)
    if len(arguments) != 3 or arguments[1] != "-p" or os.path.basename(arguments[2]) != scripts.RUN_NAME:
        return False
    now = proc.stat_of(process)
    return now is not None and now.session == process.pid


def _open_log(order: LaunchOrder) -> tuple[int, bool]:
    """Its descriptor, and whether there was none before. Never empties one that is there."""
    try:
        return _opened_log(order.log_path)
    except OSError as error:
        raise LaunchFailed(
            f"cannot write the log {order.log_path} of task {order.task}: {error.strerror}; "
            f"make its folder writable, or submit again with another --log-root"
        ) from None


def _opened_log(path: str) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_EXCL, 0o666), True
    except FileExistsError:
        fd = os.open(path, flags | os.O_NONBLOCK, 0o666)  # a pipe there must not keep us waiting
        os.set_blocking(fd, True)
        return fd, False
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666), True


def _take_log_away(order: LaunchOrder, made_log: bool) -> None:
    if made_log:
        _unlink(order.log_path)


def _make_folder(path: str) -> None:
    """A new one; the usual case is that the folder above is there."""
    try:
        os.mkdir(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path)


def _no_directory(order: LaunchOrder, error: OSError) -> str:
    return (
        f"cannot start task {order.task} in {order.directory}: {error.strerror}; "
        f"look at the disk and at the size of its environment, then retry it"
    )


def _write_new(path: str, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    try:
        _write_all(fd, text)
    finally:
        os.close(fd)


def _created(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700))
    except FileExistsError:
        return False
    return True


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _file(directory: str, name: str) -> bytes:
    return proc.content(f"{directory}/{name}", RECORD_LIMIT_BYTES) or b""


def _remove_directory(directory: str) -> None:
    try:
        for name in os.listdir(directory):
            _unlink(f"{directory}/{name}")
        os.rmdir(directory)
    except OSError:
        pass  # what is left is a folder without `begun`: it means nothing


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _ended_within(pid: int, patience_ms: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        watched = select.poll()
        watched.register(fd, select.POLLIN)
        watched.poll(patience_ms)
    finally:
        os.close(fd)
    return subreaper.reap_group(pid)

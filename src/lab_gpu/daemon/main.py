"""Where all is wired: sockets, lock, ledger, probe, engine, doors, and the loop over them."""

from __future__ import annotations

import gc
import json
import os
import pwd
import secrets
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab_gpu.core.errors import Broken, LabGpuError, Refused
from lab_gpu.core.places import database_path, log_path, state_path, token_path
from lab_gpu.core.policy import parse_policy, policy_to_doc
from lab_gpu.core.readings import parse_readings
from lab_gpu.core.version import VERSION
from lab_gpu.daemon.doors_process import DoorsProcess
from lab_gpu.daemon.listen import listen_tcp, listen_unix, url_of
from lab_gpu.daemon.lock import HomeLock, HomeTaken
from lab_gpu.daemon.notify import sd_notify
from lab_gpu.daemon.options import Options, hostname, parse, remember
from lab_gpu.daemon.policy_file import knows_zone, read_policy, utc_offset_of
from lab_gpu.engines.local import LocalEngine
from lab_gpu.probe.claims import ClaimsDirectory
from lab_gpu.probe.filesystems import on_network
from lab_gpu.probe.host import HostProbe
from lab_gpu.service.caretaking import use_policy
from lab_gpu.service.gpu_book import GpuBook
from lab_gpu.service.house import House, Standing
from lab_gpu.service.keepers.directories import DirectoryKeeper, KeepRule, Remains, remove_files
from lab_gpu.service.keepers.history import HistoryKeeper
from lab_gpu.service.keepers.logs import LogKeeper
from lab_gpu.service.launch import Launcher
from lab_gpu.service.log_names import LogNames
from lab_gpu.service.loop import Loop
from lab_gpu.service.observe import Observer
from lab_gpu.service.projection import Projection
from lab_gpu.service.recover import recover
from lab_gpu.service.timers import Timers
from lab_gpu.store.database import Database, unusable
from lab_gpu.store.ledger import Ledger
from lab_gpu.store.reader import Reader


@dataclass(slots=True)
class Ground:
    """What a master stands on before it knows its tasks."""

    options: Options
    lock: HomeLock
    engine: LocalEngine
    listening: list[socket.socket]
    socket_path: str
    url: str | None
    token: str
    database: Database
    exclusive: bool
    wake: tuple[int, int]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        ground = _prepare(options)
        house, doors, loop = _open_house(ground)
    except HomeTaken as taken:
        return _tell_taken(options, taken)
    except LabGpuError as error:
        return _tell_why_not(options, error)
    except sqlite3.Error as error:
        return _tell_why_not(options, unusable(database_path(options.home), error))
    except OSError as error:
        why = f"cannot start a master in {options.home}: {error.strerror or error}"
        return _tell_why_not(
            options, Broken(f"{why}; make room there, or set LAB_GPU_HOME to another folder")
        )
    try:
        loop.run()
    finally:
        _close(ground, house, doors)
    return 0


def _tell_why_not(options: Options, error: LabGpuError) -> int:
    _tell(options, {"error": str(error), "exit": error.exit_code})
    return error.exit_code


def _prepare(options: Options) -> Ground:
    os.makedirs(options.home, mode=0o700, exist_ok=True)
    engine = LocalEngine()
    lock = HomeLock(options.home, hostname(), engine.boot_id)
    exclusive = on_network(options.home)
    unix, path = listen_unix(options.home, os.getuid(), exclusive)
    listening, url = [unix], None
    if options.tcp:
        listening.append(listen_tcp(options.host, options.port))
        url = url_of(listening[1])
    database = Database(database_path(options.home), exclusive)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    token = _token(options.home)
    return Ground(options, lock, engine, listening, path, url, token, database, exclusive, (reading, writing))


def _token(home: str) -> str:
    path = token_path(home)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(token)
        return token


def _open_house(ground: Ground) -> tuple[House, DoorsProcess, Loop]:
    ledger = Ledger(ground.database)
    standing = _standing(ground, ledger)
    house = _house(ground, ledger, standing)
    doors = DoorsProcess(ground.listening, lambda: _settings(ground, house))
    _choose_policy(house, ground.options)
    doors.start()
    house.book.read(*house.observer.read_now())
    with ground.database.transaction():
        found = recover(house)
        ledger.put_meta("epoch", str(standing.epoch))
        ledger.event(house.now, "master_started", pid=standing.pid, version=standing.version)
    loop = Loop(house, doors, ground.wake[0], _timers(house))
    house.end = loop.stop
    house.read_rows = Reader(ground.database.connection).read
    house.doors_pid = lambda: doors.pid
    house.tell_doors = lambda: doors.send({"settings": _settings(ground, house)})
    callbacks, house.after_commit = house.after_commit, []
    for callback in callbacks:
        callback()
    house.observer.start()
    _listen_to_signals(ground.wake[1], loop)
    remember(ground.options)
    _announce(ground, house, found)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # a collection in the middle of a hand-off would be felt
    return house, doors, loop


def _standing(ground: Ground, ledger: Ledger) -> Standing:
    options = ground.options
    return Standing(
        home=options.home,
        host=options.host,
        hostname=hostname(),
        owner=pwd.getpwuid(os.getuid()).pw_name,
        owner_uid=os.getuid(),
        pid=os.getpid(),
        version=VERSION,
        started_at=time.time(),
        epoch=int(ledger.meta("epoch") or 0) + 1,
        socket=ground.socket_path,
        url=ground.url,
        log=log_path(options.home),
        policy_path=options.policy or ledger.meta("policy_path"),
        manual_tick=options.manual_tick,
        autostarted=options.autostarted,
        utc_offset_s=lambda now: 0.0,
        warnings=_first_warnings(ground),
    )


def _first_warnings(ground: Ground) -> list[str]:
    if not ground.exclusive:
        return []
    return [f"{ground.options.home} is on a network file system: the database is opened by this master alone"]


def _house(ground: Ground, ledger: Ledger, standing: Standing) -> House:
    wake_fd = ground.wake[1]
    claims = ClaimsDirectory()
    book = GpuBook(standing.hostname, time.time)
    house: House
    launcher = Launcher(
        ledger,
        ground.engine,
        LogNames(standing.home, standing.owner, standing.hostname),
        standing.home,
        lambda: house.policy,
    )
    house = House(
        ledger=ledger,
        projection=Projection(ledger),
        book=book,
        engine=ground.engine,
        launcher=launcher,
        observer=Observer(HostProbe(), claims, lambda: _wake(wake_fd)),
        claims=claims,
        clock=time.time,
        standing=standing,
    )
    standing.utc_offset_s = utc_offset_of(lambda: house.policy.timezone)
    house.read_policy, house.knows_zone = read_policy, knows_zone
    book.virtual_readings = _virtual_readings(standing)
    return house


def _wake(fd: int) -> None:
    try:
        os.write(fd, b"\0")
    except BlockingIOError:
        pass  # the pipe is full of wake-ups nobody has read yet: one more says nothing new


def _virtual_readings(standing: Standing) -> dict[str, dict[str, dict[str, float]]]:
    """What virtual GPUs shall read, where somebody wrote it down (readings.json)."""
    path = os.path.join(standing.home, "readings.json")
    try:
        with open(path, encoding="utf-8") as file:
            return parse_readings(file.read())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, LabGpuError) as error:
        standing.warnings.append(f"cannot use {path}: {error}")
        return {}


def _choose_policy(house: House, options: Options) -> None:
    """The file named now must be right. One remembered that went wrong is named, and the last good one stays."""
    path = house.standing.policy_path
    if path is None:
        return
    try:
        policy = parse_policy(read_policy(path), knows_zone)
        house.ledger.put_meta("policy_path", path)
        house.ledger.put_meta("policy", json.dumps(policy_to_doc(policy)))
        use_policy(house, policy)
    except LabGpuError as error:
        if options.policy:
            raise
        house.standing.warnings.append(f"{error} (the policy that was in force before is kept)")
        kept = house.ledger.meta("policy")
        if kept:
            use_policy(house, parse_policy(json.loads(kept)))


def _timers(house: House) -> Timers:
    def rule() -> KeepRule:
        return KeepRule(house.policy.log_keep_days, house.policy.log_keep_total_mib)

    def ended(since: float) -> list[Remains]:
        return [Remains(*row) for row in house.ledger.attempts.ended_since(since)]

    def now_at(attempt: int) -> Remains | None:
        found = house.ledger.attempts.remains(attempt)
        return Remains(*found) if found else None

    log_keeper = LogKeeper(
        lambda: [live.log_path for live in house.live.values()], lambda: house.policy.log_max_mib, house.warn
    )
    directories = DirectoryKeeper(ended, now_at, rule, house.warn)
    history = HistoryKeeper(house.ledger, lambda: house.policy.finished_keep_days, _remove_files(house))
    return Timers(house, log_keeper, [directories, history])


def _remove_files(house: House) -> Callable[[str, str], None]:
    def remove(log_path: str, directory: str) -> None:
        try:
            remove_files(log_path, directory)
        except OSError as error:
            house.warn(f"cannot remove {error.filename}: {error.strerror}; remove it by hand")

    return remove


def _settings(ground: Ground, house: House) -> dict[str, Any]:
    return {
        "home": ground.options.home,
        "database": ground.database.path,
        "owner_uid": house.standing.owner_uid,
        "token": ground.token,
        "url": ground.url,
        "socket": ground.socket_path,
        "version": VERSION,
        "shared_database": not ground.exclusive,
        "ports": [each.getsockname()[1] for each in ground.listening if each.family != socket.AF_UNIX],
        "policy": policy_to_doc(house.policy),
        "boot_id": house.engine.boot_id,
    }


def _listen_to_signals(wake_fd: int, loop: Loop) -> None:
    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _announce(ground: Ground, house: House, found: dict[str, int]) -> None:
    doc = {
        "pid": os.getpid(),
        "started": house.standing.started_at,
        "url": ground.url,
        "socket": ground.socket_path,
        "version": VERSION,
        "boot_id": house.engine.boot_id,
        "host": house.standing.hostname,
        "autostarted": ground.options.autostarted,
        "settings": ground.options.lasting(),
    }
    path = state_path(ground.options.home)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(doc, file)
    os.replace(path + ".new", path)
    notes = [f"{count} task(s) {what}" for what, count in found.items() if count]
    ready = {"ready": True, "log": house.standing.log, "home": ground.options.home, "notes": notes}
    _tell(ground.options, doc | ready)
    sd_notify("READY=1")


def _tell(options: Options, doc: dict[str, Any]) -> None:
    """One line to whoever started us; they may have gone."""
    if options.foreground:
        sys.stderr.write(f"lab-gpu: {_in_words(doc)}\n")
        return
    try:
        os.write(options.ready_fd, json.dumps(doc).encode() + b"\n")
        if options.ready_fd > 2:
            os.close(options.ready_fd)
    except OSError:
        pass


def _in_words(doc: dict[str, Any]) -> str:
    if "error" in doc and not doc.get("same"):
        return str(doc["error"])
    running = doc.get("running", doc)
    where = running.get("url") or f"unix:{running.get('socket')}"
    what = "a master with these settings runs already" if "running" in doc else "the master runs"
    return "; ".join([f"{what}: pid {running.get('pid')}, {where}", *doc.get("notes", ())])


def _tell_taken(options: Options, taken: HomeTaken) -> int:
    try:
        with open(state_path(options.home), encoding="utf-8") as file:
            running = dict(json.load(file) or taken.holder)
    except (OSError, ValueError, TypeError):
        running = dict(taken.holder)
    same = running.get("settings") == options.lasting()
    where = running.get("url") or running.get("socket") or options.home
    sentence = (
        f"cannot start with these settings: a master runs already (pid {running.get('pid')}, {where});"
        " `lab-gpu server restart` with them replaces it, and running tasks go on"
    )
    _tell(options, {"running": running, "same": same, "error": sentence, "exit": Refused.exit_code})
    return 0 if same else Refused.exit_code


def _close(ground: Ground, house: House, doors: DoorsProcess) -> None:
    sd_notify("STOPPING=1")
    for listening in ground.listening:
        listening.close()
    doors.close()
    house.observer.close()
    for path in (ground.socket_path, state_path(ground.options.home)):
        try:
            os.unlink(path)
        except OSError:
            pass
    _leave_runtime_dir(ground)
    ground.database.close()
    ground.lock.release()


def _leave_runtime_dir(ground: Ground) -> None:
    """A folder under /tmp that was made for the socket goes with the last socket in it."""
    folder = os.path.dirname(ground.socket_path)
    if folder == ground.options.home:
        return
    try:
        os.rmdir(folder)
    except OSError:
        pass  # another home's socket lies there

"""Runs a command here as if it had been typed: same terminal, same input; its output goes to a log as well.

The command stays in our process group, so Ctrl-C and Ctrl-Z reach it from the terminal. Where we write to a
terminal it writes to one too (a pty without post-processing), so that progress bars stay what they are.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

CHUNK_BYTES = 1 << 16
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
FORWARDED = (*FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ASKED_SOFTLY = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class Channel:
    """`source` is read here, `end` is the command's, `sink` is our own output it is passed on to."""

    source: int
    end: int
    sink: int


def run(words: Sequence[str], environ: Mapping[str, str], log: int, say: Callable[[str], object]) -> int:
    """The exit status of the command, 128+N where signal N ended it."""
    channels = _channels()
    ends = {channel.sink: channel.end for channel in channels}
    # The handlers come first: a Ctrl-C between the two must not end us and leave the command alone.
    with _signals_passed_on() as passing:
        process = subprocess.Popen(words, env=environ, stdout=ends[1], stderr=ends.get(2, ends[1]))
        passing.begin(process.pid)
        for channel in channels:
            os.close(channel.end)
        try:
            _pass_on_until_ended(process.pid, channels, log, say)
        finally:
            code = process.wait()
            passing.end()
            for channel in channels:
                os.close(channel.source)
    return code if code >= 0 else 128 - code


def _channels() -> list[Channel]:
    """One where both our outputs are the same file, so that the order of what is printed stays exact."""
    return [_channel(1)] if _same_file(1, 2) else [_channel(1), _channel(2)]


def _same_file(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _channel(sink: int) -> Channel:
    if not os.isatty(sink):
        return Channel(*os.pipe(), sink)
    source, end = os.openpty()
    modes = termios.tcgetattr(end)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(end, termios.TCSANOW, modes)
    _copy_size(sink, source)
    return Channel(source, end, sink)


def _copy_size(terminal: int, source: int) -> None:
    try:
        size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(source, termios.TIOCSWINSZ, size)
    except OSError:
        pass


def _pass_on_until_ended(pid: int, channels: list[Channel], log: int, say: Callable[[str], object]) -> None:
    """What it left running may hold the pipe open: after its end only what is there is still read."""
    copier = _Copier(log, say)
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as ready, _sizes_followed(channels):
        ready.register(ended, selectors.EVENT_READ)
        for channel in channels:
            ready.register(channel.source, selectors.EVENT_READ, channel)
        try:
            over = False
            while not over or ready.get_map():
                events = ready.select(0 if over else None)
                if over and not events:
                    return
                for key, _ in events:
                    if key.data is None:
                        over = True
                        ready.unregister(ended)
                    elif not copier.copy(key.data):
                        ready.unregister(key.data.source)
        finally:
            os.close(ended)


class _Copier:
    """A full disk or a reader that left costs its own copy, never the command."""

    def __init__(self, log: int, say: Callable[[str], object]) -> None:
        self._say = say
        self._log: int | None = log
        self._gone: set[int] = set()

    def copy(self, channel: Channel) -> bool:
        """False once nothing more can come."""
        try:
            chunk = os.read(channel.source, CHUNK_BYTES)
        except OSError:  # how a pty says that its last writer closed it
            return False
        if not chunk:
            return False
        self._to_log(chunk)
        if channel.sink not in self._gone:
            try:
                _write_all(channel.sink, chunk)
            except OSError:
                self._gone.add(channel.sink)
        return True

    def _to_log(self, chunk: bytes) -> None:
        if self._log is None:
            return
        try:
            _write_all(self._log, chunk)
        except OSError as error:
            self._log = None
            self._say(f"lab-gpu: cannot write the log any more: {error.strerror}; the command runs on")


def _write_all(sink: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(sink, chunk) :]


@contextmanager
def _sizes_followed(channels: list[Channel]) -> Iterator[None]:
    terminals = [channel for channel in channels if os.isatty(channel.sink)]

    def follow(_signum: int, _frame: FrameType | None) -> None:
        for channel in terminals:
            _copy_size(channel.sink, channel.source)

    before = signal.signal(signal.SIGWINCH, follow)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


class _Passing:
    """Passes signals on to the processes of the command; what came before it was there is kept for it."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._early: list[int] = []

    def begin(self, pid: int) -> None:
        self._pid = pid
        while self._early:
            send_to_tree(pid, self._early.pop(0))

    def end(self) -> None:
        self._pid = None

    def __call__(self, signum: int, _frame: FrameType | None) -> None:
        if self._pid is None:
            self._early.append(signum)
        elif signum not in FROM_TERMINAL or not _terminal_sends_it():
            send_to_tree(self._pid, signum)


@contextmanager
def _signals_passed_on() -> Iterator[_Passing]:
    """What is ignored (by nohup, by a shell for its background) stays ignored, here and in the command."""
    passing = _Passing()
    before = {each: signal.getsignal(each) for each in FORWARDED}
    heard = [each for each, handler in before.items() if handler != signal.SIG_IGN]
    for each in heard:
        signal.signal(each, passing)
    try:
        yield passing
    finally:
        for each in heard:
            signal.signal(each, before[each])


def _terminal_sends_it() -> bool:
    """In the foreground of a terminal Ctrl-C has reached the command already."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def send_to_tree(root: int, signum: int) -> None:
    """Soft signals go only to those that catch them; where nobody does, all are asked to end."""
    tree = [root, *_below(root)]
    if signum in ASKED_SOFTLY:
        catching = [pid for pid in tree if _catches(pid, signum)]
        tree, signum = (catching, signum) if catching else (tree, signal.SIGTERM)
    for pid in tree:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue


def _below(root: int) -> list[int]:
    """Children of children, from one look at /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(int(name))):
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [root]
    while queue:
        queue = [child for pid in queue for child in children.get(pid, ())]
        found += queue
    return found


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _catches(pid: int, signum: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (signum - 1) & 1)

"""What every command stands on: parsing with words a person understands, the way to the master, and output.

Answers go to stdout, everything said beside them to stderr.
"""

from __future__ import annotations

import argparse
import sys

from lab_gpu.core.errors import Broken, NoMaster, Refused
from lab_gpu.core.nearest import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import ModuleType
    from typing import Any, NoReturn, TypeVar

    from lab_gpu.client.transport import Api

    Json = dict[str, Any]
    Answer = TypeVar("Answer")

RETURN_OF_MASTER_S = 30.0  # how long a command that waits anyway waits for a master that restarts
FRESH_READINGS_S = 5  # a live view without news looks again after this long: GPU readings are no events


class Parser(argparse.ArgumentParser):
    """Shows examples first, knows no abbreviations, refuses in one sentence that names the nearest flag."""

    takes_rest = False

    def __init__(
        self, prog: str | None = None, summary: str = "", examples: Sequence[str] = (), **_: object
    ) -> None:
        # A width of its own keeps argparse from importing shutil for every flag that is added.
        super().__init__(
            prog,
            description=summary,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(
                prog, max_help_position=28, width=_help_width()
            ),
        )
        self.examples = tuple(examples)

    def format_help(self) -> str:
        shown = "\n".join(f"  {example}" for example in self.examples)
        return f"examples:\n{shown}\n\n{super().format_help()}" if shown else super().format_help()

    def error(self, message: str) -> NoReturn:
        raise Refused(f"cannot run '{self.prog}': {self._reason(message)}")

    def _reason(self, message: str) -> str:
        kind, _, words = message.partition(": ")
        if kind != "unrecognized arguments":
            return f"{message}; see {self.prog} -h"
        unknown = words.split()[0]
        if not unknown.startswith("-"):
            return f"'{unknown}' is one word too many; see {self.prog} -h"
        close = nearest(unknown, list(self._option_string_actions))
        advice = f"did you mean {close}?" if close else f"see {self.prog} -h"
        return f"there is no flag {unknown}; {advice}"


def parse(prog: str, module: ModuleType, words: list[str]) -> argparse.Namespace:
    parser = Parser(prog, module.SUMMARY, module.EXAMPLES)
    module.arguments(parser)
    return parse_words(parser, words)


def parse_words(parser: Parser, words: list[str]) -> argparse.Namespace:
    rest: list[str] | None = None
    if parser.takes_rest and "--" in words:
        cut = words.index("--")
        words, rest = words[:cut], words[cut + 1 :]
    args = parser.parse_args(words)
    args.rest = rest
    return args


def add_master_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="HOST", help="the master: a host, host:port, URL or unix:PATH")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_watch_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="draw it again whenever something happens")


def add_ids(parser: argparse.ArgumentParser, what: str = "tasks", nargs: str = "+") -> None:
    words = f"{what}: 12, 3-7, 4,5; @ is your last task, @~1 the one before"
    completes(parser.add_argument("ids", nargs=nargs, metavar="ID", help=words), "task_ids")


def add_command(parser: argparse.ArgumentParser) -> None:
    """The command as one quoted string, or everything after `--`: `args.command` and `args.rest`."""
    words = "one quoted string, or a script (.sh, .py); or everything after --"
    completes(parser.add_argument("command", nargs="*", metavar="COMMAND", help=words), "files")
    if isinstance(parser, Parser):
        parser.takes_rest = True


def completes(action: argparse.Action, kind: str) -> None:
    """What the completion offers for a flag: task_ids, nodes, queues, files or dirs."""
    vars(action)["complete"] = kind


def command_text(args: argparse.Namespace) -> str:
    """The command. Words without quotes are refused: a flag among them could be the command's or ours."""
    command: list[str] = args.command
    if args.rest:
        if command:
            raise Refused(f"cannot take both '{command[0]}' and what follows --: write the command once")
        return _shell_text(args.rest)
    if not command or not command[0].strip():
        raise Refused("cannot run nothing: no command is given; write it in quotes or after --")
    if len(command) > 1:
        raise Refused(
            f"cannot tell where '{command[0]} …' ends: it has {len(command)} words; "
            f"put it in quotes or after --: -- {_shell_text(command)}"
        )
    return command[0]


def _shell_text(words: list[str]) -> str:
    from shlex import join

    return join(words)


def whole_number(flag: str, least: int = 0, most: int | None = None) -> Callable[[object], int]:
    """A reader for a flag that takes a count."""

    def read(value: object) -> int:
        word = str(value).strip()
        digits = word.removeprefix("-")
        if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
            raise Refused(
                f"cannot read {flag} '{word}': it is not a whole number; write it like {flag} {least + 1}"
            )
        number = int(word)
        if number < least or (most is not None and number > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise Refused(f"cannot use {flag} {word}: it must be {bounds}; correct it")
        return number

    return read


def master(args: argparse.Namespace, start: bool = False) -> Api:
    """The way to the master: --host, LAB_GPU_HOST, the config's host, this user's own, the machine's.

    With `start`, a private master is started where none is reachable and none is named.
    """
    from lab_gpu.cli.config import setting
    from lab_gpu.client.transport import connect

    return connect(getattr(args, "host", None) or setting("host"), start=start, say=say)


def task_ids(words: Iterable[str], api: Api) -> list[int]:
    """The ids a person named: ranges, lists, and `@` for the last task."""
    from lab_gpu.cli.ids import resolve

    return resolve(words, api)


def patiently(ask: Callable[[], Answer], limit_s: float = RETURN_OF_MASTER_S) -> Answer:
    """Asks again while the master restarts. Only for questions that a command waits on anyway."""
    try:
        return ask()
    except (NoMaster, Broken):
        return _ask_again(ask, limit_s)


def _ask_again(ask: Callable[[], Answer], limit_s: float) -> Answer:
    from time import monotonic, sleep

    give_up_at, pause_s = monotonic() + limit_s, 0.05
    while True:
        sleep(pause_s)
        try:
            return ask()
        except (NoMaster, Broken):
            if monotonic() > give_up_at:
                raise
        pause_s = min(pause_s * 1.5, 1.0)


def news(api: Api) -> Iterator[None]:
    """Once at first, then whenever something happened at the master."""
    last = patiently(lambda: api.get("/api/v1/events"))["last"]
    while True:
        yield
        query = {"after": last, "timeout_s": FRESH_READINGS_S, "limit": 500}
        last = patiently(lambda: api.get("/api/v1/events", query, timeout_s=FRESH_READINGS_S + 10))["last"]  # noqa: B023


def watch(
    args: argparse.Namespace, api: Api, fetch: Callable[[], Json], draw: Callable[[Json], list[str]]
) -> int:
    """Prints what `fetch` gives, drawn; with --watch again at every event until Ctrl-C."""
    if not args.watch:
        show(args, fetch(), draw)
        return 0
    from lab_gpu.cli.screen import redraw

    try:
        for _ in news(api):
            document = patiently(fetch)
            if args.json:
                print_json(document, lines=True)
                sys.stdout.flush()
            else:
                redraw(draw(document))
    except KeyboardInterrupt:
        return 0
    return 0


def watch_tasks(args: argparse.Namespace, part: str, draw: Callable[[Any], list[str]]) -> int:
    """The same for that part of each task that was named; one alone is told as itself, not as a list."""
    api = master(args)
    ids = task_ids(args.ids, api)

    def fetch() -> Any:
        found = [api.get(f"/api/v1/tasks/{number}{part}") for number in ids]
        return found[0] if len(found) == 1 else found

    return watch(args, api, fetch, draw)


def show(args: argparse.Namespace, document: Any, draw: Callable[[Any], list[str]]) -> None:
    if args.json:
        print_json(document)
    else:
        for line in draw(document):
            out(line)


def out(text: str) -> None:
    print(text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_json(document: object, lines: bool = False) -> None:
    """Indented where a person looks; in one line for a program, and always for a stream of documents."""
    from json import dumps

    unicode_out = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    indent = 2 if not lines and sys.stdout is not None and sys.stdout.isatty() else None
    print(dumps(document, ensure_ascii=not unicode_out, indent=indent))


def _help_width() -> int:
    if not sys.stdout or not sys.stdout.isatty():
        return 100
    from lab_gpu.cli.screen import width

    return min(width() or 100, 110)

"""`lab-gpu`: finds the named command in a static table and imports only its module.

Before a command is known nothing but `sys` is imported: a cold start is part of the product.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import ModuleType

    from lab_gpu.core.errors import LabGpuError

PROGRAM = "lab-gpu"
# Name -> what it does in one line. The module of `server start` is lab_gpu.cli.commands.server_start.
SECTIONS: dict[str, dict[str, str]] = {
    "run work": {
        "submit": "put one command, or an array of them, into the queue",
        "submit-batch": "put a file of tasks into the queue, all or none",
        "run": "submit, follow the log, end with the task's exit code",
    },
    "look": {
        "status": "GPUs and open tasks on one screen",
        "tui": "the same on the whole terminal, kept up to date",
        "list": "tasks, by state, owner, queue, name or batch",
        "show": "everything about a task and its attempts",
        "why": "what a task waits for, and what would let it start",
        "logs": "what a task printed",
        "wait": "wait until tasks have ended",
    },
    "steer": {
        "cancel": "stop tasks, or take them out of the queue",
        "retry": "queue ended tasks again",
        "hold": "keep waiting tasks from starting",
        "release": "let held tasks start",
        "top": "move tasks to the head of the queue; alone: the live view",
        "edit": "change priority, limits or needs of a waiting task",
    },
    "the master and its machines": {
        "server start": "start the master",
        "server stop": "stop the master; running tasks go on",
        "server restart": "stop and start the master; running tasks go on",
        "server status": "is a master running, and where",
        "server tick": "run one planning pass now and say what it decided",
        "server add-node": "declare a node, or name and limit this one",
        "server remove-node": "forget a node",
        "server drain": "start nothing new on a node or GPU",
        "server undrain": "open a node or GPU again",
        "server preempt": "stop a running task gracefully and queue it again",
        "agent run": "run a command here and count it as an attempt of a task",
    },
    "settings": {
        "policy show": "the policy in force",
        "policy check": "check a policy file without loading it",
        "policy reload": "load the policy file again",
        "config show": "the settings of this command line and where they come from",
        "config set": "change a setting of yours",
        "service install": "let systemd keep the master running",
        "service uninstall": "take the systemd unit away",
        "doctor": "check this machine and say what to do",
        "completion": "print the completion script of a shell",
    },
}
COMMANDS: dict[str, str] = {name: text for section in SECTIONS.values() for name, text in section.items()}
GROUPS = frozenset(name.split()[0] for name in COMMANDS if " " in name)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    _survive_odd_text()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_left()
    except KeyboardInterrupt:
        return 130
    except Exception as problem:
        from lab_gpu.core.errors import LabGpuError

        if isinstance(problem, OSError) and not isinstance(problem, LabGpuError):
            problem = _worded(problem)
        if not isinstance(problem, LabGpuError):
            raise
        try:
            return _tell(problem, words)
        except OSError:
            return _reader_left(problem.exit_code)


def command_parser(name: str) -> argparse.ArgumentParser:
    """The one definition of a command's arguments: for parsing, help and completion."""
    from lab_gpu.cli.frame import Parser

    module = _module(name)
    parser = Parser(f"{PROGRAM} {name}", module.SUMMARY, module.EXAMPLES)
    module.arguments(parser)
    return parser


def build_parser(all: bool = True) -> argparse.ArgumentParser:
    """The whole command line as one parser; without `all` only the names of the commands."""
    from lab_gpu.cli.frame import Parser

    top = Parser(PROGRAM, "One queue for every GPU in the lab.", ())
    top.add_argument("--version", action="store_true", help="print the version")
    branches = top.add_subparsers(dest="command", metavar="COMMAND")
    groups = {}
    for name, summary in COMMANDS.items():
        first, _, second = name.partition(" ")
        if second and first not in groups:
            group = branches.add_parser(first, help=group_summary(first))
            groups[first] = group.add_subparsers(dest="verb", metavar="VERB")
        branch = (groups[first] if second else branches).add_parser(second or first, help=summary)
        if all:
            _module(name).arguments(branch)
    return top


def group_summary(group: str) -> str:
    return "|".join(name.split()[1] for name in COMMANDS if name.startswith(f"{group} "))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        return _help(words[1:])
    if words[0] in ("-V", "--version"):
        return _print_version()
    name, rest = _named(words)
    if name not in COMMANDS:
        return _help([name])
    from lab_gpu.cli.frame import parse

    module = _module(name)
    return int(module.run(parse(f"{PROGRAM} {name}", module, rest)))


def _named(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, or that of a group whose help is wanted, and what follows it."""
    first = words[0]
    if first in COMMANDS:
        return first, words[1:]
    if first not in GROUPS:
        raise _unknown(first, [name for name in COMMANDS if " " not in name] + sorted(GROUPS), "")
    if len(words) == 1 or words[1] in ("-h", "--help"):
        return first, []
    name = f"{first} {words[1]}"
    if name not in COMMANDS:
        raise _unknown(words[1], group_summary(first).split("|"), f"{first} ")
    return name, words[2:]


def _module(name: str) -> ModuleType:
    from importlib import import_module

    return import_module("lab_gpu.cli.commands." + name.replace(" ", "_").replace("-", "_"))


def _unknown(word: str, known: list[str], before: str) -> LabGpuError:
    from lab_gpu.core.errors import Refused
    from lab_gpu.core.nearest import nearest

    close = nearest(word, known)
    advice = f"did you mean {PROGRAM} {before}{close}?" if close else f"see {PROGRAM} --help"
    kind = "flag" if word.startswith("-") else "command"
    return Refused(f"cannot run '{PROGRAM} {before}{word}': there is no such {kind}; {advice}")


def _help(words: list[str]) -> int:
    if not words:
        print(_short_help())
        return 0
    name, _ = _named(words)
    if name in COMMANDS:
        print(command_parser(name).format_help(), end="")
        return 0
    wanted = {known: text for known, text in COMMANDS.items() if known.startswith(f"{name} ")}
    print(f"usage: {PROGRAM} {name} {'|'.join(known.split()[1] for known in wanted)} …\n")
    print(_lines(wanted))
    return 0


def _short_help() -> str:
    examples = ('lab-gpu submit --mem 10G "python train.py"', "lab-gpu status", "lab-gpu logs -f 1")
    parts = ["One queue for every GPU in the lab.\n", *(f"  {line}" for line in examples), ""]
    for title, commands in SECTIONS.items():
        parts += [f"{title}:", _lines(commands), ""]
    parts.append(f"{PROGRAM} COMMAND -h shows examples and flags; {PROGRAM} --version the version.")
    return "\n".join(parts)


def _lines(commands: dict[str, str]) -> str:
    return "\n".join(f"  {name:20}{text}" for name, text in commands.items())


def _print_version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"{PROGRAM} {version('lab-gpu')}")
    except PackageNotFoundError:
        print(f"{PROGRAM} (run from its source tree, not installed)")
    return 0


def _tell(problem: LabGpuError, words: list[str]) -> int:
    """The error as words for a person on stderr, and as a document on stdout for a program."""
    print(f"{PROGRAM}: {problem}", file=sys.stderr)
    for line in problem.problems:
        if line not in str(problem):  # a single mistake often is the sentence itself
            print(f"  {line}", file=sys.stderr)
    flags = words[: words.index("--")] if "--" in words else words
    if "--json" in flags:
        from lab_gpu.cli.frame import print_json

        print_json({"error": str(problem), "slug": problem.slug, "problems": list(problem.problems)})
    sys.stdout.flush()
    return problem.exit_code


def _survive_odd_text() -> None:
    """A locale without Unicode, a name that is no text, or a closed stdout must not stop a command."""
    if sys.stdout is None:
        sys.stdout = open("/dev/null", "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _worded(problem: OSError) -> LabGpuError:
    """What the system refused, where no command foresaw it: most often the disk that takes our own output."""
    from errno import EDQUOT, ENOSPC

    from lab_gpu.core.errors import Broken

    why = problem.strerror or str(problem)
    if problem.errno in (ENOSPC, EDQUOT):
        return Broken(f"cannot write the answer: {why}; make room and ask again")
    return Broken(
        f"cannot go on: {why}{f' ({problem.filename})' if problem.filename else ''}; see lab-gpu doctor"
    )


def _reader_left(code: int = 141) -> int:
    """`lab-gpu list | head`: ends quietly as programs killed by SIGPIPE do, with nothing left to flush."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Scripts as tasks: how a script is run, and the `#LAB` lines at its head, which are flags."""

from __future__ import annotations

import os
from shlex import join, split

from lab_gpu.cli.frame import Parser, parse_words, say
from lab_gpu.cli.task_flags import add_task_flags, given
from lab_gpu.core.errors import LabGpuError, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab_gpu.cli.task_flags import Body

MARK = "#LAB"
SHELL_ENDINGS, PYTHON_ENDING = (".sh", ".bash"), ".py"
LARGEST_SCRIPT = 1 << 20


class Script:
    """A file that holds a program for an interpreter."""

    def __init__(self, path: str, lines: list[str]) -> None:
        self.path = path
        self.lines = lines

    def command(self, elsewhere: bool, arguments: Sequence[str] = ()) -> str:
        """How it is run. Where the task runs `elsewhere`, its path must hold there too."""
        return join([*self._program(elsewhere), *arguments])

    def _program(self, elsewhere: bool) -> list[str]:
        path = os.path.abspath(self.path) if elsewhere else self.path
        first = self.lines[0] if self.lines else ""
        if self.path.endswith(PYTHON_ENDING):
            return [python_name(), path]
        if not first.startswith("#!"):
            return ["bash", path]
        if os.access(self.path, os.X_OK):
            return [path if "/" in path else f"./{path}"]
        return [*first[2:].split(), path]

    def flags(self) -> Body:
        """What its #LAB lines say."""
        parser = Parser(MARK)
        add_task_flags(parser)
        said: Body = {}
        for number, words in self._directives():
            try:
                said = {**said, **_joined(said, given(parse_words(parser, words)))}
            except LabGpuError as problem:
                raise Refused(f"cannot read {self.path}:{number}: {problem}") from None
        return said

    def _directives(self) -> list[tuple[int, list[str]]]:
        found, late = [], None
        begun = False
        for number, line in enumerate(self.lines, 1):
            is_mark = line == MARK or line.startswith((f"{MARK} ", f"{MARK}\t"))
            if is_mark and not begun:
                found.append((number, self._words(number, line)))
            elif is_mark:
                late = late or number
            begun = begun or bool(line.strip() and not line.startswith("#"))
        if late:
            say(f"lab-gpu: {self.path}:{late} is not read: {MARK} lines stand above the first command")
        return found

    def _words(self, number: int, line: str) -> list[str]:
        try:
            return split(line[len(MARK) :], comments=True)
        except ValueError as problem:
            raise Refused(f"cannot read {self.path}:{number}: {problem}; close the quotes") from None


def _joined(before: Body, now: Body) -> Body:
    """Variables of several lines add up."""
    if "setenv" in before and "setenv" in now:
        return {**now, "setenv": {**before["setenv"], **now["setenv"]}}
    return now


def script_at(word: str) -> Script | None:
    """The script a word names: by its ending, or by `#!` together with #LAB lines."""
    named = word.endswith((*SHELL_ENDINGS, PYTHON_ENDING))
    if not os.path.isfile(word):
        if named and not any(char.isspace() for char in word):
            raise Refused(f"cannot submit {word}: there is no such file here; check the path")
        return None
    with open(word, "rb") as file:
        head = file.read(LARGEST_SCRIPT)
    if not named and not (head.startswith(b"#!") and f"\n{MARK} ".encode() in head):
        return None
    return Script(word, head.decode("utf-8", "replace").splitlines())


def python_name() -> str:
    """`python` is what an activated environment offers; some systems outside of one only know python3."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [
        name for name in ("python", "python3") if any(os.access(f"{at}/{name}", os.X_OK) for at in folders)
    ]
    return found[0] if found else "python"

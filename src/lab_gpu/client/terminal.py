"""What a terminal would show of a stream with progress bars: returns, backspaces, cursor codes carried out.

Colours are kept where asked for; clearing the whole screen is not done, because a log is read from the top.
"""

from __future__ import annotations

import re

DEPTH = 40  # rows above the last that cursor codes may still change: bars stand below each other
LONGEST_LINE = 1 << 20

_TOKEN = re.compile(
    r"\x1b\[([0-9;:?<=>]*)([@-~])"  # a control sequence
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a window title and its like
    r"|\x1b[ -/]*[0-~]"
    r"|[\r\b\n]"
    r"|[^\x1b\r\b\n]+"
    r"|\x1b"
)
_CONTROL = re.compile(r"[\x1b\r\b]")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:?<=>]*|\][^\x07\x1b]{0,256}\x1b?|[ -/]*)?\Z")

Cell = tuple[str, str]  # the colour codes in force, and the character


def settle(text: str, colour: bool = True) -> str:
    """The text as it stands on a terminal once all of it has been printed."""
    screen = Screen(colour)
    return screen.feed(text) + screen.close()


class Screen:
    """`feed` gives the lines that can no longer change, `close` those that still could."""

    def __init__(self, colour: bool = True, depth: int = DEPTH) -> None:
        self._colour = colour
        self._depth = depth
        self._rows: list[str | list[Cell]] = [""]
        self._row = 0
        self._column = 0
        self._style = ""
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        unfinished = _UNFINISHED.search(text, max(0, len(text) - 512))
        self._held = unfinished[0] if unfinished else ""
        if unfinished:
            text = text[: unfinished.start()]
        done: list[str] = []
        start = 0
        while start < len(text):
            end = text.find("\n", start) + 1 or len(text)
            self._take(text[start:end])
            self._scroll(done)
            start = end
        return "".join(done)

    def close(self) -> str:
        text = "\n".join(self._rendered(row) for row in self._rows)
        self._rows, self._row, self._column, self._held = [""], 0, 0, ""
        return text

    def _take(self, piece: str) -> None:
        plain = piece[:-2] + "\n" if piece.endswith("\r\n") else piece
        fresh = self._row == len(self._rows) - 1 and not self._rows[-1] and not self._style
        if fresh and plain.endswith("\n") and not _CONTROL.search(plain):
            self._rows[-1] = plain[:-1]
            self._new_line()
            return
        for token in _TOKEN.finditer(piece):
            self._carry_out(token)

    def _carry_out(self, token: re.Match[str]) -> None:
        text = token[0]
        if text == "\n":
            self._new_line()
        elif text == "\r":
            self._column = 0
        elif text == "\b":
            self._column = max(0, self._column - 1)
        elif token[2]:
            self._control(token[1], token[2])
        elif text[0] != "\x1b":
            self._print(text)

    def _print(self, text: str) -> None:
        cells = self._cells()
        gap = self._column - len(cells)
        cells += [("", " ")] * gap
        cells[self._column : self._column + len(text)] = [(self._style, sign) for sign in text]
        self._column += len(text)
        if self._column > LONGEST_LINE:
            self._new_line()

    def _cells(self) -> list[Cell]:
        row = self._rows[self._row]
        if isinstance(row, str):
            row = self._rows[self._row] = [("", sign) for sign in row]
        return row

    def _new_line(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append("")

    def _scroll(self, done: list[str]) -> None:
        while len(self._rows) > self._depth and self._row > 0:
            done.append(self._rendered(self._rows.pop(0)) + "\n")
            self._row -= 1

    def _control(self, parameters: str, letter: str) -> None:
        if letter == "m":
            self._style = _style_after(self._style, parameters) if self._colour else ""
            return
        if not (parameters.isdigit() or not parameters):
            return  # private modes: the cursor hidden, the mouse on
        count = int(parameters or 0)
        if letter == "K":
            self._erase_in_line(count)
        elif letter == "J" and count == 0:
            self._erase_in_line(0)
            del self._rows[self._row + 1 :]
        else:
            self._move(letter, max(1, count))

    def _erase_in_line(self, which: int) -> None:
        cells = self._cells()
        if which == 0:
            del cells[self._column :]
        elif which == 1:
            cells[: self._column + 1] = [("", " ")] * min(len(cells), self._column + 1)
        else:
            cells.clear()

    def _move(self, letter: str, count: int) -> None:
        if letter in "AF":
            self._row = max(0, self._row - count)
        elif letter in "BE":
            self._row = min(len(self._rows) - 1, self._row + count)
        elif letter == "C":
            self._column = min(self._column + count, 4096)
        elif letter == "D":
            self._column = max(0, self._column - count)
        elif letter == "G":
            self._column = min(count - 1, 4096)
        if letter in "EF":
            self._column = 0

    def _rendered(self, row: str | list[Cell]) -> str:
        if isinstance(row, str):
            return row
        while row and row[-1][1] == " ":
            row.pop()
        parts, before = [], ""
        for style, sign in row:
            if style != before:
                parts.append(("\x1b[0m" if before else "") + style)
                before = style
            parts.append(sign)
        return "".join(parts) + ("\x1b[0m" if before else "")


def _style_after(style: str, parameters: str) -> str:
    if parameters in ("", "0"):
        return ""
    code = f"\x1b[{parameters}m"
    if parameters.startswith("0;"):
        return code
    return style if style.endswith(code) else (style + code)[-256:]

"""Tasks in JSON or JSONL, walked value by value with the standard decoder so that each has its line."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from json import JSONDecodeError, JSONDecoder

from lab_gpu.cli.batch_file import Entry, Problems

SPACE = " \t\r\n"
Walk = Generator[Entry, None, int]  # gives tasks, returns where the text goes on


class JsonText:
    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.problems = problems
        self._decode = JSONDecoder().raw_decode
        self._counted_to, self._line = 0, 1

    def entries(self) -> Iterator[Entry]:
        """A list, an object with `tasks`, or one object after another (JSONL)."""
        try:
            at = self._skip(0)
            first = self.text[at : at + 1]
            keys, end = self._first_keys(at) if first == "{" else ({}, at)
            if first == "[":
                self._expect_end((yield from self._list(at)))
            elif "tasks" in keys:
                yield from self._document(keys)
                self._expect_end(end)
            else:
                yield from self._one_by_one(at)
        except JSONDecodeError as error:
            self.problems.add(error.lineno, f"this is not JSON: {error.msg}")

    def _first_keys(self, at: int) -> tuple[dict[str, int], int]:
        """A broken first line of JSONL is told with the others; a broken document ends the walk."""
        try:
            return self._keys(at)
        except JSONDecodeError:
            if '"tasks"' in self.text[at : self._next_object(at)]:
                raise
            return {}, at

    def _one_by_one(self, at: int) -> Iterator[Entry]:
        """JSONL: a broken line hides none of those that follow."""
        while at < len(self.text):
            try:
                at = self._skip((yield from self._element(at)))
            except JSONDecodeError as error:
                at = self._past(at, error)

    def _past(self, at: int, error: JSONDecodeError) -> int:
        """Where the next line, or after an object the next one, begins. A mistake is told where its text ends."""
        line_end = self.text.find("\n", at)
        following = len(self.text) if line_end < 0 else self._skip(line_end)
        following = self._next_object(at) if self.text[at] == "{" else following
        last = len(self.text[:following].rstrip(SPACE)) - 1
        self.problems.torn = True
        self.problems.add(self._line_at(min(error.pos, last)), f"this is not JSON: {error.msg}")
        return following

    def _next_object(self, at: int) -> int:
        place = self.text.find("\n{", at)
        return len(self.text) if place < 0 else place + 1

    def _document(self, keys: dict[str, int]) -> Iterator[Entry]:
        for key, place in keys.items():
            if key != "tasks":
                line = self.text.count("\n", 0, place) + 1
                self.problems.add(line, f"there is no field '{key}' beside tasks")
        place = keys["tasks"]
        if self.text[place] == "[":
            yield from self._list(place)
        else:
            self.problems.add(self._line_at(place), "tasks must be a list")

    def _list(self, at: int) -> Walk:
        at = self._skip(at + 1)
        while self.text[at : at + 1] != "]":
            at = self._skip((yield from self._element(at)))
            at = self._after_comma(at, "]")
        return at + 1

    def _element(self, at: int) -> Walk:
        said, end = self._decode(self.text, at)
        line = self._line_at(at)
        yield Entry(said, line, lambda key: self._line_of(at, key, line))
        return end

    def _expect_end(self, at: int) -> None:
        at = self._skip(at)
        if at < len(self.text):
            self.problems.add(
                self._line_at(at), "something follows the end of the tasks; one document is read"
            )

    def _line_at(self, at: int) -> int:
        """Lines are counted onwards, so that a long file is counted once."""
        self._line += self.text.count("\n", self._counted_to, at)
        self._counted_to = at
        return self._line

    def _line_of(self, at: int, key: str, line: int) -> int:
        return line + self.text.count("\n", at, self._keys(at)[0].get(key, at))

    def _keys(self, at: int) -> tuple[dict[str, int], int]:
        """The keys of the object at this place and where their values begin; and where the object ends."""
        keys: dict[str, int] = {}
        at = self._skip(at + 1)
        while self.text[at : at + 1] != "}":
            key, at = self._decode(self.text, at)
            at = self._skip(at)
            if self.text[at : at + 1] != ":" or not isinstance(key, str):
                raise JSONDecodeError("Expecting a name and ':'", self.text, at)
            at = keys[key] = self._skip(at + 1)
            at = self._skip(self._decode(self.text, at)[1])
            at = self._after_comma(at, "}")
        return keys, at + 1

    def _after_comma(self, at: int, close: str) -> int:
        if self.text[at : at + 1] == close:
            return at
        if self.text[at : at + 1] != ",":
            raise JSONDecodeError("Expecting ',' delimiter", self.text, at)
        following = self._skip(at + 1)
        if self.text[following : following + 1] == close:
            raise JSONDecodeError(f"Illegal ',' before '{close}'", self.text, at)
        return following

    def _skip(self, at: int) -> int:
        while self.text[at : at + 1] and self.text[at] in SPACE:
            at += 1
        return at

"""How the parts of a log are written down: untouched, settled into lines, or passed on to a terminal."""

from __future__ import annotations

from codecs import getincrementaldecoder

from lab_gpu.client.log_parts import Cut, Gone, Heading, Live
from lab_gpu.client.terminal import Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from lab_gpu.client.log_parts import Part

    class Paper(Protocol):
        def take(self, part: Part) -> None: ...

        def close(self) -> None: ...


def paper_for(write: Callable[[bytes], object], raw: bool, tty: bool, follow: bool) -> Paper:
    return RawPaper(write) if raw else SettledPaper(write, tty, follow)


class RawPaper:
    """The bytes and nothing else."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def take(self, part: Part) -> None:
        if isinstance(part, bytes):
            self._write(part)

    def close(self) -> None:
        pass


class SettledPaper:
    """Lines as a terminal would leave them. On a terminal, what is live goes through as it comes."""

    def __init__(self, write: Callable[[bytes], object], tty: bool, follow: bool) -> None:
        self._write = write
        self._tty = tty
        # Into a pipe, a follower is owed each line when it ends; cursor codes come too late for those.
        self._depth = 1 if follow and not tty else None
        self._screen = self._new_screen()
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._passing = False
        self._line_open = False
        self._zeros = b""
        self._cut_size = 0

    def take(self, part: Part) -> None:
        if isinstance(part, bytes):
            self._content(part)
            return
        if isinstance(part, Cut):
            self._cut_size += len(self._zeros) + part.size
            self._zeros = b""
            return
        self._settle_zeros()
        if isinstance(part, Heading):
            rule = "────" if self._tty else "----"
            self._line(f"{rule} attempt {part.number} {rule}")
        elif isinstance(part, Gone):
            self._line(f"[the log of attempt {part.number} is no longer there]")
        elif self._tty and isinstance(part, Live):
            self._settle_rest()
            self._passing = True

    def close(self) -> None:
        self._settle_zeros()
        self._settle_rest()

    def _content(self, content: bytes) -> None:
        """Holes begin and end at pages of the file: the zeros left beside them are a part of the hole."""
        if self._cut_size:
            kept = content.lstrip(b"\0")
            self._cut_size += len(content) - len(kept)
            content = kept
            if not content:
                return
            self._settle_zeros()
        content = self._zeros + content
        kept = content.rstrip(b"\0")
        self._zeros = content[len(kept) :]
        self._show(kept)

    def _settle_zeros(self) -> None:
        """There comes no hole after these zeros, or nothing more of the hole."""
        zeros, self._zeros = self._zeros, b""
        self._show(zeros)
        if self._cut_size:
            dots = "…" if self._tty else "..."
            self._line(f"[{dots} {_amount(self._cut_size)} cut from the middle {dots}]")
            self._cut_size = 0

    def _show(self, content: bytes) -> None:
        if self._passing:
            self._put(content)
        else:
            self._put(self._screen.feed(self._decoder.decode(content)).encode())

    def _line(self, text: str) -> None:
        self._settle_rest()
        lead = "\n" if self._line_open else ""
        self._put(f"{lead}{text}\n".encode())

    def _settle_rest(self) -> None:
        self._put((self._screen.feed(self._decoder.decode(b"", final=True)) + self._screen.close()).encode())
        self._screen = self._new_screen()

    def _new_screen(self) -> Screen:
        return Screen(self._tty) if self._depth is None else Screen(self._tty, self._depth)

    def _put(self, content: bytes) -> None:
        if content:
            self._write(content)
            self._line_open = not content.endswith(b"\n")


def _amount(size: int) -> str:
    from lab_gpu.core.units import format_mib

    return format_mib(size / (1 << 20)) if size >= 1 << 20 else f"{-(-size // 1024)} KiB"

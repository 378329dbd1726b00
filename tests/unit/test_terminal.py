"""What a terminal would show of text with progress bars."""

import pytest

from lab_gpu.client.terminal import Screen, settle


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("", ""),
        ("one\ntwo", "one\ntwo"),
        ("one\n\n\ntwo\n\n", "one\n\n\ntwo\n\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("10%\r 20%\r100%\ndone\n", "100%\ndone\n"),
        ("a long line\rshort\x1b[K\n", "short\n"),
        ("rubbed out\x1b[2K\rnew\n", "new\n"),
        ("left\r\x1b[1Kx", "xeft"),
        ("ab\b\bx", "xb"),
        ("spin |\b/\b-\n", "spin -\n"),
        ("one 1%\ntwo 1%\x1b[A\rone 9%\ntwo 9%\n", "one 9%\ntwo 9%\n"),
        ("kept\nold\nolder\x1b[2A\r\x1b[Jnew\n", "new\n"),
        ("\x1b]0;a title\x07text\n", "text\n"),
        ("\x1b[?25lhidden cursor\x1b[?25h\n", "hidden cursor\n"),
        ("ab\x1b[3Dx\x1b[5Cy\n", "xb    y\n"),
        ("12345\x1b[3Gx\n", "12x45\n"),
        ("进度 10%\r进度 99%\n", "进度 99%\n"),
    ],
)
def test_codes_are_carried_out(printed: str, shown: str) -> None:
    assert settle(printed) == shown


def test_colours_stay_for_a_terminal_and_go_for_a_pipe() -> None:
    printed = "\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[m\n"
    assert settle(printed) == "\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[0m\n"
    assert settle(printed, colour=False) == "red and green\n"


def test_the_colour_of_what_was_overwritten_goes_with_it() -> None:
    assert settle("\x1b[31mbad\x1b[0m\rok \n") == "ok\n"


def test_codes_may_be_torn_between_two_pieces() -> None:
    printed = "10%\r\x1b[32m20%\x1b[0m\x1b[K\nend\x1b]0;title\x07\n"
    for cut in range(len(printed)):
        screen = Screen()
        pieces = screen.feed(printed[:cut]) + screen.feed(printed[cut:]) + screen.close()
        assert pieces == "\x1b[32m20%\x1b[0m\nend\n", cut


def test_a_line_that_can_no_longer_change_is_given_at_once() -> None:
    screen = Screen(depth=1)
    assert screen.feed("one\ntwo") == "one\n"
    assert screen.feed("!\rTWO\n") == "TWO!\n"
    assert screen.close() == ""


def test_a_bar_without_line_ends_does_not_grow_for_ever() -> None:
    screen = Screen()
    given = screen.feed("x" * 3_000_000) + screen.close()
    assert given.replace("\n", "") == "x" * 3_000_000

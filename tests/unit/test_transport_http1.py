"""Answers put together from bytes, however they are torn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.client.http1 import AnswerReader, HalfAnswer, NotHttp, question, target

LENGTH = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n" + b'{"a": "b\n"}'
)
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n{"a"\r\n7\r\n: "b\n"}\r\n0\r\n\r\n'
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
TO_THE_END = b'HTTP/1.0 200 OK\r\n\r\n{"a": "b\n"}'


@given(
    whole=st.sampled_from([LENGTH, CHUNKED, INTERIM, TO_THE_END]),
    cuts=st.lists(st.integers(1, 120), max_size=6),
)
def test_the_same_answer_however_it_is_torn(whole: bytes, cuts: list[int]) -> None:
    reader, at = AnswerReader(), 0
    for cut in sorted({*cuts, len(whole)}):
        if whole[at:cut]:
            reader.feed(whole[at:cut])
        at = cut
    answer = reader.answer or reader.feed(b"")
    assert answer is not None
    assert answer.body == b'{"a": "b\n"}'
    assert answer.status in (200, 201)


@pytest.mark.parametrize("whole", [LENGTH, CHUNKED])
def test_half_an_answer_is_none(whole: bytes) -> None:
    for cut in range(len(whole) - 5):
        reader = AnswerReader()
        if whole[:cut]:
            assert reader.feed(whole[:cut]) is None
        with pytest.raises(HalfAnswer):
            reader.feed(b"")


def test_an_answer_without_content() -> None:
    answer = AnswerReader().feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert answer is not None and answer.body == b""


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 what\r\n\r\n", b"HTTP/1.1\r\n\r\n"]
)
def test_another_protocol_is_told_from_ours(greeting: bytes) -> None:
    with pytest.raises(NotHttp):
        AnswerReader().feed(greeting)


def test_a_question_says_how_long_it_is() -> None:
    sent = question("POST", "/x", {"Host": "h"}, {"name": "进"})
    head, _, body = sent.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b"Content-Length" not in question("GET", "/x", {"Host": "h"})
    assert b"Content-Length: 0" in question("DELETE", "/x", {"Host": "h"})


def test_a_query_is_quoted_and_leaves_out_what_is_none() -> None:
    assert (
        target("/t", {"text": "a b&c=进", "n": 3, "all": True, "not": None})
        == "/t?text=a%20b%26c%3D%E8%BF%9B&n=3&all=true"
    )
    assert target("/t", None) == target("/t", {}) == "/t"

"""Frames survive being cut anywhere, and the doors' end of the link finds each answer's question."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.core.errors import Broken, NotFound, Refused
from lab_gpu.daemon.frames import BadFrame, Decoder, encode, fault_doc
from lab_gpu.daemon.link import Link
from lab_gpu.wire.inside import Caller, Settings

ANN = Caller(1000, "ann", 12, "unix")
DOCS = st.lists(
    st.dictionaries(st.text(max_size=3), st.text(max_size=8) | st.integers(), max_size=3), max_size=5
)


@given(DOCS, st.lists(st.integers(1, 30), max_size=20))
def test_frames_survive_being_cut_anywhere(docs: list[dict[str, Any]], cuts: list[int]) -> None:
    raw, decoder, found = b"".join(map(encode, docs)), Decoder(), []
    for cut in cuts:
        found += decoder.feed(raw[:cut])
        raw = raw[cut:]
    assert found + decoder.feed(raw) == docs


def test_bytes_that_are_no_utf_8_come_through() -> None:
    assert Decoder().feed(encode({"command": "a\udc80"})) == [{"command": "a\udc80"}]


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\0\0\0\x02{]", b"\0\0\0\x02[]"])
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(BadFrame):
        Decoder().feed(raw)


class Scene:
    """A link, and the bare socket at its other end."""

    def __init__(self) -> None:
        self.mine, theirs = socket.socketpair()
        self.mine.settimeout(5)
        self.pushes: list[Mapping[str, int]] = []
        self.settings: list[Settings] = []
        self.lost = asyncio.Event()
        self.link = Link(self.pushes.append, self.settings.append, self.lost.set)
        self._theirs = theirs
        self._decoder = Decoder()
        self._frames: list[dict[str, Any]] = []

    async def __aenter__(self) -> Scene:
        await self.link.open(self._theirs)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.mine.close()
        await asyncio.wait_for(self.lost.wait(), 5)

    async def heard(self) -> dict[str, Any]:
        while not self._frames:
            more = await asyncio.to_thread(self.mine.recv, 1 << 20)
            assert more
            self._frames += self._decoder.feed(more)
        return self._frames.pop(0)

    def say(self, **frame: Any) -> None:
        self.mine.sendall(encode(frame))


def in_scene(act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Scene() as scene:
            await act(scene)

    asyncio.run(run())


def test_answers_find_their_questions_in_any_order() -> None:
    async def act(scene: Scene) -> None:
        asks = [asyncio.ensure_future(scene.link.ask(ANN, "op", {"k": k})) for k in range(3)]
        frames = [await scene.heard() for _ in asks]
        assert frames[0]["who"] == {"uid": 1000, "user": "ann", "pid": 12, "via": "unix"}
        for frame in reversed(frames):
            scene.say(n=frame["n"], ok={"k": frame["args"]["k"]})
        assert [await ask for ask in asks] == [{"k": 0}, {"k": 1}, {"k": 2}]

    in_scene(act)


def test_a_fault_is_raised_as_what_it_was_with_all_its_problems() -> None:
    async def act(scene: Scene) -> None:
        ask = asyncio.ensure_future(scene.link.ask(ANN, "op", {}))
        frame = await scene.heard()
        scene.say(n=frame["n"], fault=fault_doc(Refused("cannot x: y", ("a", "b"))))
        with pytest.raises(Refused, match="cannot x: y") as refused:
            await ask
        assert refused.value.problems == ("a", "b")
        assert fault_doc(NotFound("cannot z"))["slug"] == "not_found"

    in_scene(act)


def test_pushes_and_settings_are_heard_unasked() -> None:
    async def act(scene: Scene) -> None:
        scene.say(
            settings={
                "home": "/h",
                "database": "/d",
                "owner_uid": 1,
                "socket": "/s",
                "version": "1",
                "new": 1,
            }
        )
        scene.say(push={"commit": 3, "pass": 1, "facts": 0})
        ask = asyncio.ensure_future(scene.link.ask(ANN, "op", {}))
        scene.say(n=(await scene.heard())["n"], ok={})
        await ask
        assert scene.settings[0].home == "/h"
        assert scene.pushes == [{"commit": 3, "pass": 1, "facts": 0}]

    in_scene(act)


def test_a_lost_link_breaks_every_question_under_way_and_every_later_one() -> None:
    async def act(scene: Scene) -> None:
        ask = asyncio.ensure_future(scene.link.ask(ANN, "op", {}))
        await scene.heard()
        scene.mine.shutdown(socket.SHUT_RDWR)
        with pytest.raises(Broken, match="it has just stopped"):
            await ask
        with pytest.raises(Broken):
            await scene.link.ask(ANN, "op", {})

    in_scene(act)

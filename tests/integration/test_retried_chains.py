"""Retry and what depends on the retried: the whole line goes again, however long, and restarts change nothing."""

from __future__ import annotations

import time
from typing import Any

from tests.support.masters import Master, a_master


def after(*places: int) -> list[dict[str, Any]]:
    return [{"id": -place, "kind": "ok"} for place in places]


def retry(master: Master, task: int) -> dict[str, Any]:
    answer: dict[str, Any] = master.api.post("/api/v1/tasks/actions", {"action": "retry", "ids": [task]})
    return answer


def test_a_long_chain_goes_again_from_its_head() -> None:
    with a_master() as master:
        good = f"{master.home}/good"
        chain = [{"command": "true", "held": True, "after": after(place)} for place in range(1, 2000)]
        ids = master.submit_many([{"command": f"test -e {good}", "gpus": 0}, *chain])
        master.wait(ids[-1])
        open(good, "w").close()
        assert retry(master, ids[0])["errors"] == []
        master.wait(ids[0])
        states = {master.task(each)["state"] for each in (ids[1], ids[1000], ids[-1])}
        assert "failed" not in states


def test_many_ways_through_the_same_tasks_are_gone_once() -> None:
    with a_master() as master:
        layers: list[dict[str, Any]] = [{"command": "false", "gpus": 0}]
        above = [1]
        for _ in range(12):
            first = len(layers) + 1
            layers += [{"command": "true", "after": after(*above)}] * 3
            above = [first, first + 1, first + 2]
        ids = master.submit_many(layers)
        master.wait(ids[-1])
        before = time.monotonic()
        assert retry(master, ids[0])["errors"] == []
        assert time.monotonic() - before < 5


def test_who_waits_in_line_waits_again_for_what_is_retried() -> None:
    with a_master() as master:
        bad = f"{master.home}/bad"
        first = master.submit(f"test ! -e {bad}", gpus=0)
        master.wait(first)
        second = master.submit("true", gpus=0, held=True, after=[{"id": first, "kind": "ok"}])
        open(bad, "w").close()
        retry(master, first)
        (ended,) = master.wait(second)
        assert (ended["state"], ended["reason"]) == ("failed", f"dependency {first} failed")


def test_what_started_once_is_not_kept_by_a_dependency_that_failed_later() -> None:
    with a_master() as master:
        bad, go = f"{master.home}/bad", f"{master.home}/go"
        first = master.submit(f"test ! -e {bad}", gpus=0)
        master.wait(first)
        second = master.submit(f"test -e {go} || sleep 300", after=[{"id": first, "kind": "ok"}])
        master.wait_state(second, "running")
        open(bad, "w").close()
        retry(master, first)
        master.wait(first)
        wish = {"action": "preempt", "ids": [second], "then": "hold", "soft_timeout_s": 0}
        master.api.post("/api/v1/tasks/actions", wish)
        master.wait_state(second, "queued")
        master.kill()
        assert master.start()["ready"]
        open(go, "w").close()
        master.api.post("/api/v1/tasks/actions", {"action": "release", "ids": [second]})
        assert master.wait(second, patience_s=10)[0]["state"] == "completed"

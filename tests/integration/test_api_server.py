"""The master, its GPUs and leases over real HTTP, and who is let in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from lab_gpu.core.errors import Broken, LabGpuError, Refused
from lab_gpu.core.policy import DEFAULTS
from lab_gpu.testing.fake_loop import LEASE, TOKEN, Doors, Http, doors, finish, task
from tests.support.waiting import wait_until

BEARER = f"Bearer {TOKEN}"
PAGE = "https://lab.example.org"


@pytest.fixture(scope="module")
def module_house() -> Iterator[Doors]:
    with doors(policy=DEFAULTS | {"cors_origins": [PAGE]}) as found:
        yield found


@pytest.fixture
def house(module_house: Doors) -> Doors:
    module_house.loop.asked.clear()
    return module_house


def test_health_needs_nobody(house: Doors) -> None:
    assert house.tcp.get("/api/health") == house.unix.get("/api/health") == (200, {"status": "ok"})


def test_the_status_shows_everything_at_a_glance(house: Doors) -> None:
    running, queued, ended = house.loop.write(task("run"), task("wait"), task("over"))
    house.loop.sql("update task set state = 'running' where id = ?", running)
    house.loop.sql("update task set state = 'completed', ended_at = unixepoch() where id = ?", ended)
    house.loop.push()
    status, found = house.unix.get("/api/v1/status?limit=5")
    assert status == 200
    assert [each["id"] for each in found["tasks"]] == [running, queued, ended]
    assert found["counts"] == {"running": 1, "queued": 1, "completed": 1}
    assert found["nodes"][0]["gpus"][0]["holders"][0]["since"] == "2023-11-14T22:13:20.000Z"
    assert found["leases"][0]["granted_at"] == "2023-11-14T22:13:21.500Z"
    assert [each["id"] for each in house.unix.get("/api/v1/status?limit=0")[1]["tasks"]] == [running, ended]


def test_the_loop_is_asked_once_however_many_look(house: Doors) -> None:
    house.loop.push()
    house.unix.get("/api/v1/status")
    before = len(house.loop.asked)
    for _ in range(20):
        house.unix.get("/api/v1/status")
    # Kept answers are forgotten by a push, and after a second; twenty looks take much less than a minute.
    assert len(house.loop.asked) - before < 20


def test_the_servers_own_routes(house: Doors) -> None:
    ticked = {
        "started": [{"id": 1, "node": "n1", "gpus": []}],
        "waiting": [{"id": 2, "code": "gpus_busy", "text": "waiting"}],
    }
    policy = DEFAULTS | {"night_start": "01:00"}
    reloaded = {"policy": policy, "path": "/p.yaml", "changed": ["night_start"]}
    house.loop.answers |= {"tick": ticked, "policy_reload": reloaded}
    assert house.unix.get("/api/v1/server")[1]["started_at"] == "2023-11-14T22:13:20.000Z"
    assert house.unix.post("/api/v1/server/tick") == (200, ticked)
    found = house.unix.get("/api/v1/policy")[1]
    assert (found["policy"]["night_start"], found["path"]) == ("00:00", None)
    assert isinstance(found["night"], bool)
    assert house.unix.post("/api/v1/policy/reload", {"path": "/p.yaml"}) == (200, reloaded)
    assert house.loop.ops("policy_reload")[0].args == {"text": None, "path": "/p.yaml"}
    assert house.unix.get("/api/v1/policy")[1]["policy"]["night_start"] == "01:00"
    house.loop.send(
        {"settings": house.loop.settings}
    )  # the loop has the last word, so everything is as it was
    assert house.unix.get("/api/v1/policy")[1]["policy"]["night_start"] == "00:00"


def test_nodes_are_added_drained_and_removed(house: Doors) -> None:
    added = {"name": "v", "created": True, "text": "added"}
    house.loop.answers |= {"add_node": added, "remove_node": {}, "drain": {}, "undrain": {}}
    assert house.unix.get("/api/v1/gpus")[1]["source"] == "nvml"
    body = {"name": "v", "gpus": 2, "vram_mib": 24576, "gpu_type": "RTX 3090", "virtual": True}
    assert house.unix.post("/api/v1/nodes", body) == (200, added)
    assert house.loop.ops("add_node")[0].args == body | {"address": None}
    assert house.unix.post("/api/v1/nodes/v/drain", {"gpu": 1, "reason": "hot"}) == (200, {})
    assert house.loop.ops("drain")[0].args == {"node": "v", "gpu": 1, "reason": "hot"}
    assert house.unix.post("/api/v1/nodes/v/undrain", {}) == (200, {})
    assert house.loop.ops("undrain")[0].args == {"node": "v", "gpu": None}
    assert house.unix.ask("DELETE", "/api/v1/nodes/v")[:2] == (200, {})
    assert house.loop.ops("remove_node")[0].args == {"name": "v"}


def test_a_lease_belongs_to_the_process_that_asks_and_on_tcp_to_its_heartbeats(house: Doors) -> None:
    house.loop.answers["lease_ask"] = LEASE
    status, found = house.unix.post("/api/v1/leases", {"request": {"mem_mib": 1024}, "priority": 3})
    assert (status, found["state"], found["asked_at"]) == (201, "held", "2023-11-14T22:13:20.000Z")
    args = house.loop.ops("lease_ask")[0].args
    assert (args["pid"], args["ttl_s"], args["priority"]) == (os.getpid(), None, 3)
    assert args["pid_started"] > 0
    assert args["request"]["vram_mib"] == 1024
    house.tcp.post("/api/v1/leases", {"request": {}}, authorization=BEARER)
    args = house.loop.ops("lease_ask")[1].args
    assert (args["pid"], args["ttl_s"]) == (None, 90.0)
    for wrong in (
        {"request": {"gpus": 0}},
        {"request": {}, "ttl_s": 0.1},
        {"request": {}, "priority": 9999},
        {},
    ):
        assert house.unix.post("/api/v1/leases", wrong)[0] == 422


def test_a_lease_is_waited_for_shown_kept_and_given_back(house: Doors) -> None:
    waiting = LEASE | {"state": "waiting", "node": None, "gpus": [], "granted_at": None, "reason": "busy"}
    house.loop.answers |= {
        "lease_ask": waiting,
        "lease": waiting,
        "lease_beat": LEASE,
        "lease_release": LEASE,
    }
    sock = house.unix.begin("POST", "/api/v1/leases", {"request": {}, "wait_s": 30})
    wait_until(lambda: bool(house.loop.ops("lease_ask")))
    house.loop.push()
    wait_until(lambda: bool(house.loop.ops("lease")))
    house.loop.answers["lease"] = LEASE
    house.loop.push()
    assert finish(sock)[:2] == (201, house.unix.get("/api/v1/leases/1?wait_s=5")[1])
    assert house.unix.get("/api/v1/leases")[1]["leases"][0]["id"] == 1
    assert house.unix.post("/api/v1/leases/1/heartbeat")[0] == 200
    assert house.unix.ask("DELETE", "/api/v1/leases/1")[0] == 200


def test_who_goes_away_before_the_answer_leaves_no_lease_behind(house: Doors) -> None:
    house.loop.answers |= {"lease_ask": LEASE | {"state": "waiting"}, "lease_release": LEASE}
    with house.unix.begin("POST", "/api/v1/leases", {"request": {}, "wait_s": 30}):
        wait_until(lambda: bool(house.loop.ops("lease_ask")))
    wait_until(lambda: bool(house.loop.ops("lease_release")))
    assert house.loop.ops("lease_release")[0].args == {"id": 1}


# --- who is let in --------------------------------------------------------------------------------


def test_tcp_needs_the_token(house: Doors) -> None:
    status, answer, headers = house.tcp.ask("GET", "/api/v1/tasks")
    assert (status, answer["slug"], headers["www-authenticate"]) == (401, "unauthorized", "Bearer")
    for wrong in ("Bearer nope", f"Basic {TOKEN}", "Bearer", "Bearer t\xf6ken"):
        assert house.tcp.get("/api/v1/tasks", authorization=wrong)[0] == 401
    assert house.tcp.get("/api/v1/tasks", authorization=BEARER)[0] == 200
    house.tcp.get("/api/v1/server", authorization=f"bearer {TOKEN}")
    who = house.loop.ops("server")[-1].who
    assert (who["uid"], who["pid"], who["via"]) == (os.getuid(), None, "token")


def ask_as(uid: int, http: Http, path: str) -> tuple[int, Any]:
    """From a child process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(writer, json.dumps(http.get(path)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    status, answer = json.loads(said)
    return status, answer


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_on_the_unix_socket_the_kernel_says_who_calls() -> None:
    with doors(owner_uid=1) as house:
        status, answer = ask_as(65534, house.unix, "/api/v1/server")
        assert (status, answer["slug"]) == (403, "forbidden")
        assert "this master belongs to daemon" in answer["detail"]
        assert ask_as(65534, house.unix, "/api/health")[0] == 200
        assert ask_as(1, house.unix, "/api/v1/server")[0] == 200
        assert house.loop.ops("server")[-1].who["user"] == "daemon"
        assert ask_as(0, house.unix, "/api/v1/server")[0] == 200


@pytest.mark.parametrize("name", ["evil.example.com", "localhost.evil.com:1895", "1.2.3.4.evil.com"])
def test_a_name_that_is_not_ours_is_not_answered_to(house: Doors, name: str) -> None:
    for http in (house.unix, house.tcp):
        status, answer = http.get("/api/v1/server", host=name, authorization=BEARER)
        assert (status, answer["slug"]) == (403, "forbidden")
    assert house.tcp.get("/api/health", host=name)[0] == 403


@pytest.mark.parametrize("name", ["localhost:1895", "127.0.0.1", "[::1]:80", "LOCALHOST", "lab.example.org"])
def test_our_own_names_and_addresses_are(house: Doors, name: str) -> None:
    assert house.tcp.get("/api/v1/server", host=name, authorization=BEARER)[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example.com", "null", "http://localhost:1", "https://localhost"]
)
def test_a_page_of_somebody_else_may_not_post(house: Doors, origin: str) -> None:
    status, answer = house.unix.post("/api/v1/server/stop", origin=origin)
    assert (status, answer["slug"]) == (403, "forbidden")
    assert not house.loop.ops("stop")


def test_our_own_pages_and_listed_ones_may(house: Doors) -> None:
    port = house.loop.settings["ports"][0]
    for origin in (f"http://localhost:{port}", f"http://127.0.0.1:{port}", PAGE):
        status, _, headers = house.tcp.ask("GET", "/api/v1/server", origin=origin, authorization=BEARER)
        assert (status, headers["access-control-allow-origin"]) == (200, origin)
    ask = {"origin": PAGE, "access-control-request-method": "PATCH"}
    status, _, headers = house.tcp.ask("OPTIONS", "/api/v1/tasks/1", **ask)
    assert (status, headers["access-control-allow-origin"]) == (204, PAGE)
    assert "PATCH" in headers["access-control-allow-methods"]
    assert house.tcp.ask("OPTIONS", "/api/v1/tasks/1", **(ask | {"origin": "http://evil.org"}))[0] == 403


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        (b'{"tasks": NaN x', 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
        (b"[" * 200_000, 400, "the body is not JSON"),
        (b"", 422, "the body is missing"),
        (b"3", 422, "this must be an object"),
    ],
)
def test_malformed_bodies(house: Doors, body: bytes, status: int, words: str) -> None:
    found, answer, headers = house.unix.ask("POST", "/api/v1/tasks", body)
    assert (found, headers["content-type"]) == (status, "application/problem+json")
    assert words in answer["detail"]
    assert set(answer) == {"type", "title", "status", "detail", "slug", "problems"}


def test_only_json_is_read(house: Doors) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, answer = house.unix.post("/api/v1/tasks", b"{}", content_type=kind)
        assert (status, answer["slug"]) == (415, "refused")


def test_a_body_beyond_the_limit_is_refused_said_long_or_found_long(house: Doors) -> None:
    huge = b" " * (33 << 20)
    status, answer = house.unix.post("/api/v1/tasks", huge)
    assert status == 413
    assert "larger than 32 MiB" in answer["detail"]
    chunk = b"%x\r\n%s\r\n" % (len(huge), huge)
    chunks = {"content_length": "", "transfer_encoding": "chunked"}
    assert house.unix.post("/api/v1/tasks", chunk + b"0\r\n\r\n", **chunks)[0] == 413


def test_unknown_addresses_and_methods(house: Doors) -> None:
    status, answer = house.unix.get("/api/v2/x")
    assert (status, answer["slug"]) == (404, "not_found")
    assert house.unix.get("/docs")[0] == 404
    status, answer, headers = house.unix.ask("PUT", "/api/v1/tasks/1")
    assert (status, headers["allow"]) == (405, "GET, PATCH")
    assert "knows GET, PATCH" in answer["detail"]


@pytest.mark.parametrize(
    "error", [Broken("cannot write: the disk is full; make room"), Refused("cannot: no; do y")]
)
def test_a_fault_of_the_loop_comes_through(house: Doors, error: LabGpuError) -> None:
    house.loop.answers["tick"] = error
    status, answer = house.unix.post("/api/v1/server/tick")
    assert (status, answer["slug"], answer["detail"]) == (error.http_status, error.slug, str(error))


def test_a_mistake_of_our_own_is_one_sentence_and_its_traceback_is_in_the_log(house: Doors) -> None:
    house.loop.answers["leases"] = {"no": "leases"}
    house.loop.push()
    status, answer = house.unix.get("/api/v1/status")
    assert (status, answer["slug"]) == (500, "error")
    assert "see its log" in answer["detail"]
    assert "Traceback" not in json.dumps(answer)
    wait_until(lambda: "KeyError: 'leases'" in house.logged())
    house.loop.answers["leases"] = {"leases": []}
    house.loop.push()


def test_the_description_of_the_api_is_whole(house: Doors) -> None:
    status, found = house.unix.get("/openapi.json")
    assert (status, found["openapi"][:3]) == (200, "3.1")
    assert {"/api/v1/tasks", "/api/v1/wait", "/api/v1/leases/{id}/heartbeat"} <= set(found["paths"])
    text = json.dumps(found)
    assert "HTTPValidationError" not in text
    names = {word.split('"')[0] for word in text.split("#/components/schemas/")[1:]}
    assert names <= set(found["components"]["schemas"])
    assert found["paths"]["/api/v1/tasks"]["post"]["responses"]["default"]["content"][
        "application/problem+json"
    ]

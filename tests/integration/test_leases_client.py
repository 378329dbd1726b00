"""Leases as a program sees them: granted, waited for, given up, bound to the process, kept alive."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterator

import pytest
from fake_master import Asked, Doc, FakeMaster, ask_lease, hang_up, short_folder

from lab_gpu import Client, LabGpuError, LabGpuTimeoutError, Placement, Refused
from lab_gpu.client import cuda, leases
from lab_gpu.client.cuda import VARIABLES, CudaStarted


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    for name in (*VARIABLES, "LAB_GPU_UNI_ID"):
        monkeypatch.delenv(name, raising=False)
    with short_folder() as home:
        monkeypatch.setenv("LAB_GPU_HOME", home)
        monkeypatch.setenv("LAB_GPU_AUTOSTART", "0")
        with FakeMaster(f"{home}/lab-gpu.sock") as each:
            yield each


def shown() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in VARIABLES}


def test_acquire_binds_the_process_until_the_release(master: FakeMaster) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "7"
    lease = Client().acquire(mem="10G", name="probe")
    assert isinstance(lease, Placement)
    assert (lease.node, lease.gpu_id, lease.gpu_ids, lease.gpu_uuids) == ("box", 0, (0,), ("GPU-0",))
    assert (lease.vram_mib, lease.gpus[0].name) == (10240, "A100")
    assert shown() == dict(zip(VARIABLES, ("0", "PCI_BUS_ID", "GPU-0"), strict=True))
    lease.release()
    lease.release()
    assert shown() == dict(zip(VARIABLES, ("7", None, None), strict=True))
    assert master.paths("DELETE") == ["/api/v1/leases/1"] and master.leases[1]["name"] == "probe"


def test_two_leases_show_the_gpus_of_both(master: FakeMaster) -> None:
    client = Client()
    with client.acquire() as first:
        with client.acquire():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
            first.release()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_request_device_leaves_the_environment_alone(master: FakeMaster) -> None:
    with Client().request_device(mem="10G", gpus=2, timeout=30) as placement:
        assert placement.gpu_ids == (0, 1)
        assert shown() == dict.fromkeys(VARIABLES)


def test_at_once_or_not_at_all(master: FakeMaster) -> None:
    master.free = []
    with pytest.raises(LabGpuTimeoutError, match=r"no GPU is free for it now: waiting for 1 free") as caught:
        Client().acquire(mem="10G", timeout=0)
    assert isinstance(caught.value, TimeoutError)
    assert master.leases[1]["state"] == "released"
    assert Client(master.host).list() == []


def test_at_once_where_one_is_free(master: FakeMaster) -> None:
    assert Client().request_device(timeout=0).gpu_id == 0


def test_some_seconds(master: FakeMaster) -> None:
    master.free = []
    with pytest.raises(LabGpuTimeoutError, match=r"none was granted within 0\.05 s: waiting"):
        Client().acquire(timeout=0.05)
    assert master.leases[1]["state"] == "released"


def test_for_ever_means_until_somebody_gives_back(master: FakeMaster) -> None:
    client, got = Client(), []
    held = client.request_device(gpus=2)
    waiter = threading.Thread(target=lambda: got.append(client.request_device()))
    waiter.start()
    master.wait_until(lambda: len(master.leases) == 2 and master.leases[2]["reason"])
    assert not got
    held.release()
    waiter.join(10)
    assert got[0].gpu_id == 0


def test_a_negative_timeout_is_refused_before_anything_is_asked(master: FakeMaster) -> None:
    with pytest.raises(Refused, match="cannot wait -1 s"):
        Client().acquire(timeout=-1)
    assert not master.leases


def test_who_is_interrupted_leaves_no_lease(master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    master.free = []
    client = Client()
    ask = client.api.ask

    def interrupted(method: str, path: str, *rest: object, **more: object) -> object:
        if method == "GET" and path == "/api/v1/leases/1":
            raise KeyboardInterrupt
        return ask(method, path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(client.api, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.acquire()
    assert master.leases[1]["state"] == "released"


def test_an_answer_that_got_lost_costs_no_second_lease(master: FakeMaster) -> None:
    def granted_but_silent(connection: object) -> None:
        if len(master.leases) == 0:
            ask_lease(master, master.asked[-1])

    master.faults += [granted_but_silent, hang_up]
    lease = Client().request_device()
    assert lease.id == 1 and len(master.leases) == 1


def test_inside_an_attempt_its_own_gpus_are_given(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_GPU_UNI_ID", "u-1")
    client = Client()
    with client.acquire() as first, client.acquire() as second:
        assert first.gpu_id == second.gpu_id == 5
        first.release()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    assert [each.body["inside_uni_id"] for each in master.asked] == ["u-1", "u-1"]
    with pytest.raises(Refused, match="the attempt has 1 of its own"):
        client.acquire(gpus=2)


def test_more_than_the_master_could_ever_give_is_its_own_word(master: FakeMaster) -> None:
    client = Client()
    with pytest.raises(Refused, match="cannot lease 0 GPUs"):
        client.acquire(gpus=0)
    with pytest.raises(TypeError, match="did you mean 'exclusive'"):
        client.acquire(exlusive=True)  # type: ignore[call-arg]
    with pytest.raises(Refused, match="cannot read size '10X'"):
        client.acquire(mem="10X")


def test_what_was_asked_for_arrives_as_the_api_names_it(master: FakeMaster) -> None:
    seen: list[Asked] = master.asked
    Client().request_device(1.5, gpu_type="A100", gpu_ids=[0], exclusive=True, min_free_memory="2G", max_util=20,
                            priority="high")  # fmt: skip
    body: Doc = next(each for each in seen if each.method == "POST").body
    assert body["priority"] == 100 and body["ttl_s"] is None
    assert body["request"] == {"mem_mib": 1536, "min_free_mib": 2048, "gpus": 1, "gpu_type": "A100",
                               "exclusive": True, "max_util": 20, "gpu_ids": [0]}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "content", "who"),
    [
        ("torch", {"cuda": types.SimpleNamespace(is_initialized=lambda: True)}, "torch"),
        (
            "tensorflow.python.eager.context",
            {"_context": types.SimpleNamespace(_initialized=True)},
            "TensorFlow",
        ),
        ("jax._src.xla_bridge", {"_backends": {"cpu": 1, "cuda": 2}}, "JAX"),
    ],
)
def test_too_late_is_said_before_a_lease_is_asked_for(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch, module: str, content: dict[str, object], who: str
) -> None:
    fake = types.ModuleType(module)
    vars(fake).update(content)
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(CudaStarted, match=f"{who} has already initialised CUDA") as caught:
        Client().acquire()
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, LabGpuError)
    assert not master.leases
    Client().request_device().release()


def test_modules_that_were_only_imported_are_no_obstacle(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = types.ModuleType("torch")
    vars(torch)["cuda"] = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    bridge = types.ModuleType("jax._src.xla_bridge")
    vars(bridge)["_backends"] = {"cpu": 1}
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    Client().acquire().release()


def test_an_open_driver_is_cuda_even_without_a_known_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_target", lambda link: "/dev/nvidia0")
    assert cuda.started_by() is None
    monkeypatch.setattr(cuda, "_target", lambda link: "/dev/nvidia-uvm")
    assert cuda.started_by() == "some library"


def test_cuda_that_began_during_the_wait_gives_the_lease_back(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = iter([None, "torch"])
    monkeypatch.setattr(cuda, "started_by", lambda: next(words))
    with pytest.raises(CudaStarted):
        Client().acquire()
    assert master.leases[1]["state"] == "released" and shown() == dict.fromkeys(VARIABLES)


def test_a_forked_child_does_not_release_what_its_parent_holds(master: FakeMaster) -> None:
    lease = Client().request_device()
    lease._holder_pid = os.getpid() + 1
    lease.release()
    assert master.leases[1]["state"] == "held"


def test_over_tcp_a_heartbeat_keeps_the_lease(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    with FakeMaster(("127.0.0.1", 0)) as master:
        lease = Client(master.host).acquire()
        assert master.asked[-2].body["ttl_s"] == 90
        master.wait_until(lambda: master.leases[1]["beats"] >= 2)
        lease.release()
        lost = Client(master.host).request_device()
        master.leases[2]["state"] = "released"
        master.wait_until(lambda: "lease 2 is lost: cannot keep lease 2" in capsys.readouterr().err)
        lost.release()


def test_gpus_of_another_host_cannot_be_bound_here(master: FakeMaster) -> None:
    client = Client()
    client.api.place.path, client.api.place.host = None, "lab1"
    client.api.get = lambda *_: {"host": "lab1"}  # type: ignore[method-assign]
    with pytest.raises(Refused, match=f"cannot bind GPUs of lab1 to a process on {os.uname().nodename}"):
        client.acquire()

"""The real binding on the stub library: what the probe makes of every way a driver can answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab_gpu.core.readings import foreign_use, really_used
from lab_gpu.probe import host, nvml
from lab_gpu.probe.host import HostProbe
from lab_gpu.probe.nvml import NvmlProbe

sys.path.insert(0, str(Path(__file__).parents[1] / "nvml"))
pytest_plugins = ("stub",)
if TYPE_CHECKING:
    from stub import StubGpus

DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 9, 15, 16, 18, 999
NOBODYS_PID = 4_194_304  # above what the kernel gives out


@pytest.fixture
def probe() -> Iterator[NvmlProbe]:
    probe = NvmlProbe()
    yield probe
    probe.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the attempt `attempt-7`, one step below a shell."""
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    environ = {**os.environ, "LAB_GPU_UNI_ID": "attempt-7"}
    shell = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, start_new_session=True)
    yield shell
    os.killpg(shell.pid, 9)
    shell.wait()
    assert shell.stdout
    shell.stdout.close()


def _child_of(shell: subprocess.Popen[bytes]) -> int:
    assert shell.stdout
    pid = int(shell.stdout.readline())
    _until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    return pid


def _until(holds, limit_s: float = 20) -> None:  # type: ignore[no-untyped-def]
    give_up_at = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_all_that_a_healthy_gpu_tells(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu(total_mib=24576, used_mib=3, reserved_mib=447, util=37, temp=61, power_mw=123456)
    stub_gpus.gpu("NVIDIA A100-SXM4-80GB", uuid="GPU-a100", total_mib=81920, mode=3)
    before = time.time()
    facts = probe.read()
    assert facts.source == "nvml" and facts.problem is None and before <= facts.at <= time.time()
    first, second = facts.gpus
    assert (first.index, first.uuid, first.name) == (0, stub_gpus.uuid(0), "NVIDIA GeForce RTX 3090")
    assert (first.total_mib, first.used_mib) == (24576, 3)  # the driver's reserve is nobody's use
    assert (first.utilization, first.temperature_c, first.power_w) == (37, 61, 123.456)
    assert not first.exclusive_mode and not first.mig and first.processes == ()
    assert (second.index, second.uuid, second.exclusive_mode) == (1, "GPU-a100", True)


def test_processes_are_believed_only_after_a_look_into_proc(
    stub_gpus: StubGpus, probe: NvmlProbe, sleeper: subprocess.Popen[bytes]
) -> None:
    stub_gpus.gpu()
    child = _child_of(sleeper)
    stub_gpus.process(child, 0, 1000)
    stub_gpus.process(child, 0, 1000, kind="G")
    stub_gpus.process(os.getpid(), 0, None, kind="G")
    stub_gpus.process(NOBODYS_PID, 0, 5000)
    (gpu,) = probe.read().gpus
    ours, drawing = sorted(gpu.processes, key=lambda process: process.pid != child)
    assert len(gpu.processes) == 2 and gpu.used_mib == 7000
    assert (ours.pid, ours.mib, ours.graphics, ours.uni_id) == (child, 1000, False, "attempt-7")
    assert ours.command == "sleep 600" and ours.owner and ours.started > 0
    assert ours.ancestors[0][0] == sleeper.pid and ours.ancestors[1][0] == os.getpid()
    assert (drawing.pid, drawing.mib, drawing.graphics) == (os.getpid(), None, True)


def test_use_is_told_apart_end_to_end(
    stub_gpus: StubGpus, probe: NvmlProbe, sleeper: subprocess.Popen[bytes]
) -> None:
    stub_gpus.gpu()
    child = _child_of(sleeper)
    stub_gpus.process(child, 0, 3000)
    stub_gpus.process(os.getpid(), 0, 2000)
    (gpu,) = probe.read().gpus
    use = foreign_use(gpu, {"attempt-7"}, set(), 10000, ())
    assert (
        use.foreign_mib == 2000 and use.told_apart and [each.pid for each in use.processes] == [os.getpid()]
    )
    assert really_used(gpu, "attempt-7", set()) == 3000


def test_a_living_process_comes_and_goes(
    stub_gpus: StubGpus, probe: NvmlProbe, sleeper: subprocess.Popen[bytes]
) -> None:
    stub_gpus.gpu()
    child = _child_of(sleeper)
    stub_gpus.living(child, stub_gpus.uuid(0), 700)
    assert [process.mib for process in probe.read().gpus[0].processes] == [700]
    os.kill(child, 9)
    _until(lambda: probe.read().gpus[0].used_mib == 0)
    assert probe.read().gpus[0].processes == ()


def test_exec_shows_the_new_command(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu()
    with subprocess.Popen(["sh", "-c", "read line; exec sleep 600"], stdin=subprocess.PIPE) as shell:
        assert shell.stdin
        stub_gpus.process(shell.pid, 0, 10)
        assert (probe.read().gpus[0].processes[0].command or "").startswith("sh -c")
        shell.stdin.write(b"go\n")
        shell.stdin.close()
        _until(lambda: probe.read().gpus[0].processes[0].command == "sleep 600")
        shell.kill()


@pytest.mark.parametrize(
    ("error", "words"),
    [(GPU_IS_LOST, "GPU 1 fell off the bus"), (RESET_REQUIRED, "must be reset"), (UNKNOWN, "cannot be read")],
)
def test_one_sick_gpu_leaves_the_others_alone(
    stub_gpus: StubGpus, probe: NvmlProbe, error: int, words: str
) -> None:
    for _ in range(3):
        stub_gpus.gpu()
    healthy = probe.read().gpus
    stub_gpus.change(1, error=error)
    facts = probe.read()
    assert facts.problem is None
    assert [gpu.uuid for gpu in facts.gpus] == [gpu.uuid for gpu in healthy]
    assert [gpu.problem is None for gpu in facts.gpus] == [True, False, True]
    assert words in (facts.gpus[1].problem or "") and facts.gpus[1].total_mib == 24576
    stub_gpus.change(1, error=0)
    assert [gpu.problem for gpu in probe.read().gpus] == [None, None, None]


def test_a_gpu_that_was_lost_before_we_came_is_still_shown(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu()
    stub_gpus.gpu(error=GPU_IS_LOST)
    first, second = probe.read().gpus
    assert first.problem is None and "fell off the bus" in (second.problem or "")
    assert second.uuid and second.uuid != first.uuid and second.index == 1


def test_the_library_is_opened_anew_for_a_lost_gpu(
    stub_gpus: StubGpus, probe: NvmlProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_gpus.gpu(error=GPU_IS_LOST)
    monkeypatch.setattr(nvml, "LOST_RETRY_S", 0.0)
    probe.read()
    first = probe._opened_at
    probe.read()
    assert first is not None and probe._opened_at is not None and probe._opened_at > first


@pytest.mark.parametrize(
    ("error", "words"),
    [(DRIVER_NOT_LOADED, "driver is not loaded"), (MISMATCH, "was updated"), (UNKNOWN, "dmesg")],
)
def test_a_driver_that_goes_away_and_comes_back(
    stub_gpus: StubGpus, probe: NvmlProbe, error: int, words: str
) -> None:
    stub_gpus.gpu()
    assert len(probe.read().gpus) == 1
    stub_gpus.driver(error=error)
    for _ in range(2):
        facts = probe.read()
        assert facts.gpus == () and words in (facts.problem or "") and facts.problem.startswith("cannot ")
    stub_gpus.driver()
    facts = probe.read()
    assert facts.problem is None and len(facts.gpus) == 1


def test_an_old_driver_and_a_card_that_tells_little(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu(used_mib=100, reserved_mib=300, quiet=1)
    stub_gpus.process(os.getpid(), 0, 50)
    stub_gpus.driver(old=1)
    (gpu,) = probe.read().gpus
    assert gpu.used_mib == 450 and gpu.problem is None  # its form counts the reserve as used
    assert (gpu.utilization, gpu.temperature_c, gpu.power_w, gpu.exclusive_mode) == (None, None, None, False)
    assert [process.mib for process in gpu.processes] == [50]
    assert probe.read().gpus == (gpu,)


def test_a_gpu_without_memory_of_its_own_has_the_hosts(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu("NVIDIA GB10", unified=1)
    stub_gpus.process(os.getpid(), 0, 61)
    (gpu,) = probe.read().gpus
    assert gpu.total_mib == nvml.host_memory_mib() > 0 and gpu.used_mib == 61 and gpu.problem is None


def test_prohibited_mode_closes_a_gpu(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu(mode=2)
    assert "prohibited compute mode" in (probe.read().gpus[0].problem or "")


def test_mig_devices_stand_for_their_gpu(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu()
    stub_gpus.gpu("NVIDIA A100-SXM4-40GB", mig=1, total_mib=40960, temp=55)
    stub_gpus.mig(1, 0, "MIG-aaaa", name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", total_mib=4864)
    stub_gpus.mig(1, 2, "MIG-bbbb", name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", total_mib=19968)
    stub_gpus.process(os.getpid(), 1, 900, slot=2)
    whole, small, large = probe.read().gpus
    assert not whole.mig and small.mig and large.mig
    assert [(gpu.uuid, gpu.index, gpu.total_mib) for gpu in (small, large)] == [
        ("MIG-aaaa", 200, 4864),
        ("MIG-bbbb", 202, 19968),
    ]
    assert large.used_mib == 900 and [process.pid for process in large.processes] == [os.getpid()]
    assert (small.temperature_c, small.utilization, small.problem) == (55, None, None)


def test_mig_mode_without_devices_is_closed(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu(mig=1)
    (gpu,) = probe.read().gpus
    assert gpu.mig and "MIG mode" in (gpu.problem or "")


def test_a_closed_probe_lets_go_and_reads_again(stub_gpus: StubGpus, probe: NvmlProbe) -> None:
    stub_gpus.gpu()
    probe.read()
    probe.close()
    probe.close()
    stub_gpus.gpu()
    assert len(probe.read().gpus) == 2


# --- the host's choice -----------------------------------------------------------------------------


@pytest.fixture
def no_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("lab_gpu.probe.smi.PLACES", ())


@pytest.mark.usefixtures("no_smi")
def test_gpus_once_seen_stay_closed_while_nothing_reads_them(stub_gpus: StubGpus) -> None:
    stub_gpus.gpu()
    probe = HostProbe({})
    assert probe.read().gpus[0].problem is None
    stub_gpus.driver(error=DRIVER_NOT_LOADED)
    facts = probe.read()
    assert facts.problem and [gpu.problem for gpu in facts.gpus] == [facts.problem]
    assert facts.gpus[0].uuid == stub_gpus.uuid(0) and facts.gpus[0].total_mib == 24576
    stub_gpus.driver()
    assert probe.read().problem is None and probe.read().gpus[0].problem is None
    probe.close()


@pytest.mark.usefixtures("no_smi")
def test_libraries_with_nothing_to_drive_are_no_problem(
    stub_gpus: StubGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "PCI_DEVICES", str(tmp_path / "pci"))
    stub_gpus.driver(error=DRIVER_NOT_LOADED)
    facts = HostProbe({}).read()
    assert (facts.source, facts.gpus, facts.problem) == ("none", (), None)
    card = tmp_path / "pci" / "0000:41:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    assert "driver is not loaded" in (HostProbe({}).read().problem or "")


def test_nvidia_smi_stands_in_until_nvml_is_back(
    stub_gpus: StubGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    row = f"0, {stub_gpus.uuid(0)}, 24576, 11, 5, 40, 20.00, Default, [N/A], NVIDIA GeForce RTX 3090"
    smi.write_text(f"#!/bin/sh\ncase $1 in --query-gpu*) echo '{row}';; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=os.pathsep)
    stub_gpus.gpu()
    probe = HostProbe({})
    assert probe.read().source == "nvml"
    stub_gpus.driver(error=MISMATCH)
    facts = probe.read()
    assert (facts.source, facts.problem, facts.gpus[0].used_mib) == ("nvidia-smi", None, 11)
    stub_gpus.driver()
    assert probe.read().source == "nvml"
    probe.close()


def test_the_switch_finds_nothing(stub_gpus: StubGpus) -> None:
    stub_gpus.gpu()
    facts = HostProbe({"LAB_GPU_NO_NVML": "1"}).read()
    assert (facts.source, facts.gpus, facts.problem) == ("none", (), None)


def test_without_a_library_the_binding_is_never_imported(tmp_path: Path) -> None:
    """In a process of its own: this one may have the stub loaded."""
    (tmp_path / nvml.LIBRARY).write_bytes(b"no library at all")
    script = (
        "import sys, lab_gpu.probe.smi as smi; smi.PLACES = ()\n"
        "from lab_gpu.probe.host import HostProbe\n"
        "facts = HostProbe({}).read()\n"
        "print(facts.source, len(facts.gpus), facts.problem, 'pynvml' in sys.modules)"
    )
    environ = {
        "PATH": str(tmp_path),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["none", "0", "None", "False"], done.stderr

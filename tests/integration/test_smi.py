"""nvidia-smi as it answers: real text through a program of that name on PATH."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lab_gpu.probe import smi
from lab_gpu.probe.smi import SmiProbe

ROWS = """\
0, GPU-aaa, 24576, 300, 3, 41, 28.00, Default, [N/A], NVIDIA GeForce RTX 3090
1, GPU-bbb, 81920, 600, [N/A], 35, [Not Supported], Exclusive_Process, Disabled, NVIDIA A100, the "big", one
"""


class Smi:
    """A stand-in whose answers are files beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(
            '#!/bin/sh\ncd ${0%/*}\necho "$1" >> asked\n[ -e hang ] && exec sleep 600\n'
            "case $1 in --query-gpu*mig*) f=mig;; --query-gpu*) f=gpus;; *) f=apps;; esac\n"
            "[ $f = mig ] && [ ! -e mig ] && f=gpus\ncat $f; exit $(cat $f.code 2>/dev/null || echo 0)\n"
        )
        program.chmod(0o755)
        self.says("gpus", ROWS)
        self.says("apps", "")

    def says(self, name: str, text: str, code: int = 0) -> None:
        (self.folder / name).write_text(text)
        (self.folder / f"{name}.code").write_text(str(code))

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    program = Smi(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(program.folder), prepend=os.pathsep)
    return program


def test_rows_with_gaps_and_commas(program: Smi) -> None:
    facts = SmiProbe().read()
    first, second = facts.gpus
    assert (facts.source, facts.problem) == ("nvidia-smi", None)
    assert (first.index, first.uuid, first.name) == (0, "GPU-aaa", "NVIDIA GeForce RTX 3090")
    assert (first.total_mib, first.used_mib, first.utilization) == (24576, 300, 3)
    assert (first.temperature_c, first.power_w, first.exclusive_mode) == (41, 28.0, False)
    assert (second.name, second.exclusive_mode) == ('NVIDIA A100, the "big", one', True)
    assert (second.utilization, second.power_w, second.problem) == (None, None, None)


def test_processes_are_looked_up_in_proc(program: Smi) -> None:
    me = os.getpid()
    program.says(
        "apps", f"GPU-bbb, {me}, 512\nGPU-bbb, 4194304, 100\nGPU-aaa, {me}, [N/A]\nGPU-aaa, [N/A], 7\n"
    )
    first, second = SmiProbe().read().gpus
    assert [(p.pid, p.mib) for p in first.processes] == [(me, None)]
    assert [(p.pid, p.mib) for p in second.processes] == [(me, 512)]
    assert second.processes[0].started > 0 and "python" in (second.processes[0].command or "")


def test_an_old_version_is_asked_for_less(program: Smi) -> None:
    program.says("mig", 'Field "mig.mode.current" is not a valid field to query.\n', code=2)
    program.says("gpus", "0, GPU-aaa, 24576, 300, 3, 41, 28.00, Default, Tesla K80\n")
    probe = SmiProbe()
    assert probe.read().gpus[0].name == "Tesla K80"
    probe.read()
    assert sum("mig.mode" in question for question in program.asked) == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            "0, GPU-a, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], 0, Default, [N/A], X",
            "fell off",
        ),
        ("0, GPU-a, 24576, [Unknown Error], 1, 2, 3, Default, [N/A], X", "cannot be read"),
        ("0, GPU-a, 24576, 1, 1, 2, 3, Prohibited, [N/A], X", "prohibited compute mode"),
        ("0, GPU-a, 24576, 1, 1, 2, 3, Default, Enabled, X", "MIG mode"),
    ],
)
def test_a_sick_gpu_is_closed_alone(program: Smi, row: str, words: str) -> None:
    program.says("gpus", f"{row}\n{ROWS.splitlines()[1]}\n")
    facts = SmiProbe().read()
    assert facts.problem is None and words in (facts.gpus[0].problem or "") and facts.gpus[1].problem is None


def test_a_gpu_without_memory_of_its_own(program: Smi) -> None:
    program.says("gpus", "0, GPU-a, [N/A], [N/A], 0, 35, 11.17, Default, [N/A], NVIDIA GB10\n")
    (gpu,) = SmiProbe().read().gpus
    assert gpu.total_mib > 0 and gpu.used_mib == 0 and gpu.problem is None


def test_a_line_it_could_not_fill_is_told(program: Smi) -> None:
    stray = "Unable to determine the device handle for GPU0: 0000:41:00.0: Unknown Error"
    program.says("gpus", f"{stray}\n{ROWS}", code=15)
    facts = SmiProbe().read()
    assert len(facts.gpus) == 2 and stray in (facts.problem or "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18),
        ("", 9),
        ("\x1b[31mgarbage\x07\n", 1),
    ],
)
def test_failures_are_one_printable_sentence(program: Smi, text: str, code: int) -> None:
    program.says("gpus", text, code)
    facts = SmiProbe().read()
    assert facts.gpus == () and (facts.problem or "").startswith(
        f"cannot read the GPUs: nvidia-smi ended with {code}"
    )
    assert (facts.problem or "").isprintable()


def test_no_devices_is_an_answer(program: Smi) -> None:
    program.says("gpus", "No devices were found\n", code=6)
    facts = SmiProbe().read()
    assert (facts.gpus, facts.problem) == ((), None)


def test_one_that_hangs_is_ended(program: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi, "LIMIT_S", 0.2)
    (program.folder / "hang").touch()
    probe = SmiProbe()
    began = time.monotonic()
    assert "no answer within 0.2 s" in (probe.read().problem or "") and time.monotonic() - began < 30
    stuck = probe._stuck
    assert stuck is not None and stuck.wait(timeout=20) == -9
    (program.folder / "hang").unlink()
    assert len(probe.read().gpus) == 2


def test_none_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(smi, "PLACES", ())
    assert "not installed" in (SmiProbe().read().problem or "")

"""What the texts of an attempt promise before anything runs."""

from typing import Any

import pytest

from lab_gpu.core.attempts import GpuLine, LaunchFailed, LaunchOrder
from lab_gpu.core.ids import TaskId
from lab_gpu.core.model import Activation
from lab_gpu.runner import scripts


def order(**changes: Any) -> LaunchOrder:
    fields: dict[str, Any] = {
        "task": TaskId(12),
        "number": 2,
        "uni_id": "12-2-abc",
        "owner": "ada",
        "uid": 1000,
        "directory": "/home/ada/tasks/task_12/2",
        "log_path": "/home/ada/logs/12.log",
        "command": "true",
        "workdir": "/work",
        "environment": {"PATH": "/usr/bin:/bin"},
    }
    return LaunchOrder(**{**fields, **changes})


def test_the_environment_is_the_owners_and_ours():
    found = scripts.environment(order(environment={"PATH": "/bin", "LANG": "de_DE.UTF-8", "EMPTY": ""}))
    assert found == {
        "PATH": "/bin",
        "LANG": "de_DE.UTF-8",
        "EMPTY": "",
        "PYTHONUNBUFFERED": "1",
        "LAB_GPU_TASK_ID": "12",
        "LAB_GPU_ATTEMPT": "2",
        "LAB_GPU_UNI_ID": "12-2-abc",
        "LAB_GPU_GRACE_S": "300",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_what_is_known_is_told():
    known = order(name="näme", array_index=0, submit_dir="/a b", grace_s=2.5, vram_mib=10240)
    found = scripts.environment(known)
    assert found["LAB_GPU_NAME"] == "näme"
    assert found["LAB_GPU_ARRAY_INDEX"] == "0"
    assert found["LAB_GPU_SUBMIT_DIR"] == "/a b"
    assert found["LAB_GPU_GRACE_S"] == "2.5"
    assert found["LAB_GPU_MEM_MB"] == "10240"
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_nothing_of_the_attempt_that_submitted_it_stays():
    outer = {
        "LAB_GPU_TASK_ID": "1",
        "LAB_GPU_ARRAY_INDEX": "7",
        "LAB_GPU_NAME": "outer",
        "LAB_GPU_MEM_MB": "5",
        "LAB_GPU_TOKEN": "secret",
        "LAB_GPU_HOST": "gpu1",
        "CUDA_VISIBLE_DEVICES": "3",
        "SHELLOPTS": "xtrace",
    }
    found = scripts.environment(order(environment=outer))
    assert found["LAB_GPU_TASK_ID"] == "12"
    assert found["LAB_GPU_HOST"] == "gpu1"
    gone = {"LAB_GPU_ARRAY_INDEX", "LAB_GPU_NAME", "LAB_GPU_MEM_MB", "LAB_GPU_TOKEN", "SHELLOPTS"}
    assert not gone & set(found)
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_setenv_wins_over_all_but_what_is_ours():
    given = {
        "PYTHONUNBUFFERED": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "PATH": "/mine",
        "CUDA_LAUNCH_BLOCKING": "1",
        "LAB_GPU_TASK_ID": "99",
        "LAB_GPU_TOKEN": "secret",
        "CUDA_VISIBLE_DEVICES": "7",
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
    }
    found = scripts.environment(order(setenv=given, vram_mib=1, strip_path="/mine"))
    assert (found["PYTHONUNBUFFERED"], found["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("0", "false")
    assert (found["PATH"], found["CUDA_LAUNCH_BLOCKING"]) == ("/mine", "1")
    assert (found["LAB_GPU_TASK_ID"], found["CUDA_DEVICE_ORDER"]) == ("12", "PCI_BUS_ID")
    assert not {"LAB_GPU_TOKEN", "CUDA_VISIBLE_DEVICES"} & set(found)


def test_the_owners_own_settings_stay():
    mine = {"PYTHONUNBUFFERED": "", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    found = scripts.environment(order(environment=mine, vram_mib=1))
    assert (found["PYTHONUNBUFFERED"], found["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("", "false")


def test_growth_only_with_a_reservation():
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in scripts.environment(order())


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/v/bin:/usr/bin", "/usr/bin"),
        ("/usr/bin:/v/bin/:/bin:/v/bin", "/usr/bin:/bin"),
        ("/v/bin2::/usr/bin", "/v/bin2::/usr/bin"),
    ],
)
def test_our_own_folder_leaves_path(path: str, left: str):
    assert scripts.environment(order(environment={"PATH": path}, strip_path="/v/bin"))["PATH"] == left


def test_a_nul_is_refused():
    with pytest.raises(LaunchFailed, match="NUL"):
        scripts.command_text(order(command="echo a\0b"), "/bin/bash", "boot")


def test_bytes_of_a_command_line_come_back_as_they_were():
    text = scripts.command_text(order(command="cat f\udce9"), "/bin/bash", "boot")
    assert text.endswith(b"cat f\xe9\n")
    with pytest.raises(LaunchFailed, match="UTF-8"):
        scripts.command_text(order(command="\ud800"), "/bin/bash", "boot")


@pytest.mark.parametrize(
    ("activation", "environ", "root"),
    [
        (Activation("conda", "/o/envs/x", "/given"), {}, "/given"),
        (Activation("conda", "/o/conda/envs/x"), {}, "/o/conda"),
        (Activation("conda", "/data/x"), {"CONDA_EXE": "/o/conda/bin/conda"}, "/o/conda"),
        (Activation("conda", "/o/conda"), {}, "/o/conda"),
    ],
)
def test_where_conda_is(activation: Activation, environ: dict[str, str], root: str):
    text = scripts.command_text(order(activation=activation, environment=environ), "/bin/bash", "boot")
    assert f". {root}/etc/profile.d/conda.sh && conda activate {activation.path};".encode() in text


def test_the_start_line_keeps_empty_fields():
    assert scripts.start_line(GpuLine("", "")) == b"go|||\n"
    assert scripts.start_line(GpuLine("0,2", "GPU-a,GPU-b", "0.5")) == b"go|0,2|GPU-a,GPU-b|0.5\n"


def test_records_count_only_when_complete():
    whole = b"3\n1700000000.250000 end\n"
    record = scripts.parse_record(whole)
    assert record is not None
    assert (record.code, record.at) == (3, 1700000000.25)
    assert all(scripts.parse_record(whole[:length]) is None for length in range(len(whole)))
    assert scripts.parse_record(whole + b"x") is None


def test_begun_counts_only_when_complete():
    whole = b"71 4711 boot-1 1700000000.25 end\n"
    begun = scripts.parse_begun(whole)
    assert begun is not None
    assert (begun.process.pid, begun.process.started, begun.boot_id) == (71, 4711, "boot-1")
    assert all(scripts.parse_begun(whole[:length]) is None for length in range(len(whole)))
    assert scripts.parse_begun(scripts.BARRED_TEXT) is None


def test_times_are_read_in_any_locale():
    record = scripts.parse_record(b"0\n1700000000,5 end\n")
    assert record is not None
    assert record.at == 1700000000.5


def test_a_record_may_stand_behind_begun_where_the_disk_was_full():
    begun = b"71 4711 boot-1 1700000000.25 end\n"
    record = scripts.parse_record_in_begun(begun + b"5\n1700000001.5 end\n")
    assert record is not None
    assert record.code == 5
    assert scripts.parse_record_in_begun(begun) is None
    assert scripts.parse_record_in_begun(begun + b"5\n17") is None
    assert scripts.parse_record_in_begun(b"") is None

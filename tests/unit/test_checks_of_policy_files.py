"""Policy files: every mistake at once, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab_gpu.cli import policy_file
from lab_gpu.cli.commands import policy_show
from lab_gpu.core.errors import Refused
from lab_gpu.core.policy import Policy, policy_to_doc


def problems(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        policy_file.checked(str(path))
    assert str(caught.value).startswith("cannot use policy.yaml: ")
    return caught.value.problems


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('night_start: "22:00"\nbackfill_time_limit_s: 3600\n')
    assert policy_file.checked(str(path)).night_start == "22:00"


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("# nothing yet\n")
    assert policy_file.checked(str(path)) == Policy()


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    first, second = problems(tmp_path, 'night_start: "22:00"\nnight_bonus: 1\npreemption: maybe\n')
    assert first.startswith("line 2: night_bonus: ") and second.startswith("line 3: preemption: ")


def test_a_key_given_twice_is_a_mistake_beside_the_others(tmp_path: Path) -> None:
    found = problems(tmp_path, "preemption: true\npreemption: false\nlauncher: magic\n")
    assert found[0] == "line 2: preemption: it is given twice" and found[1].startswith("line 3: launcher: ")


def test_what_is_no_yaml_names_the_line(tmp_path: Path) -> None:
    assert problems(tmp_path, "night_start: [\nx: }\n")[0].startswith("line 2: ")


def test_a_list_and_a_python_object_are_refused(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "- 1\n- 2\n")) == 1
    assert "line 1" in problems(tmp_path, "launcher: !!python/name:os.system\n")[0]


def test_a_zone_nobody_knows(tmp_path: Path) -> None:
    assert "Mars/Olympus" in problems(tmp_path, "timezone: Mars/Olympus\n")[0]
    assert policy_file.is_zone("Asia/Shanghai") and not policy_file.is_zone("../etc/passwd")


@pytest.mark.parametrize("name", ["gone.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=r"^cannot read .*; name a policy file"):
        policy_file.checked(str(tmp_path / name))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="not a text"):
        policy_file.checked(str(path))


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    policy = Policy(
        night_start="22:00", timezone="Asia/Shanghai", max_retries=None, cors_origins=("http://a",)
    )
    answer = {"policy": policy_to_doc(policy), "path": "/p", "night": True}
    path = tmp_path / "policy.yaml"
    path.write_text("\n".join(policy_show.lines(answer)) + "\n")
    assert policy_file.checked(str(path)) == policy

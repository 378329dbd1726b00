"""The desk: what it accepts, what it makes of it, and that every mistake is named at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lab_gpu.core.errors import Refused
from lab_gpu.core.model import After, Dependency, RetryRule
from lab_gpu.core.policy import Policy
from lab_gpu.service.submit import Desk, Owner, Submission, own_bin_to_strip
from lab_gpu.wire.tasks import SubmitBody

NOW = 1_700_000_000.0
ENVIRONMENT = {"PATH": "/bin", "HOME": "/home/ann"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def submit(home: Path, *tasks: dict[str, Any], policy: Policy | None = None, **body: Any) -> Submission:
    login = {"PATH": "/login/bin", "LAB_GPU_TOKEN": "x"}
    desk = Desk(Owner(1000, "ann", str(home)), lambda: login)
    told = {"environment": ENVIRONMENT, "workdir": str(home)} | body
    shape = SubmitBody.model_validate({"tasks": [{"command": "true"} | task for task in tasks]} | told)
    return desk.accept(shape, policy or Policy(), NOW)


def problems(home: Path, *tasks: dict[str, Any], **body: Any) -> tuple[str, ...]:
    with pytest.raises(Refused) as refused:
        submit(home, *tasks, **body)
    assert str(refused.value).startswith("cannot submit: ")
    return refused.value.problems


def test_a_task_with_nothing_but_a_command_gets_every_default(home: Path) -> None:
    found = submit(home, {"command": "python train.py"})
    [task] = found.tasks
    assert (task.owner, task.uid, task.command, task.workdir) == ("ann", 1000, "python train.py", str(home))
    assert (task.request.gpus, task.request.vram_mib, task.batch, task.array_index) == (1, None, None, None)
    assert task.spec.retry == RetryRule()
    assert task.spec.submit_dir == str(home)
    assert task.signature
    assert found.environment == ENVIRONMENT


def test_a_task_without_an_environment_gets_the_login_shells_and_the_home(home: Path) -> None:
    found = submit(home, {}, environment=None, workdir=None)
    assert found.environment == {"PATH": "/login/bin"}
    assert found.tasks[0].workdir == str(home)
    assert found.tasks[0].spec.submit_dir is None


def test_the_masters_token_never_travels(home: Path) -> None:
    assert submit(home, {}, environment={"LAB_GPU_TOKEN": "x", "A": "1"}).environment == {"A": "1"}
    assert "token" in problems(home, {"setenv": {"LAB_GPU_TOKEN": "x"}})[0]


def test_retries_left_out_are_the_policys_and_null_is_without_limit(home: Path) -> None:
    policy = Policy(max_retries=2, retry_pause_s=5, max_retry_before_backoff=4, backoff_duration_s=60)
    [given, none, out] = submit(
        home, {"max_retries": 7, "retry_pause_s": 1}, {"max_retries": None}, {}, policy=policy
    ).tasks
    assert given.spec.retry == RetryRule(7, 1, 4, 60)
    assert none.spec.retry.max_retries is None
    assert out.spec.retry == RetryRule(2, 5, 4, 60)


def test_paths_are_read_from_the_submit_directory(home: Path) -> None:
    [near, from_home] = submit(home, {"workdir": "work"}, {"workdir": "~/work", "log_root": "logs/x"}).tasks
    assert near.workdir == from_home.workdir == str(home / "work")
    assert from_home.spec.log_root == str(home / "logs" / "x")
    assert (home / "logs" / "x").is_dir()


def test_a_trial_leaves_nothing_behind(home: Path) -> None:
    submit(home, {"log_root": "logs"}, dry_run=True)
    assert not (home / "logs").exists()


def test_gpu_ids_alone_ask_for_all_of_them(home: Path) -> None:
    [all_of_them, any_one] = submit(home, {"gpu_ids": [1, 3]}, {"gpu_ids": [1, 3], "gpus": 1}).tasks
    assert (all_of_them.request.gpus, any_one.request.gpus) == (2, 1)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"command": "  "}, "the command is empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "a\udc80"}, "not UTF-8"),
        ({"name": "two\nlines"}, "name must be one line"),
        ({"gpus": -1}, "gpus must be from 0"),
        ({"mem_mib": 0}, "mem_mib must be at least 1"),
        ({"mem_mib": 1 << 50}, "mem_mib must be at least 1"),
        ({"min_free_mib": -5}, "min_free_mib must be"),
        ({"max_util": 101}, "max_util must be from 0 to 100"),
        ({"gpu_ids": [0, 0]}, "gpu_ids names a GPU twice"),
        ({"gpu_ids": [-1]}, "gpu_ids must not be negative"),
        ({"gpu_ids": [0], "gpus": 2}, "gpus asks for 2 of the 1"),
        ({"gpus": 0, "mem_mib": 10}, "0 GPUs cannot have mem_mib"),
        ({"gpus": 0, "exclusive": True}, "0 GPUs cannot have exclusive"),
        ({"priority": 1001}, "priority must be from -1000 to 1000"),
        ({"time_limit_s": 0}, "time_limit_s must be more than 0"),
        ({"estimate_s": -1}, "estimate_s must be more than 0"),
        ({"no_output_limit_s": 1e12}, "no_output_limit_s must be"),
        ({"retry_pause_s": -1}, "retry_pause_s must not be negative"),
        ({"begin_at": NOW * 1000}, "begin_at must be seconds since 1970"),
        ({"kill_at_limit": True}, "kill_at_limit needs a time_limit_s"),
        ({"max_retries": -1}, "max_retries must be from 0"),
        ({"setenv": {"1A": "x"}}, "setenv cannot set '1A'"),
        ({"setenv": {"A": "x\0"}}, "setenv cannot set A"),
        ({"env": ""}, "env is empty"),
        ({"array": {"first": 3, "last": 1}}, "before it begins"),
        ({"array": {"first": -1, "last": 1}}, "array.first must not be negative"),
        ({"array": {"first": 0, "last": 1, "step": 0}}, "array.step"),
        ({"array": {"first": 0, "last": 1, "limit": 0}}, "array.limit"),
        ({"array": {"first": 0, "last": 10**12}}, "more than 100000 tasks"),
        ({"after": [{"id": 0}]}, "after names task 0"),
        ({"after": [{"id": -1}]}, "waits for itself"),
        ({"after": [{"id": -2}]}, "after names task -2"),
        ({"after": [{"id": 4}, {"id": 4, "kind": "any"}]}, "twice with different conditions"),
    ],
)
def test_each_mistake_is_named(home: Path, task: dict[str, Any], words: str) -> None:
    found = problems(home, task)
    assert any(words in each for each in found), found


def test_all_mistakes_of_all_tasks_come_at_once_with_their_places(home: Path) -> None:
    found = problems(home, {"gpus": -1, "priority": 9999}, {}, {"workdir": "nowhere"})
    assert [each.split(":")[0] for each in found] == ["task 1", "task 1", "task 3"]


def test_a_directory_must_be_there(home: Path) -> None:
    (home / "file").touch()
    assert "does not exist; create it" in problems(home, {"workdir": "/no/such"})[0]
    assert "is not a directory" in problems(home, {"workdir": str(home / "file")})[0]
    assert "not an absolute path" in problems(home, {"workdir": "x"}, workdir="also/relative")[0]


def test_an_unwritable_log_root_names_the_flag(home: Path) -> None:
    (home / "file").touch()
    for trial in (False, True):
        [found] = problems(home, {"log_root": str(home / "file" / "logs")}, dry_run=trial)
        assert "name another folder with --log-root" in found


@pytest.mark.parametrize(
    "environment",
    [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}, {"A": "x" * (1 << 20)}],
    ids=["name", "=", "NUL", "size"],
)
def test_an_environment_no_process_can_have_is_refused(home: Path, environment: dict[str, str]) -> None:
    assert "the environment" in problems(home, {}, environment=environment)[0]


def test_an_array_is_laid_out_with_its_indices_and_its_limit(home: Path) -> None:
    tasks = submit(home, {"array": {"first": 0, "last": 9, "step": 3, "limit": 2}}).tasks
    assert [task.array_index for task in tasks] == [0, 3, 6, 9]
    assert {task.batch_limit for task in tasks} == {2}
    assert len({task.batch for task in tasks}) == 1
    assert 0 <= (tasks[0].batch or -1) < 1 << 53


def test_tasks_of_one_request_share_a_batch_but_a_limited_array_has_its_own(home: Path) -> None:
    limited = {"array": {"first": 0, "last": 1, "limit": 1}}
    one, two, *array = submit(home, {}, {}, limited).tasks
    assert one.batch == two.batch is not None
    assert {task.batch for task in array} != {one.batch}


def test_who_waits_for_an_array_waits_for_all_of_it(home: Path) -> None:
    tasks = submit(
        home, {"array": {"first": 0, "last": 1}}, {"after": [{"id": -1, "kind": "any"}, {"id": 7}]}
    ).tasks
    assert set(tasks[-1].after) == {Dependency(-1, After.ANY), Dependency(-2, After.ANY), Dependency(7)}  # type: ignore[arg-type]


def test_tasks_that_wait_for_each_other_in_a_circle_are_refused(home: Path) -> None:
    circle = [
        {"after": [{"id": -2}]},
        {"after": [{"id": -3}]},
        {"after": [{"id": -1}]},
        {"after": [{"id": -1}]},
    ]
    assert "in a circle" in problems(home, *circle)[0]
    submit(home, {"after": [{"id": -2}]}, {})


def test_a_long_chain_is_no_circle(home: Path) -> None:
    chain = [{"after": [{"id": -place}]} if place else {} for place in range(3000)]
    assert len(submit(home, *chain).tasks) == 3000


def test_the_masters_own_environment_leaves_the_path_unless_it_was_active(home: Path) -> None:
    own = os.path.join(sys.prefix, "bin")
    assert sys.prefix != sys.base_prefix
    assert own_bin_to_strip({"PATH": f"{own}:/bin"}, sys.prefix) == own
    assert own_bin_to_strip({"PATH": f"{own}:/bin", "VIRTUAL_ENV": "/other"}, sys.prefix) == own
    assert own_bin_to_strip({"PATH": f"{own}:/bin", "VIRTUAL_ENV": sys.prefix}, sys.prefix) is None
    assert own_bin_to_strip({"PATH": "/bin"}, sys.prefix) is None
    assert submit(home, {}, environment={"PATH": own}).tasks[0].spec.strip_path == own

"""Commands that differ in values only are known by one signature; their last runs tell the next one's length."""

from __future__ import annotations

import pytest

from lab_gpu.core.learned import expected_run_s, signature


@pytest.mark.parametrize(
    ("command", "known_by"),
    [
        ("python -u train.py --lr 0.1 --epochs=5", "python|train.py|--epochs,--lr,-u"),
        ("/opt/conda/bin/python /data/ann/train.py", "python|train.py|"),
        ("CUDA_LAUNCH_BLOCKING=1 nohup python train.py -n5 -0.5", "python|train.py|-n"),
        ("python -m pkg.train --steps 100", "python|pkg.train|--steps,-m"),
        ("torchrun --nproc_per_node 2 train.py", "torchrun|train.py|--nproc_per_node"),
        ("python train.py lr=0.1 model=big", "python|train.py|lr=,model="),
        ("cd /data && python train.py --a 1; ./report.sh", "python|train.py|--a;report.sh||"),
        ("set -e\npython a.py\npython b.py", "set||-e;python|a.py|;python|b.py|"),
        ("sleep 5", "sleep||"),
    ],
)
def test_values_do_not_count(command: str, known_by: str) -> None:
    assert signature("ann", command) == f"ann|{known_by}"


def test_runs_that_differ_in_values_only_are_alike() -> None:
    assert signature("ann", "python t.py --lr 0.1 -w 3") == signature("ann", "python t.py -w 8 --lr=0.5")
    assert signature("ann", "python t.py") != signature("bob", "python t.py")
    assert signature("ann", "python t.py") != signature("ann", "python u.py")
    assert signature("ann", "python t.py --fast") != signature("ann", "python t.py")


@pytest.mark.parametrize("command", ["python -c 'print(1)'", "echo 'open", "", "  ", "A=1"])
def test_a_command_that_tells_nothing(command: str) -> None:
    assert signature("ann", command) is None


def test_the_last_two_runs_count() -> None:
    assert expected_run_s([]) is None
    assert expected_run_s([30.0]) == 30
    assert expected_run_s([10.0, 20.0, 9000.0]) == 15

"""Logs are kept within their size while they are written; what ended long ago goes."""

import errno
import os
from pathlib import Path

import pytest

from lab_gpu.service.keepers import logs
from lab_gpu.service.keepers.directories import AT_ONCE, DAY_S, DirectoryKeeper, KeepRule, Remains
from lab_gpu.service.keepers.logs import LogKeeper

MIB = 1 << 20


def written(path: Path, mib: int) -> Path:
    with path.open("ab") as file:
        for number in range(mib):
            file.write(bytes([65 + number % 26]) * MIB)
    return path


def keeper(path: Path, limit_mib: int = 8) -> tuple[LogKeeper, list[str]]:
    warnings: list[str] = []
    return LogKeeper(lambda: [str(path)], lambda: limit_mib, warnings.append), warnings


def test_the_middle_goes_and_the_offsets_hold(tmp_path: Path):
    log = written(tmp_path / "1.log", 20)
    keep, warnings = keeper(log)
    with log.open("ab") as writer:
        assert keep.run_once(1000.0) is not None
        writer.write(b"the end\n")
    content = log.read_bytes()
    assert len(content) == 20 * MIB + 8
    assert content.startswith(b"A" * MIB + b"B" * MIB)
    assert content.endswith(b"T" * MIB + b"the end\n")
    assert content[3 * MIB : 17 * MIB].count(0) == 14 * MIB
    assert log.stat().st_blocks * 512 <= 5 * MIB
    assert warnings == []


def test_it_is_cut_again_when_it_has_grown_again(tmp_path: Path):
    log = written(tmp_path / "1.log", 20)
    keep, _ = keeper(log)
    keep.run_once(1000.0)
    written(log, 10)
    keep.run_once(1010.0)
    assert log.stat().st_blocks * 512 <= 5 * MIB
    assert log.read_bytes()[:4] == b"AAAA"


def test_small_logs_and_vanished_ones_are_left_alone(tmp_path: Path):
    log = written(tmp_path / "1.log", 2)
    keep, _ = keeper(log)
    due = keep.run_once(1000.0)
    assert due is not None
    assert 1000.0 < due <= 1000.0 + logs.LATEST_S
    assert b"\0" not in log.read_bytes()
    log.unlink()
    assert keep.run_once(1001.0) is None


def test_no_limit_means_no_look(tmp_path: Path):
    keep, _ = keeper(written(tmp_path / "1.log", 2), limit_mib=0)
    assert keep.run_once(1000.0) is None


def test_a_fast_log_is_looked_at_sooner(tmp_path: Path):
    log = written(tmp_path / "1.log", 1)
    keep, _ = keeper(log, limit_mib=1024)
    keep.run_once(1000.0)
    quiet = keep.run_once(1010.0)
    written(log, 40)
    busy = keep.run_once(1011.0)
    assert quiet is not None
    assert busy is not None
    assert busy - 1011.0 < quiet - 1010.0


def test_a_file_system_that_cannot_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(path: str, begin: int, end: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)

    monkeypatch.setattr(logs, "punch", refused)
    keep, warnings = keeper(written(tmp_path / "1.log", 20))
    keep.run_once(1000.0)
    keep.run_once(1001.0)
    assert len(warnings) == 1
    assert warnings[0].startswith("cannot cut the middle out")


class House:
    """Attempts that ended one day apart, each with a log of 1 MiB."""

    def __init__(self, home: Path, count: int, mib: int = 1) -> None:
        self.remains = []
        for number in range(count):
            directory = home / "tasks" / f"task_{number}" / "1"
            directory.mkdir(parents=True)
            (directory / "run.sh").write_text("#!/bin/bash\n")
            log = home / f"{number}.log"
            written(log, mib) if mib else log.touch()
            self.remains.append(Remains(number, str(log), str(directory), number * DAY_S))

    def keeper(self, rule: KeepRule) -> tuple[DirectoryKeeper, list[str]]:
        warnings: list[str] = []
        keep = DirectoryKeeper(
            lambda after: [one for one in self.remains if one.ended_at > after],
            lambda attempt: self.remains[attempt],
            lambda: rule,
            warnings.append,
        )
        return keep, warnings

    def left(self) -> list[int]:
        found = [one for one in self.remains if os.path.exists(one.log_path)]
        assert found == [one for one in self.remains if os.path.exists(one.directory)]
        return [one.attempt for one in found]


def test_what_is_too_old_goes(tmp_path: Path):
    house = House(tmp_path, 6)
    keep, _ = house.keeper(KeepRule(days=3.5))
    assert keep.run_once(6 * DAY_S) is not None
    assert house.left() == [3, 4, 5]
    assert not (tmp_path / "tasks" / "task_0").exists()
    keep.run_once(8 * DAY_S)
    assert house.left() == [5]


def test_what_is_too_much_goes_oldest_first(tmp_path: Path):
    house = House(tmp_path, 6)
    keep, _ = house.keeper(KeepRule(total_mib=3))
    keep.run_once(6 * DAY_S)
    assert house.left() == [4, 5]


def test_without_limits_nothing_is_looked_at(tmp_path: Path):
    house = House(tmp_path, 1)
    keep, _ = house.keeper(KeepRule())
    assert keep.run_once(1e9) is None
    assert house.left() == [0]


def test_a_log_that_was_moved_is_found_and_the_new_one_kept(tmp_path: Path):
    house = House(tmp_path, 1)
    keep, _ = house.keeper(KeepRule(days=1))
    keep.run_once(DAY_S / 2)
    moved = tmp_path / "0.1.log"
    os.rename(house.remains[0].log_path, moved)
    newer = written(tmp_path / "0.log", 1)
    house.remains[0] = Remains(0, str(moved), house.remains[0].directory, 0.0)
    keep.run_once(3 * DAY_S)
    assert newer.exists()
    assert not moved.exists()


def test_much_to_remove_is_spread_over_runs(tmp_path: Path):
    house = House(tmp_path, AT_ONCE + 5, mib=0)
    keep, _ = house.keeper(KeepRule(days=0))
    assert keep.run_once(1e9) == 1e9 + 1.0
    assert len(house.left()) == 5
    keep.run_once(1e9 + 1)
    assert house.left() == []


def test_what_cannot_be_removed_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    house = House(tmp_path, 3)
    monkeypatch.setattr(os, "unlink", refused)
    keep, warnings = house.keeper(KeepRule(days=0))
    keep.run_once(1e9)
    assert len(warnings) == 1
    assert "Permission denied" in warnings[0]

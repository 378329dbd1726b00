"""A policy document becomes a Policy, or is refused with every mistake named."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lab_gpu.core.errors import Refused
from lab_gpu.core.policy import KEYS, READERS, Policy, changed, parse_policy, policy_to_doc


def problems_of(document: object) -> tuple[str, ...]:
    with pytest.raises(Refused) as caught:
        parse_policy(document)
    assert str(caught.value).startswith("cannot use the policy: ")
    return caught.value.problems


def test_nothing_said_is_the_documented_policy() -> None:
    policy = parse_policy(None)
    assert policy == parse_policy({}) == Policy()
    assert (policy.night_start, policy.night_end) == ("00:00", "08:00")
    assert (policy.base_idle_util_threshold, policy.night_idle_util_threshold) == (0.05, 0.20)
    assert (policy.backfill_time_limit_s, policy.night_low_bonus) == (3600, 0.5)


def test_every_field_can_be_read_and_written() -> None:
    assert {knob.name for knob in fields(Policy)} == set(READERS)
    policy = Policy(
        night_start="22:30",
        timezone="Asia/Shanghai",
        preemption=True,
        max_retries=None,
        log_root="/nas/logs",
        log_keep_days=None,
        cors_origins=("https://lab.example.org",),
    )
    assert parse_policy(policy_to_doc(policy)) == policy


def test_values_as_people_write_them() -> None:
    policy = parse_policy(
        {
            "backfill_time_limit_s": "30m",
            "backoff_duration": 120,
            "soft_timeout_s": "00:10:00",
            "foreign_memory_mib": "2G",
            "log_max_mib": "512",
            "night_start": 1350,  # YAML's reading of an unquoted 22:30
            "night_end": "7:05",
            "max_retries": "unlimited",
            "cors_origins": "http://localhost:5173",
            "base_idle_util_threshold": "0.1",
        }
    )
    assert policy.backfill_time_limit_s == 1800
    assert policy.backoff_duration_s == 120
    assert policy.soft_timeout_s == 600
    assert policy.foreign_memory_mib == 2048
    assert policy.log_max_mib == 512
    assert (policy.night_start, policy.night_end) == ("22:30", "07:05")
    assert policy.max_retries is None
    assert policy.cors_origins == ("http://localhost:5173",)
    assert policy.base_idle_util_threshold == 0.1


def test_every_mistake_is_named_at_once() -> None:
    found = problems_of(
        {"night_stat": "0:00", "night_end": "25:00", "preemption": "maybe", "soft_timeout_s": "30x", "zzz": 1}
    )
    assert len(found) == 5
    assert found[0] == "night_stat: there is no such key; did you mean night_start?"
    assert found[1].startswith("night_end: 25:00 is no hour")
    assert found[2] == "preemption: maybe is neither true nor false"
    assert found[3].startswith("soft_timeout_s: duration '30x'")
    assert found[4] == "zzz: there is no such key"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("base_idle_util_threshold", 5, "lies outside 0 to 1 (0.05 is 5 %)"),
        ("base_idle_util_threshold", True, "true is not a number"),
        ("base_idle_util_threshold", float("nan"), "is not a number"),
        ("backfill_time_limit_s", -1, "lies outside"),
        ("backfill_time_limit_s", [], "is not a duration"),
        ("max_retries", 1.5, "is not a whole number"),
        ("max_retry_before_backoff", 0, "lies outside 1"),
        ("visible_devices", "uuids", "is not one of index, uuid"),
        ("visible_devices", "screen", "is not one of index, uuid"),
        ("log_root", "logs", "is not an absolute path"),
        ("log_max_mib", "10X", "size '10X'"),
        ("cors_origins", ["lab.example.org"], "is no origin"),
        ("night_start", 1440, "is no hour"),
        ("night_start", None, "it has no value; the default is 00:00"),
        ("preemption", None, "it has no value; the default is false"),
        ("timezone", "", "is not a text"),
    ],
)
def test_a_bad_value_is_told_with_what_is_right(key: str, value: object, says: str) -> None:
    (found,) = problems_of({key: value})
    assert found.startswith(f"{key}: ")
    assert says in found


def test_a_key_and_its_other_name_are_one_key() -> None:
    assert "given twice" in problems_of({"backoff_duration": 1, "backoff_duration_s": 2})[0]


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(Refused, match="policy show"):
        parse_policy(["night_start"])


def test_a_time_zone_nobody_knows_is_refused() -> None:
    with pytest.raises(Refused, match="no time zone is called Mars/Olympus"):
        parse_policy({"timezone": "Mars/Olympus"}, knows_zone=lambda name: name == "Asia/Shanghai")
    assert parse_policy({"timezone": "Asia/Shanghai"}, lambda name: True).timezone == "Asia/Shanghai"


def test_changed_names_what_differs() -> None:
    assert changed(Policy(), Policy()) == []
    assert changed(Policy(), replace(Policy(), preemption=True, night_end="07:00")) == [
        "night_end",
        "preemption",
    ]


def test_keys_hold_every_name_that_may_be_written() -> None:
    assert "backoff_duration" in KEYS
    assert "night_start" in KEYS

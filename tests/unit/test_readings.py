"""Scenes of who uses what on a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_gpu.core.claims import Claim, OthersClaim
from lab_gpu.core.errors import Refused
from lab_gpu.core.ids import GpuUuid, NodeName
from lab_gpu.core.model import DeclaredNode
from lab_gpu.core.readings import (
    DRIVER_SHARE_MIB,
    foreign_use,
    parse_readings,
    really_used,
    virtual_facts,
    virtual_uuid,
)
from lab_gpu.core.snapshot import GpuFacts, GpuProcess

GPU = GpuUuid("GPU-1")


def gpu(*processes: GpuProcess, used_mib: int | None = None) -> GpuFacts:
    if used_mib is None:
        used_mib = sum(process.mib or 0 for process in processes)
    return GpuFacts(GPU, 0, "NVIDIA A100-SXM4-80GB", 81920, used_mib, processes=processes)


def process(pid: int, mib: int | None, **more: object) -> GpuProcess:
    return GpuProcess(pid, pid * 10, mib, **more)  # type: ignore[arg-type]


def claim(pid: int, mib: int, owner: str = "bob", on: GpuUuid = GPU) -> OthersClaim:
    return OthersClaim(owner, Claim(on, mib, pid, pid * 10))


def test_an_empty_gpu_is_nobodys() -> None:
    use = foreign_use(gpu(used_mib=DRIVER_SHARE_MIB), (), (), 0, ())
    assert (use.foreign_mib, use.foreign_busy_mib, use.note, use.told_apart, use.processes) == (
        0,
        0,
        None,
        True,
        (),
    )


def test_ours_is_told_by_uni_id_by_name_and_by_descent() -> None:
    by_id = process(1, 100, uni_id="ours")
    by_name = process(2, 200)
    by_descent = process(3, 300, ancestors=((9, 90), (8, 80)))
    stranger = process(4, 400, uni_id="another", ancestors=((9, 91),))  # a later process of that pid
    facts = gpu(by_id, by_name, by_descent, stranger)
    use = foreign_use(facts, {"ours"}, {(2, 20), (9, 90)}, 0, ())
    assert use.foreign_mib == 400 and use.processes == (stranger,)
    assert really_used(facts, "ours", {(2, 20), (9, 90)}) == 600
    assert really_used(facts, "ours", ()) == 100 and really_used(facts, None, ()) == 0


def test_a_foreign_process_is_shown_with_owner_command_and_memory() -> None:
    use = foreign_use(gpu(process(7, 4096, owner="eve", command="python train.py")), (), (), 0, ())
    assert use.note == "eve's python train.py (pid 7): 4 GiB"


def test_many_are_summed_up_largest_first() -> None:
    crowd = [process(pid, pid * 100, owner="eve", command="x") for pid in range(1, 6)]
    note = foreign_use(gpu(*crowd), (), (), 0, ()).note or ""
    assert note.startswith("eve's x (pid 5)") and note.endswith("2 more")


def test_display_servers_hold_memory_but_leave_a_gpu_idle() -> None:
    screen = process(1, 1500, graphics=True, command="/usr/lib/xorg/Xorg vt2 -keeptty")
    pretender = process(2, 300, command="Xorg")
    viewer = process(3, 200, graphics=True, command="blender")
    use = foreign_use(gpu(screen, pretender, viewer), (), (), 0, ())
    assert (use.foreign_mib, use.foreign_busy_mib) == (2000, 500)


def test_where_the_driver_tells_no_memory_foreign_is_what_we_did_not_promise() -> None:
    facts = gpu(process(1, None, uni_id="ours"), process(2, None), used_mib=30000)
    use = foreign_use(facts, {"ours"}, (), 20000, ())
    assert (use.foreign_mib, use.told_apart) == (10000, False)
    assert "9.8 GiB that the driver ascribes to no process" in (use.note or "")
    assert foreign_use(facts, {"ours"}, (), 40000, ()).foreign_mib == 0


def test_memory_of_processes_nobody_lists_counts_as_foreign() -> None:
    use = foreign_use(gpu(used_mib=9000), (), (), 0, ())
    assert (use.foreign_mib, use.told_apart) == (9000, False)


def test_what_is_known_to_be_foreign_is_never_estimated_away() -> None:
    facts = gpu(process(1, None, uni_id="ours"), process(2, 5000), used_mib=6000)
    assert foreign_use(facts, {"ours"}, (), 20000, ()).foreign_mib == 5000


def test_anothers_claim_counts_before_it_is_used() -> None:
    use = foreign_use(gpu(), (), (), 0, (claim(5, 10240), claim(6, 9, on=GpuUuid("GPU-2"))))
    assert (use.foreign_mib, use.foreign_busy_mib, use.told_apart) == (10240, 10240, True)
    assert use.note == "bob's Lab-GPU: 10 GiB"
    assert [(p.pid, p.mib, p.owner, p.claimed_by) for p in use.processes] == [(5, 10240, "bob", "bob")]


@pytest.mark.parametrize(("used_mib", "counts_mib"), [(3000, 8000), (9000, 9000)])
def test_the_larger_of_claimed_and_used_counts(used_mib: int, counts_mib: int) -> None:
    worker = process(7, used_mib, ancestors=((6, 60), (5, 50)))
    use = foreign_use(gpu(worker), (), (), 0, (claim(5, 8000),))
    assert use.foreign_mib == counts_mib and use.processes[0].claimed_by == "bob"


def test_a_process_beside_a_claim_counts_on_top() -> None:
    use = foreign_use(gpu(process(7, 3000, owner="bob")), (), (), 0, (claim(5, 8000),))
    assert use.foreign_mib == 11000


def test_each_process_goes_to_its_nearest_claim() -> None:
    """A master's own claim (of a start on its way) must not swallow what its running attempts use."""
    worker = process(7, 9000, ancestors=((6, 60), (5, 50)))
    assert foreign_use(gpu(worker), (), (), 0, (claim(5, 4000), claim(6, 8000))).foreign_mib == 13000


def test_two_claims_of_one_process_are_added() -> None:
    assert foreign_use(gpu(process(5, 7000)), (), (), 0, (claim(5, 4000), claim(5, 2000))).foreign_mib == 7000
    assert foreign_use(gpu(process(5, 100)), (), (), 0, (claim(5, 4000), claim(5, 2000))).foreign_mib == 6000


_PROCESSES = st.builds(
    process,
    st.integers(1, 9),
    st.none() | st.integers(0, 20000),
    graphics=st.booleans(),
    uni_id=st.sampled_from([None, "ours", "other"]),
    command=st.sampled_from(["Xorg", "python", None]),
)


@given(
    st.lists(_PROCESSES, max_size=6, unique_by=lambda p: p.pid),
    st.integers(0, 81920),
    st.integers(0, 81920),
    st.lists(st.builds(claim, st.integers(1, 12), st.integers(0, 81920)), max_size=4),
)
def test_nothing_foreign_is_ever_lost(
    processes: list[GpuProcess], used_mib: int, promised_mib: int, claims: list[OthersClaim]
) -> None:
    facts = gpu(*processes, used_mib=used_mib)
    use = foreign_use(facts, {"ours"}, (), promised_mib, claims)
    theirs_mib = sum(p.mib or 0 for p in processes if p.uni_id != "ours")
    assert use.foreign_mib >= max(theirs_mib, sum(each.claim.mib for each in claims), 0)
    assert 0 <= use.foreign_busy_mib <= use.foreign_mib
    assert use.told_apart or use.foreign_mib >= used_mib - promised_mib
    assert not any(p.uni_id == "ours" for p in use.processes if not p.claimed_by)


# --- virtual nodes -----------------------------------------------------------------------------

NODE = DeclaredNode(NodeName("node-1"), virtual=True, gpus=2, vram_mib=24576, gpu_type="RTX 3090")


def test_a_virtual_gpu_is_busy_while_a_task_runs_on_it() -> None:
    idle, busy = virtual_facts(NODE, {virtual_uuid("node-1", 1)}, {})
    assert (idle.index, idle.name, idle.total_mib, idle.utilization, idle.used_mib) == (
        0,
        "RTX 3090",
        24576,
        0,
        0,
    )
    assert (busy.index, busy.utilization) == (1, 100) and busy.uuid != idle.uuid


def test_a_readings_file_has_the_last_word() -> None:
    text = '{"node-1": {"0": {"used_mib": 20000, "utilization": 87.4, "temperature_c": 71}, "1": {}}}'
    readings = parse_readings(text)
    first, second = virtual_facts(NODE, set(), readings["node-1"])
    assert (first.used_mib, first.utilization, first.temperature_c) == (20000, 87, 71)
    assert (second.used_mib, second.utilization, second.temperature_c) == (0, 0, None)
    assert foreign_use(first, (), (), 15000, ()).foreign_mib == 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "the file must be an object"),
        ('{"n": []}', "n must be an object"),
        ('{"n": {"x": {}}}', "'x' is no GPU index"),
        ('{"n": {"01": {}}}', "'01' is no GPU index"),
        ('{"n": {"0": {"util": 3}}}', "util is not one of"),
        ('{"n": {"0": {"utilization": 101}}}', "utilization must be a number from 0 to 100"),
        ('{"n": {"0": {"used_mib": -1}}}', "used_mib must be a number from 0"),
        ('{"n": {"0": {"used_mib": true}}}', "used_mib must be a number"),
        ('{"n": {"0": {"used_mib": NaN}}}', "used_mib must be a number"),
        ('{"n": {"0": 5}}', "n GPU 0 must be an object"),
    ],
)
def test_mistakes_in_a_readings_file_are_named(text: str, words: str) -> None:
    with pytest.raises(Refused, match=r"^cannot use readings\.json: .*; correct the file$") as refused:
        parse_readings(text)
    assert words in str(refused.value)


def test_every_mistake_is_listed() -> None:
    with pytest.raises(Refused) as refused:
        parse_readings('{"n": {"0": {"a": 1, "used_mib": "x"}, "b": {}}}')
    assert len(refused.value.problems) == 3

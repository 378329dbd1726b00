"""What a reading means: how much of a GPU is other people's, what a virtual one reads.

A process is ours when it carries a uni_id of ours, or is or comes from a process of ours; the rest
is foreign. Another master's claim is foreign whether or not its memory is used: the larger counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import JSONDecodeError, loads
from math import isfinite

from lab_gpu.core.claims import OthersClaim
from lab_gpu.core.errors import Refused
from lab_gpu.core.ids import GpuUuid
from lab_gpu.core.model import DeclaredNode
from lab_gpu.core.snapshot import GpuFacts, GpuProcess
from lab_gpu.core.units import format_mib

# Page tables, firmware, rounding: below this, memory that no process accounts for is the driver's.
DRIVER_SHARE_MIB = 512
NOTE_ENTRIES = 3
NOTE_COMMAND_LETTERS = 40
_DISPLAY_SERVERS = (
    "X Xorg Xorg.bin Xwayland Xvnc budgie-wm cinnamon compiz cosmic-comp gala gamescope gdm-x-session"
    " gnome-remote-desktop-daemon gnome-session-binary gnome-shell greetd Hyprland kded5 kded6 ksmserver kwin"
    " kwin_wayland kwin_x11 labwc lightdm lightdm-gtk-greeter marco metacity muffin mutter mutter-x11-frames"
    " picom plasmashell river sddm sddm-greeter sddm-greeter-qt6 sway wayfire weston xdg-desktop-portal"
    " xdg-desktop-portal-gnome xfwm4"
)
DISPLAY_SERVERS = frozenset(_DISPLAY_SERVERS.split())

ProcessNames = Collection[tuple[int, int]]  # (pid, start time)


@dataclass(frozen=True, slots=True)
class ForeignUse:
    """What of a GPU is not ours.

    `told_apart` false: the driver does not say whose all the memory is, so it was estimated.
    A claim whose process uses nothing yet stands among the processes, with what it claims.
    """

    foreign_mib: int = 0
    foreign_busy_mib: int = 0  # without display servers: decides idleness
    note: str | None = None
    told_apart: bool = True
    processes: tuple[
        GpuProcess, ...
    ] = ()  # a claim whose process uses nothing yet stands here with what it claims


def foreign_use(
    gpu: GpuFacts,
    our_uni_ids: Collection[str],
    our_processes: ProcessNames,
    promised_by_us_mib: int,
    others_claims: Iterable[OthersClaim],
) -> ForeignUse:
    foreign = [each for each in gpu.processes if not is_ours(each, our_uni_ids, our_processes)]
    claims = [each for each in others_claims if each.claim.gpu == gpu.uuid]
    held, unclaimed = _share_out(foreign, claims)
    known_mib = sum(each.mib for each in held) + sum(process.mib or 0 for process in unclaimed)
    told_apart = uses_are_told_apart(gpu)
    foreign_mib = known_mib if told_apart else max(known_mib, gpu.used_mib - promised_by_us_mib)
    display_mib = sum(process.mib or 0 for process in unclaimed if is_display_server(process))
    return ForeignUse(
        foreign_mib=foreign_mib,
        foreign_busy_mib=max(0, foreign_mib - display_mib),
        note=_note(held, unclaimed, foreign_mib - known_mib),
        told_apart=told_apart,
        processes=(*(process for each in held for process in each.shown()), *unclaimed),
    )


def really_used(gpu: GpuFacts, uni_id: str | None, processes: ProcessNames) -> int:
    """MiB that one attempt's processes hold; what the driver does not tell counts as nothing."""
    ours = (uni_id,) if uni_id else ()
    return sum(process.mib or 0 for process in gpu.processes if is_ours(process, ours, processes))


def is_ours(process: GpuProcess, uni_ids: Collection[str], processes: ProcessNames) -> bool:
    if process.uni_id is not None and process.uni_id in uni_ids:
        return True
    return any(name in processes for name in _line(process))


def is_display_server(process: GpuProcess) -> bool:
    """What draws and is known to: a program that only takes such a name and computes is not believed."""
    words = (process.command or "").split(maxsplit=1)
    return process.graphics and bool(words) and words[0].rpartition("/")[2] in DISPLAY_SERVERS


def uses_are_told_apart(gpu: GpuFacts) -> bool:
    if any(process.mib is None for process in gpu.processes):
        return False
    return gpu.used_mib - sum(process.mib or 0 for process in gpu.processes) <= DRIVER_SHARE_MIB


# --- claims ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """One claim of another master, with the processes that came from it."""

    by: OthersClaim
    processes: tuple[GpuProcess, ...]

    @property
    def mib(self) -> int:
        return max(self.by.claim.mib, sum(process.mib or 0 for process in self.processes))

    def shown(self) -> tuple[GpuProcess, ...]:
        owner, claim = self.by.owner, self.by.claim
        if not self.processes:
            idle = GpuProcess(claim.pid, claim.started, claim.mib, owner=owner, claimed_by=owner)
            return (idle,)
        return tuple(replace(process, claimed_by=owner) for process in self.processes)


def _share_out(
    foreign: Sequence[GpuProcess], claims: Sequence[OthersClaim]
) -> tuple[list[_Held], list[GpuProcess]]:
    """Each process goes to the claim of its nearest relative; two claims for one process are one holder's."""
    by_name: dict[tuple[int, int], OthersClaim] = {}
    for each in claims:
        name = (each.claim.pid, each.claim.started)
        before = by_name.get(name)
        total_mib = each.claim.mib + (before.claim.mib if before else 0)
        by_name[name] = replace(each, claim=replace(each.claim, mib=total_mib))
    members: dict[tuple[int, int], list[GpuProcess]] = {name: [] for name in by_name}
    unclaimed: list[GpuProcess] = []
    for process in foreign:
        relative = next((each for each in _line(process) if each in members), None)
        (unclaimed if relative is None else members[relative]).append(process)
    return [_Held(by_name[name], tuple(found)) for name, found in members.items()], unclaimed


def _line(process: GpuProcess) -> Iterable[tuple[int, int]]:
    return ((process.pid, process.started), *process.ancestors)


def _note(held: Sequence[_Held], unclaimed: Sequence[GpuProcess], estimated_mib: int) -> str | None:
    entries = [(each.mib, f"{each.by.owner}'s Lab-GPU: {format_mib(each.mib)}") for each in held]
    entries += [(process.mib or 0, _in_words(process)) for process in unclaimed]
    entries.sort(key=lambda entry: -entry[0])
    words = [text for _, text in entries[:NOTE_ENTRIES]]
    if len(entries) > NOTE_ENTRIES:
        words.append(f"{len(entries) - NOTE_ENTRIES} more")
    if estimated_mib > 0:
        words.append(f"{format_mib(estimated_mib)} that the driver ascribes to no process")
    return ", ".join(words) or None


def _in_words(process: GpuProcess) -> str:
    command = process.command or "unknown program"
    if len(command) > NOTE_COMMAND_LETTERS:
        command = command[: NOTE_COMMAND_LETTERS - 1] + "…"
    size = "memory unknown" if process.mib is None else format_mib(process.mib)
    return f"{process.owner or 'somebody'}'s {command} (pid {process.pid}): {size}"


# --- virtual nodes -----------------------------------------------------------------------------

READING_LIMITS = {"used_mib": None, "utilization": 100, "temperature_c": 200}
NodeReadings = Mapping[str, Mapping[str, float]]  # by the GPU's index, as text


VIRTUAL_PREFIX = "virtual-"


def virtual_uuid(node: str, index: int) -> GpuUuid:
    return GpuUuid(f"{VIRTUAL_PREFIX}{node}-{index}")


def virtual_facts(
    declared: DeclaredNode, busy: Collection[GpuUuid], readings: NodeReadings
) -> tuple[GpuFacts, ...]:
    """GPUs that exist on paper: in full use while a task runs on them, or what their readings say."""
    return tuple(
        _virtual_gpu(declared, index, busy, readings.get(str(index), {}))
        for index in range(declared.gpus or 1)
    )


def parse_readings(text: str) -> dict[str, dict[str, dict[str, float]]]:
    """`<home>/readings.json`: what virtual GPUs shall read, by node and index; each reading may be left out.

    {"node-1": {"0": {"used_mib": 20000, "utilization": 87, "temperature_c": 71}}}
    """
    try:
        document = loads(text)
    except (JSONDecodeError, RecursionError) as error:
        raise Refused(f"cannot use readings.json: it is not JSON ({error}); correct the file") from None
    problems: list[str] = []
    nodes = _objects(document, "the file", problems)
    found = {
        node: {index: _gpu_readings(f"{node} GPU {index}", gpu, problems) for index, gpu in gpus.items()}
        for node, gpus in ((node, _gpus(node, each, problems)) for node, each in nodes.items())
    }
    if problems:
        raise Refused(f"cannot use readings.json: {problems[0]}; correct the file", tuple(problems))
    return found


def _virtual_gpu(
    declared: DeclaredNode, index: int, busy: Collection[GpuUuid], readings: Mapping[str, float]
) -> GpuFacts:
    uuid = virtual_uuid(declared.name, index)
    temperature_c = readings.get("temperature_c")
    return GpuFacts(
        uuid=uuid,
        index=index,
        name=declared.gpu_type or "virtual GPU",
        total_mib=declared.vram_mib or 0,
        used_mib=round(readings.get("used_mib", 0)),
        utilization=round(readings.get("utilization", 100 if uuid in busy else 0)),
        temperature_c=None if temperature_c is None else round(temperature_c),
    )


def _objects(value: object, where: str, problems: list[str]) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    problems.append(f"{where} must be an object in braces")
    return {}


def _gpus(node: str, value: object, problems: list[str]) -> dict[str, object]:
    gpus = _objects(value, node, problems)
    wrong = [
        index for index in gpus if not (index.isascii() and index.isdigit() and str(int(index)) == index)
    ]
    problems += [f"{node}: {index!r} is no GPU index (0, 1, …)" for index in wrong]
    return {index: each for index, each in gpus.items() if index not in wrong}


def _gpu_readings(where: str, value: object, problems: list[str]) -> dict[str, float]:
    readings: dict[str, float] = {}
    for name, each in _objects(value, where, problems).items():
        if name not in READING_LIMITS:
            problems.append(f"{where}: {name} is not one of {', '.join(READING_LIMITS)}")
            continue
        limit = READING_LIMITS[name]
        is_number = isinstance(each, int | float) and not isinstance(each, bool) and isfinite(each)
        if is_number and each >= 0 and (limit is None or each <= limit):  # type: ignore[operator]
            readings[name] = each  # type: ignore[assignment]
        else:
            problems.append(f"{where}: {name} must be a number from 0" + (f" to {limit}" if limit else ""))
    return readings

"""`lab-gpu status`: GPUs and open tasks on one screen."""

from __future__ import annotations

import argparse

from lab_gpu.cli import frame, screen
from lab_gpu.cli.tasks_table import task_lines
from lab_gpu.core.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

SUMMARY = "GPUs and open tasks on one screen"
EXAMPLES = ("lab-gpu status", "lab-gpu status --watch", "lab-gpu status --json")
MOST_TASKS = 200
GPU_COLUMNS = ("GPU", "*TYPE", ">MEMORY", ">PROMISED", ">UTIL", ">TEMP", "*WHO")


def arguments(parser: argparse.ArgumentParser) -> None:
    limit = frame.whole_number("--limit", 1, 10_000)
    parser.add_argument(
        "--limit", type=limit, default=MOST_TASKS, metavar="N", help=f"at most N tasks ({MOST_TASKS})"
    )
    frame.add_watch_flag(parser)
    frame.add_master_flags(parser)
    frame.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    api = frame.master(args)
    query = {"limit": args.limit}
    return frame.watch(args, api, lambda: api.get("/api/v1/status", query), draw)


def draw(document: Json) -> list[str]:
    width = screen.width()
    lines = [headline(document), ""]
    if document["nodes"]:
        lines += [*gpu_lines(document["nodes"], width), ""]
    else:
        lines += ["no GPUs are known: lab-gpu server add-node declares a virtual node", ""]
    tasks = document["tasks"]
    lines += task_lines(tasks, width) if tasks else ["nothing is queued or running"]
    hidden = open_count(document) - sum(task["state"] in ("queued", "running") for task in tasks)
    if hidden > 0:
        lines.append(screen.colour(f"{hidden} more are open: lab-gpu list --state queued,running", "dim"))
    return lines + lease_lines(document.get("leases") or [], width)


def headline(document: Json) -> str:
    server, counts = document["server"], document["counts"]
    words = ", ".join(f"{counts[state]} {state}" for state in ("running", "queued") if counts.get(state))
    where = f"lab-gpu {server['version']} on {server['host']}"
    manual = "; plans only at lab-gpu server tick" if server.get("manual_tick") else ""
    return screen.colour(f"{where}: {words or 'idle'}{manual}", "bold")


def open_count(document: Json) -> int:
    return sum(document["counts"].get(state, 0) for state in ("queued", "running"))


def gpu_lines(nodes: list[Json], width: int | None) -> list[str]:
    rows = [row for node in nodes for row in node_rows(node)]
    return screen.table(rows, GPU_COLUMNS, width)


def node_rows(node: Json) -> list[list[screen.Cell]]:
    if not node["gpus"]:
        return [[str(node["name"]), "no GPUs", "", "", "", "", str(node.get("closed") or "")]]
    return [gpu_row(node, gpu) for gpu in node["gpus"]]


def gpu_row(node: Json, gpu: Json) -> list[screen.Cell]:
    mark = " (virtual)" if node.get("virtual") else ""
    used, total = gpu.get("used_mib"), gpu["total_mib"]
    memory = f"{short_gib(used)}/{format_mib(total)}" if used is not None else format_mib(total)
    busy = gpu.get("utilization")
    return [
        f"{node['name']}:{gpu['index']}{mark}",
        str(gpu.get("name") or ""),
        memory,
        format_mib(gpu["promised_mib"]) if gpu.get("promised_mib") else "",
        "" if busy is None else (f"{busy:.0f} %", "green" if busy else "dim"),
        "" if gpu.get("temperature_c") is None else f"{gpu['temperature_c']:.0f} C",
        who(node, gpu),
    ]


def short_gib(mib: float) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0")


def who(node: Json, gpu: Json) -> screen.Cell:
    """What keeps a GPU closed, or who holds it: tasks, leases, and processes that are none of ours."""
    closed = gpu.get("closed") or node.get("closed")
    if closed:
        return f"closed: {closed}", "red"
    words = [f"{each['kind']} {each['id']}" for each in gpu.get("holders") or ()]
    for each in gpu.get("foreign") or ():
        size = f" {format_mib(each['mib'])}" if each.get("mib") else ""
        words.append(f"{each.get('owner') or '?'}: {each.get('command') or 'pid ' + str(each['pid'])}{size}")
    return ", ".join(words) if words else ("free", "dim")


def lease_lines(leases: list[Json], width: int | None) -> list[str]:
    if not leases:
        return []
    rows: list[list[screen.Cell]] = [
        [
            str(lease["id"]),
            screen.state_cell(lease["state"]),
            str(lease.get("name") or ""),
            str(lease.get("owner") or ""),
            screen.gpu_names(lease.get("gpus") or ()),
            screen.ago(lease.get("granted_at") or lease.get("asked_at")),
            str(lease.get("reason") or ""),
        ]
        for lease in leases
    ]
    return [
        "",
        *screen.table(rows, (">LEASE", "STATE", "*NAME", "OWNER", "*GPUS", "SINCE", "*REASON"), width),
    ]

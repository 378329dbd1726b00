"""The orders the doors may send, by name. One file per kind of order holds what is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab_gpu.service import admit, answers, caretaking, declare, leasing, outside, planning, wishes
from lab_gpu.service.house import House
from lab_gpu.wire.inside import Caller

Args = Mapping[str, Any]
Operation = Callable[[House, Caller, Args], Any]

READS = frozenset({"read", "reasons", "why", "live", "server", "preview", "lease", "leases"})

OPERATIONS: dict[str, Operation] = {
    "add_tasks": admit.add_tasks,
    "act": wishes.act,
    "edit": wishes.edit,
    "preview": lambda house, who, args: planning.preview(house, args["tasks"]),
    "reasons": lambda house, who, args: answers.reasons(house, args),
    "why": lambda house, who, args: answers.why(house, args),
    "read": lambda house, who, args: {"rows": house.read_rows(args["question"], args["args"])},
    "live": lambda house, who, args: answers.live(house),
    "server": lambda house, who, args: answers.server(house),
    "lease_ask": leasing.ask,
    "lease": lambda house, who, args: leasing.show(house, args),
    "leases": lambda house, who, args: leasing.listing(house),
    "lease_beat": leasing.beat,
    "lease_release": leasing.release,
    "add_node": declare.add_node,
    "remove_node": declare.remove_node,
    "drain": declare.drain,
    "undrain": declare.undrain,
    "outside_begin": outside.begin,
    "outside_end": outside.end,
    "tick": caretaking.tick,
    "policy_reload": caretaking.policy_reload,
    "stop": caretaking.stop,
}

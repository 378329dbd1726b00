"""What people say about nodes: declare a virtual one, name and limit the host's own, close and open them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab_gpu.core.errors import NotFound, Refused, TooLate
from lab_gpu.core.ids import NodeName
from lab_gpu.core.model import DeclaredNode
from lab_gpu.core.names import is_of_type
from lab_gpu.service.gpu_book import Closed
from lab_gpu.service.house import Answer, House
from lab_gpu.wire.inside import Caller

GIB = 1024
DEFAULT_VIRTUAL_MIB = 24 * GIB
MOST_VIRTUAL_GPUS = 1024


def add_node(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """The same node again changes nothing; with other values it is refused."""
    if args.get("address"):
        raise Refused(
            f"cannot add node {args['name']} at {args['address']}: this release runs on one machine;"
            " leave --address out to name this host's GPUs"
        )
    virtual = bool(args.get("virtual")) or not house.book.has_real
    node = DeclaredNode(
        name=NodeName(args["name"]),
        virtual=virtual,
        gpus=args.get("gpus") or (1 if virtual else None),
        vram_mib=args.get("vram_mib") or (DEFAULT_VIRTUAL_MIB if virtual else None),
        gpu_type=args.get("gpu_type"),
    )
    known = house.book.declared.get(node.name)
    if known == node:
        return {
            "name": node.name,
            "created": False,
            "text": f"node {node.name} is known already, with the same values",
        }
    _check(house, node, known)
    row = {
        "name": node.name,
        "virtual": virtual,
        "gpus": node.gpus,
        "vram_mib": node.vram_mib,
        "gpu_type": node.gpu_type,
    }
    house.ledger.nodes.add(row, who.user, house.now)
    house.ledger.event(house.now, "node_added", who=who.user, node=node.name)
    house.book.declare(node)
    house.changed = True
    return {
        "name": node.name,
        "created": True,
        "text": f"{'virtual node' if virtual else 'node'} {node.name} added",
    }


def _check(house: House, node: DeclaredNode, known: DeclaredNode | None) -> None:
    if known is not None:
        raise Refused(
            f"cannot add node {node.name}: it is known with other values;"
            f" `lab-gpu server remove-node --name {node.name}` first"
        )
    if node.gpus is not None and not 1 <= node.gpus <= MOST_VIRTUAL_GPUS:
        raise Refused(f"cannot add node {node.name}: {node.gpus} GPUs; give 1 to {MOST_VIRTUAL_GPUS}")
    if node.virtual:
        return
    if any(not each.virtual for each in house.book.declared.values()):
        raise Refused(
            f"cannot add node {node.name}: this host's GPUs are node {house.book.local_name} already;"
            " add --virtual for one without GPUs of its own"
        )
    real = house.book.facts.gpus
    if node.gpus and node.gpus > len(real):
        raise Refused(
            f"cannot add node {node.name} with {node.gpus} GPUs: this host has {len(real)}; lower --gpus"
        )
    smallest = min(gpu.total_mib for gpu in real)
    if node.vram_mib and node.vram_mib > -(-smallest // GIB) * GIB:
        raise Refused(
            f"cannot add node {node.name} with {node.vram_mib // GIB} GiB a GPU:"
            f" this host's have {smallest / GIB:.1f} GiB; lower --vram"
        )
    _check_type(node, [gpu.name for gpu in real])


def _check_type(node: DeclaredNode, names: list[str]) -> None:
    if node.gpu_type and not all(is_of_type(name, node.gpu_type) for name in names):
        raise Refused(
            f"cannot add node {node.name} as {node.gpu_type}: this host has {', '.join(sorted(set(names)))};"
            " leave --gpu-type out"
        )


def remove_node(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    name = NodeName(args["name"])
    if name not in house.book.declared:
        raise NotFound(f"cannot remove node {name}: nobody declared it; known: {_known(house)}")
    holders = house.book.holders_on(name)
    if holders:
        what = ", ".join(f"{each.kind} {each.id}" for each in holders[:5])
        raise TooLate(f"cannot remove node {name}: {what} still run there; cancel them or wait")
    house.ledger.nodes.remove(name)
    house.ledger.event(house.now, "node_removed", who=who.user, node=name)
    house.launcher.revoke_all()
    house.book.forget(name)
    house.changed = True
    return {"name": name}


def _known(house: House) -> str:
    return ", ".join(house.book.nodes()) or "none"


def _target(house: House, node: str, gpu: int | None) -> tuple[str, str]:
    view = house.book.nodes().get(NodeName(node))
    if view is None:
        raise NotFound(f"cannot find node {node}: known are {_known(house)}")
    if gpu is None:
        return node, ""
    for each in view.gpus:
        if each.index == gpu:
            return node, each.uuid
    raise NotFound(
        f"cannot find GPU {gpu} on {node}: it has {', '.join(str(each.index) for each in view.gpus)}"
    )


def drain(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    """Nothing new starts there; what runs goes on."""
    node, gpu = _target(house, args["node"], args.get("gpu"))
    reason = f"drained by {who.user}" + (f": {args['reason']}" if args.get("reason") else "")
    house.ledger.nodes.close(node, gpu, reason, who.user, house.now)
    house.ledger.event(house.now, "drained", who=who.user, node=node, gpu=gpu, reason=args.get("reason"))
    house.book.close(node, gpu, Closed(reason, who.user, house.now))
    house.changed = True
    running = [f"{each.kind} {each.id}" for each in house.book.holders_on(NodeName(node))]
    return {"node": node, "gpu": args.get("gpu"), "running": running}


def undrain(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    node, gpu = _target(house, args["node"], args.get("gpu"))
    house.ledger.nodes.open(node, gpu)
    house.ledger.event(house.now, "undrained", who=who.user, node=node, gpu=gpu)
    was_closed = house.book.open(node, gpu)
    house.changed = True
    return {"node": node, "gpu": args.get("gpu"), "was_closed": was_closed}


def set_aside_unreleased(house: House) -> None:
    """A GPU whose memory did not come back in time takes nothing new until somebody looked."""
    now = house.now
    for uuid, gone in house.book.never_back(now, house.policy.gpu_memory_wait_s):
        node = gone.holder.grant.node
        reason = (
            f"set aside: the memory of {gone.holder.kind} {gone.holder.id} was not released after it ended"
        )
        house.ledger.nodes.close(node, uuid, reason, None, now)
        house.ledger.event(now, "set_aside", node=node, gpu=uuid, reason=reason)
        house.book.close(node, uuid, Closed(reason, None, now))
        house.changed = True

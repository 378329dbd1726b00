"""Leases: GPUs held with no command of ours on them, for as long as their process lives or is heard."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lab_gpu.core.documents import grant_from_doc, request_from_doc
from lab_gpu.core.errors import Forbidden, NotFound, Refused
from lab_gpu.core.ids import LeaseId
from lab_gpu.core.inventory import impossible
from lab_gpu.core.model import Grant, Lease, LeaseState, ProcessName, Request
from lab_gpu.service import promises
from lab_gpu.service.house import Answer, House, Live
from lab_gpu.service.planning import gpus_doc
from lab_gpu.wire.inside import Caller

MOST_LEASES = 500  # each costs the loop a descriptor, of which it may have no more than 1,024


def ask(house: House, who: Caller, args: Mapping[str, Any]) -> Answer | Callable[[], Answer]:
    """Answered after the pass that follows, so that what is free is granted at once."""
    request = request_from_doc(args["request"])
    inside = args.get("inside_uni_id")
    live = next((each for each in house.live.values() if each.uni_id == inside), None) if inside else None
    if live:
        return _inside(house, live, request)
    refused = impossible(request, house.book.nodes(), "lease")
    if refused:
        raise Refused(f"cannot hold GPUs: {refused}")
    if len(house.leases) >= MOST_LEASES:
        raise Refused(
            f"cannot hold GPUs: {MOST_LEASES} leases are held or waited for already; release some first"
        )
    process = ProcessName(args["pid"], args["pid_started"]) if args.get("pid") else None
    now = house.now
    expires = now + args["ttl_s"] if args.get("ttl_s") else None
    if process is None and expires is None:
        raise Refused(
            "cannot hold GPUs: nobody could tell when to take them back; give ttl_s and send heartbeats"
        )
    row = {
        "owner": who.user,
        "uid": who.uid,
        "name": args.get("name"),
        "priority": args.get("priority") or 0,
        "pid": process.pid if process else None,
        "pid_started": process.started if process else None,
        "boot_id": house.engine.boot_id,
        "asked_at": now,
        "expires_at": expires,
    }
    ident = house.ledger.leases.add(row, request)
    house.ledger.event(now, "lease_asked", who=who.user, lease=ident)
    lease = Lease(
        ident,
        who.user,
        who.uid,
        args.get("name"),
        LeaseState.WAITING,
        request,
        process,
        None,
        now,
        None,
        expires,
    )
    house.leases[ident] = lease
    house.changed = True
    if process:
        house.after_commit.append(lambda: house.watch("lease", ident, process))
    return lambda: show(house, {"id": ident})


def _inside(house: House, live: Live, request: Request) -> Answer:
    """Inside an attempt its own GPUs are what there is."""
    have = live.grant
    enough = len(have.gpus) >= request.gpus and (
        have.vram_mib is None or (request.vram_mib is not None and request.vram_mib <= have.vram_mib)
    )
    if not enough:
        raise Refused(
            f"cannot take GPUs inside task {live.task}: it has {len(have.gpus)}"
            f"{f' with {have.vram_mib} MiB each' if have.vram_mib else ''};"
            " ask for more when the task is submitted"
        )
    count = request.gpus
    part = Grant(have.node, have.gpus[:count], have.indices[:count], have.vram_mib, have.virtual)
    return {
        "id": 0,
        "state": "held",
        "owner": None,
        "name": None,
        "node": part.node,
        "gpus": gpus_doc(house, part),
        "vram_mib": part.vram_mib,
        "virtual": part.virtual,
        "reason": None,
        "asked_at": house.now,
        "granted_at": house.now,
        "pid": None,
    }


def lease_doc(house: House, lease: Lease) -> Answer:
    grant = lease.grant
    return {
        "id": lease.id,
        "state": lease.state.value,
        "owner": lease.owner,
        "name": lease.name,
        "node": grant.node if grant else None,
        "gpus": gpus_doc(house, grant) if grant else [],
        "vram_mib": grant.vram_mib if grant else lease.request.vram_mib,
        "virtual": grant.virtual if grant else False,
        "reason": None if lease.state is not LeaseState.WAITING else _why_waiting(house, lease),
        "asked_at": lease.asked_at,
        "granted_at": lease.granted_at,
        "pid": lease.process.pid if lease.process else None,
    }


def _why_waiting(house: House, lease: Lease) -> str:
    found = [
        refusal.text
        for key, refusal in house.plan.refusals.items()
        if key.kind == "lease" and key.owner == lease.owner and key.request == lease.request
    ]
    return found[0] if found else "waiting to be planned"


def show(house: House, args: Mapping[str, Any]) -> Answer:
    return lease_doc(house, _find(house, LeaseId(args["id"])))


def listing(house: House) -> Answer:
    return {"leases": [lease_doc(house, lease) for lease in house.leases.values()]}


def _find(house: House, ident: LeaseId) -> Lease:
    lease = house.leases.get(ident)
    if lease:
        return lease
    row = house.ledger.leases.row(ident)
    if row is None:
        raise NotFound(
            f"cannot find lease {ident}: there is none with this number; `lab-gpu status` shows them"
        )
    return from_row(row)


def from_row(row: sqlite3.Row) -> Lease:
    grant = None
    if row["node"]:
        grant = grant_from_doc(row["node"], json.loads(row["gpus"]), row["vram_mib"], bool(row["virtual"]))
    return Lease(
        id=LeaseId(row["id"]),
        owner=row["owner"],
        uid=row["uid"],
        name=row["name"],
        state=LeaseState(row["state"]),
        request=request_from_doc(json.loads(row["request"])),
        process=ProcessName(row["pid"], row["pid_started"]) if row["pid"] else None,
        grant=grant,
        asked_at=row["asked_at"],
        granted_at=row["granted_at"],
        expires_at=row["expires_at"],
    )


def _owned(house: House, who: Caller, ident: LeaseId, verb: str) -> Lease:
    lease = _find(house, ident)
    if who.uid not in (lease.uid, house.standing.owner_uid, 0):
        raise Forbidden(f"cannot {verb} lease {ident}: it belongs to {lease.owner}; ask them")
    return lease


def beat(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    lease = _owned(house, who, LeaseId(args["id"]), "keep")
    if lease.state is LeaseState.RELEASED:
        raise NotFound(f"cannot keep lease {lease.id}: it is over; ask for a new one")
    if lease.expires_at is not None:
        expires = house.now + (args.get("ttl_s") or 90)
        house.ledger.leases.beat(lease.id, expires)
        lease = house.leases[lease.id] = replace(lease, expires_at=expires)
    return lease_doc(house, lease)


def release(house: House, who: Caller, args: Mapping[str, Any]) -> Answer:
    lease = _owned(house, who, LeaseId(args["id"]), "release")
    if lease.state is not LeaseState.RELEASED:
        lease = let_go(house, lease, f"released by {who.user}")
    return lease_doc(house, lease)


def let_go(house: House, lease: Lease, why: str) -> Lease:
    now = house.now
    house.ledger.leases.release(lease.id, why, now)
    house.ledger.event(now, "lease_released", who=lease.owner, lease=lease.id, why=why)
    house.leases.pop(lease.id, None)
    promises.release(house, "lease", lease.id)
    return replace(lease, state=LeaseState.RELEASED)


def process_ended(house: House, ident: LeaseId) -> None:
    lease = house.leases.get(ident)
    if lease:
        let_go(house, lease, "its process ended")


def expire(house: House) -> float | None:
    """Lets go what was not heard of in time; answers when the next one would be due."""
    for lease in [each for each in house.leases.values() if each.expires_at and each.expires_at <= house.now]:
        let_go(house, lease, "its owner was not heard of")
    return min((each.expires_at for each in house.leases.values() if each.expires_at), default=None)

"""The end of a promise: what was held is let go, here and towards the other masters of this host."""

from __future__ import annotations

from lab_gpu.core.claims import Claim
from lab_gpu.core.errors import Broken
from lab_gpu.service.house import House


def release(house: House, kind: str, ident: int) -> None:
    holder = house.book.let_go(kind, ident, now=house.now)
    house.changed = True
    if holder and house.book.is_real(holder.grant):
        house.observer.want()  # its memory may be back already
        house.after_commit.append(lambda: publish(house))


def publish(house: House) -> None:
    try:
        house.claims.publish(current_claims(house))
    except Broken as error:
        house.warn(str(error))


def current_claims(house: House) -> list[Claim]:
    return [
        Claim(uuid, mib, process.pid if process else house.standing.pid, process.started if process else 0)
        for uuid, mib, process in house.book.claims()
    ]

"""What loop and doors say to each other besides operations: who asks, and what the doors must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `via`: "unix" (the kernel says so), "token", "open" (nobody had to say)."""

    uid: int
    user: str
    pid: int | None = None
    via: str = "unix"

    def to_doc(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_doc(cls, doc: Mapping[str, Any]) -> Caller:
        return cls(**doc)


@dataclass(frozen=True, slots=True)
class Settings:
    """Sent by the loop at the start of the link, and again whenever one of them changed."""

    home: str
    database: str
    owner_uid: int
    socket: str
    version: str
    token: str | None = None
    url: str | None = None
    shared_database: bool = True  # the doors may read it beside the loop; else they ask the loop
    ports: tuple[int, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    boot_id: str = ""

    @classmethod
    def from_doc(cls, doc: Mapping[str, Any]) -> Settings:
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in doc.items() if name in names}
        return cls(**known | {"ports": tuple(doc.get("ports", ()))})

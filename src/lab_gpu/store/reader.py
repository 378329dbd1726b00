"""The doors' side of the ledger: named questions over a read-only connection, rows as plain documents.

Where two processes cannot open the database, the loop answers the same questions with a Reader of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any
from urllib.parse import quote

from lab_gpu.core.errors import Broken
from lab_gpu.store.queries import load

SQL = load("read.sql")
Row = dict[str, Any]
_LARGEST = 2**63 - 1


def open_read_only(path: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=5
        )
        connection.execute("pragma query_only = on")
        connection.execute("select 1 from task limit 1")
    except sqlite3.Error as error:
        raise Broken(f"cannot read the database {path}: {error}; see the master's log") from None
    return connection


class Reader:
    """One thread at a time. `read` is the only way in: a question can travel as a name and arguments."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._composed: dict[str, Callable[[Mapping[str, Any]], list[Row]]] = {
            "tasks": self._tasks,
            "running": lambda args: self._rows(f"{_TASKS} where t.state = 'running' order by t.id", args),
            "queued": lambda args: self._rows(
                f"{_TASKS} where t.state = 'queued' order by t.id limit :limit", args
            ),
            "ended": lambda args: self._rows(
                f"{_TASKS} where t.ended_at > 0 order by t.ended_at desc limit :limit", args
            ),
            "list": self._list,
        }

    def read(self, name: str, args: Mapping[str, Any]) -> list[Row]:
        """A question that does not exist is a KeyError."""
        compose = self._composed.get(name)
        if compose:
            return compose(args)
        values = {key: json.dumps(value) if isinstance(value, list) else value for key, value in args.items()}
        return self._rows(SQL[name], values)

    def interrupt(self) -> None:
        """From another thread: the question under way ends with an error."""
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        cursor = self._connection.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _tasks(self, args: Mapping[str, Any]) -> list[Row]:
        where = "t.id in (select value from json_each(:ids)) order by t.id"
        return self._rows(f"{_TASKS} where {where}", {"ids": json.dumps(args["ids"])})

    def _list(self, args: Mapping[str, Any]) -> list[Row]:
        """Lists `states`, `ids`; `owner`, `queue`, `batch`, `name`, `text`; `cursor`, `newest_first`, `limit`."""
        states: Sequence[str | None] = args.get("states") or (None,)
        sign = -1 if args["newest_first"] else 1
        # One index walk for each state, put together in order: `in (...)` would sort all there are.
        walks = [self._rows(*_listing(args, state)) for state in states]
        return list(islice(merge(*walks, key=lambda row: sign * row["id"]), args["limit"]))


_TASKS = SQL["task_columns"]


def _listing(args: Mapping[str, Any], state: str | None) -> tuple[str, dict[str, Any]]:
    """The most telling condition is left to an index; `+` keeps the others from choosing a worse one."""
    conditions = {
        "ids": "t.id in (select value from json_each(:ids))",
        "batch": "t.batch = :batch",
        "queue": "t.queue = :queue",
        "state": "t.state = :state",
        "owner": "t.owner = :owner",
        "name": "t.name = :name",
        "text": "(t.command like :text escape '\\' or t.name like :text escape '\\')",
    }
    values = {key: args[key] for key in conditions if args.get(key) is not None} | (
        {"state": state} if state else {}
    )
    given = [key for key in conditions if key in values]
    clauses = [
        conditions[key] if not at else conditions[key].replace("t.", "+t.") for at, key in enumerate(given)
    ]
    newest_first = args["newest_first"]
    clauses.append("t.id < :cursor" if newest_first else "t.id > :cursor")
    first = _LARGEST if newest_first else 0
    values["cursor"] = first if args.get("cursor") is None else args["cursor"]
    values["limit"] = args["limit"]
    if "ids" in values:
        values["ids"] = json.dumps(values["ids"])
    if "text" in values:
        values["text"] = f"%{_escaped(values['text'])}%"
    order = "desc" if newest_first else "asc"
    return f"{_TASKS} where {' and '.join(clauses)} order by t.id {order} limit :limit", values


def _escaped(text: str) -> str:
    return "".join("\\" + each if each in "\\%_" else each for each in text)

"""Opens the one database: pragmas, numbered migrations, and a clear sentence for each way it can be unusable."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from lab_gpu.core.errors import Broken, Refused

MIGRATIONS = os.path.join(os.path.dirname(__file__), "migrations")
BUSY_TIMEOUT_MS = 5000


class Database:
    """The only writing connection. `exclusive` is for network file systems, where WAL's shared memory cannot be had."""

    def __init__(self, path: str, exclusive: bool = False) -> None:
        self.path = path
        self.connection = _open(path, exclusive)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside becomes durable together, or not at all."""
        self.connection.execute("begin immediate")
        try:
            yield self.connection
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        self.connection.execute("commit")

    def rollback(self) -> None:
        """SQLite has rolled back by itself after some errors; then nothing is left to undo."""
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def close(self) -> None:
        self.connection.close()


def _open(path: str, exclusive: bool) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5
        )
        _tune(connection, exclusive)
        _migrate(connection, path)
        os.chmod(path, 0o600)
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    return connection


def unusable(path: str, error: sqlite3.Error) -> Broken:
    if isinstance(error, sqlite3.OperationalError):
        return Broken(
            f"cannot open the database {path}: {error}; check the disk and the rights of its folder"
        )
    return Broken(
        f"cannot read the database {path}: {error}; move it away to start empty, or put a copy of it back"
    )


def _tune(connection: sqlite3.Connection, exclusive: bool) -> None:
    connection.execute(f"pragma busy_timeout = {BUSY_TIMEOUT_MS}")
    if exclusive:
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("pragma journal_mode = delete")
    else:
        connection.execute("pragma journal_mode = wal")
        # Checkpoints copy pages to the main file; a larger log keeps that off most hand-offs.
        connection.execute("pragma wal_autocheckpoint = 4000")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma temp_store = memory")
    connection.execute("pragma cache_size = -4096")


def migrations() -> list[tuple[int, str]]:
    names = sorted(name for name in os.listdir(MIGRATIONS) if name.endswith(".sql"))
    return [(int(name.split("_")[0]), os.path.join(MIGRATIONS, name)) for name in names]


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    (found,) = connection.execute("pragma user_version").fetchone()
    steps = migrations()
    newest = steps[-1][0]
    if found > newest:
        raise Refused(
            f"cannot open the database {path}: it was written by a newer Lab-GPU (format {found}, this one knows {newest});"
            " install that version again"
        )
    for number, file in steps:
        if number > found:
            with open(file, encoding="utf-8") as text:
                connection.executescript(
                    f"begin immediate;\n{text.read()}\npragma user_version = {number};\ncommit;"
                )

"""SqliteStore: data and positions in one file of SQLite, for threads and processes.

Readers have connections of their own, in WAL mode, so that neither they nor the applier wait for
each other. A reader's connection refuses to write.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quire_locks.errors import LocksError, OtherLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from quire_locks.context import LogRecord

TABLE = """CREATE TABLE IF NOT EXISTS quire_position (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, topic_id TEXT NOT NULL,
  next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition))"""
BUSY_SECONDS = 30.0


class SqliteStore:
    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._topic = ""
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []

    def open(self, topic: str, topic_id: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        db = self._writer()
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(TABLE)
            for partition in partitions:
                row = db.execute(
                    "SELECT topic_id FROM quire_position WHERE topic = ? AND partition = ?",
                    (topic, partition),
                ).fetchone()
                if row is None:
                    db.execute(
                        "INSERT INTO quire_position VALUES (?, ?, ?, 0)",
                        (topic, partition, topic_id),
                    )
                elif row[0] != topic_id:
                    raise OtherLogError(
                        f"{self._path} follows topic {topic} with id {row[0]}; here it is"
                        f" {topic_id}"
                    )
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def position(self, partition: int) -> int:
        return self._position(self._writer(), partition)

    @contextmanager
    def snapshot(self, partition: int) -> Iterator[tuple[sqlite3.Connection, int]]:
        db = self._reader()
        db.execute("BEGIN")
        try:
            # The first thing that is read makes the snapshot, so all else is of this position.
            yield db, self._position(db, partition)
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def apply(
        self,
        partition: int,
        start: int,
        end: int,
        records: Sequence[LogRecord],
        function: Callable[[sqlite3.Connection, LogRecord], None],
    ) -> bool:
        db = self._writer()
        db.execute("BEGIN IMMEDIATE")
        try:
            changed = db.execute(
                "UPDATE quire_position SET next_offset = ?"
                " WHERE topic = ? AND partition = ? AND next_offset = ?",
                (end, self._topic, partition, start),
            )
            if changed.rowcount == 0:
                db.execute("ROLLBACK")
                return False
            for record in records:
                function(db, record)
                if not db.in_transaction:
                    raise LocksError(
                        "apply() must not commit or roll back: the position goes with it"
                    )
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return True

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for db in connections:
            db.close()

    def _position(self, db: sqlite3.Connection, partition: int) -> int:
        row = db.execute(
            "SELECT next_offset FROM quire_position WHERE topic = ? AND partition = ?",
            (self._topic, partition),
        ).fetchone()
        if row is None:
            raise OtherLogError(f"{self._path} has no position of {self._topic}-{partition}")
        return int(row[0])

    def _writer(self) -> sqlite3.Connection:
        return self._connection("writer", is_reader=False)

    def _reader(self) -> sqlite3.Connection:
        return self._connection("reader", is_reader=True)

    def _connection(self, name: str, *, is_reader: bool) -> sqlite3.Connection:
        """This thread's."""
        db: sqlite3.Connection | None = getattr(self._own, name, None)
        if db is None:
            db = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            db.execute("PRAGMA journal_mode = WAL")
            if is_reader:
                db.execute("PRAGMA query_only = ON")
            setattr(self._own, name, db)
            with self._lock:
                self._connections.append(db)
        return db

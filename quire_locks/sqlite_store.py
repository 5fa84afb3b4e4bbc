"""SqliteStore: data and positions in one file of SQLite, for threads and processes.

Readers have connections of their own, in WAL mode, so that neither they nor the applier wait for
each other. A reader's connection refuses to write.
"""

from __future__ import annotations

import sqlite3
import threading
import time
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
RETRY_SECONDS = 0.05
#: Ours are told apart from those of the function that applies: statements are kept by their text.
BEGIN, COMMIT, ROLLBACK = (
    f"{word} -- quire_locks" for word in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
)
NO_COMMIT = "apply() must not commit or roll back: the position goes with it"


class SqliteStore:
    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._topic = ""
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []

    def open(self, topic: str, topic_id: str, partitions: Sequence[int]) -> None:
        if self._topic not in ("", topic):
            raise LocksError(f"this store follows topic {self._topic}: {topic} needs another")
        self._topic = topic
        db = self._writer()
        db.execute(BEGIN)
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
            db.execute(ROLLBACK)
            raise
        db.execute(COMMIT)

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
        db.execute(BEGIN)
        try:
            changed = db.execute(
                "UPDATE quire_position SET next_offset = ?"
                " WHERE topic = ? AND partition = ? AND next_offset = ?",
                (end, self._topic, partition, start),
            )
            if changed.rowcount == 0:
                db.execute(ROLLBACK)
                return False
            self._apply_all(db, records, function)
            db.execute(COMMIT)
        except BaseException:
            if db.in_transaction:
                db.execute(ROLLBACK)
            raise
        return True

    def _apply_all(
        self,
        db: sqlite3.Connection,
        records: Sequence[LogRecord],
        function: Callable[[sqlite3.Connection, LogRecord], None],
    ) -> None:
        """LocksError if it tried to commit, as `with db:` does, or to roll back: SQLite is told to
        refuse that, since the position of all records would be committed with some of them."""
        own = self._own
        own.is_applying, own.is_refused = True, False
        try:
            for record in records:
                function(db, record)
        except sqlite3.DatabaseError as error:
            if own.is_refused:
                raise LocksError(NO_COMMIT) from error
            raise
        finally:
            own.is_applying = False
        if own.is_refused or not db.in_transaction:
            raise LocksError(NO_COMMIT)

    def _authorise(self, action: int, *_: str | None) -> int:
        """Asked by SQLite when a statement is prepared for this thread's writer."""
        if action == sqlite3.SQLITE_TRANSACTION and getattr(self._own, "is_applying", False):
            self._own.is_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

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
            try:
                self._prepare(db, is_reader=is_reader)
            except BaseException:
                db.close()
                raise
            setattr(self._own, name, db)
            with self._lock:
                self._connections.append(db)
        return db

    def _prepare(self, db: sqlite3.Connection, *, is_reader: bool) -> None:
        """LocksError for a database that cannot be in WAL mode, as one in memory."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # Here SQLite does not wait for who writes, as it does elsewhere.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(RETRY_SECONDS)
        if mode != "wal":
            raise LocksError(f"{self._path}: its journal mode is {mode} and cannot be WAL")
        if is_reader:
            db.execute("PRAGMA query_only = ON")
        else:
            db.set_authorizer(self._authorise)

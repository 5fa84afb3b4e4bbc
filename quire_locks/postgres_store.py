"""PostgresStore: data and positions in one PostgreSQL, for threads, processes and machines.

A snapshot is a transaction that is REPEATABLE READ, READ ONLY: its first query fixes what all
others see. Whoever applies changes the row of the position first, so all who apply a partition
come one after the other, and who finds another position there applies nothing.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.pq import TransactionStatus

from quire_locks.errors import DatabaseLostError, LocksError, OtherLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg.rows import TupleRow

    from quire_locks.context import LogRecord

    Connection = psycopg.Connection[TupleRow]

Result = TypeVar("Result")

TABLE = """CREATE TABLE IF NOT EXISTS quire_position (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, topic_id TEXT NOT NULL,
  next_offset BIGINT NOT NULL, PRIMARY KEY (topic, partition))"""
#: Of the advisory lock while the table is made: two at once fail in spite of IF NOT EXISTS.
TABLE_LOCK = 0x7175697265
#: So long a server that does not answer, or refuses connections, is tried again.
RECONNECT_SECONDS = 30.0
RETRY_SECONDS = 0.1


class PostgresStore:
    def __init__(self, conninfo: str, *, reconnect_seconds: float = RECONNECT_SECONDS) -> None:
        """`conninfo`: of libpq, as `host=… dbname=… user=…` or a URL. Each thread has a connection
        of its own: `concurrent_max` for each partition, and one for what is applied."""
        self._conninfo = conninfo
        self._reconnect_seconds = reconnect_seconds
        self._topic = ""
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()

    def open(self, topic: str, topic_id: str, partitions: Sequence[int]) -> None:
        if self._topic not in ("", topic):
            raise LocksError(f"this store follows topic {self._topic}: {topic} needs another")
        self._topic = topic
        db = self._connection("writer")
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (TABLE_LOCK,))
            db.execute(TABLE)
            for partition in partitions:
                db.execute(
                    "INSERT INTO quire_position VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING",
                    (topic, partition, topic_id),
                )
                row = db.execute(
                    "SELECT topic_id FROM quire_position WHERE topic = %s AND partition = %s",
                    (topic, partition),
                ).fetchone()
                if row is not None and row[0] != topic_id:
                    raise OtherLogError(
                        f"the database follows topic {topic} with id {row[0]}; here it is"
                        f" {topic_id}"
                    )

    def position(self, partition: int) -> int:
        return self._persist(lambda db: self._position(db, partition))

    @contextmanager
    def snapshot(self, partition: int) -> Iterator[tuple[Connection, int]]:
        def begin(db: Connection) -> tuple[Connection, int]:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # The first query makes the snapshot, so all else is of this position.
            return db, self._position(db, partition)

        db, position = self._persist(begin, "reader")
        try:
            yield db, position
        except psycopg.OperationalError as error:
            if not db.closed:
                raise
            raise DatabaseLostError(str(error)) from error
        finally:
            self._roll_back(db)

    def apply(
        self,
        partition: int,
        start: int,
        end: int,
        records: Sequence[LogRecord],
        function: Callable[[Connection, LogRecord], None],
    ) -> bool:
        """A COMMIT whose answer is lost is tried again, and finds the position moved: False."""

        def once(db: Connection) -> bool:
            db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            changed = db.execute(
                "UPDATE quire_position SET next_offset = %s"
                " WHERE topic = %s AND partition = %s AND next_offset = %s",
                (end, self._topic, partition, start),
            )
            if changed.rowcount == 0:
                db.execute("ROLLBACK")
                return False
            for record in records:
                function(db, record)
                # COMMIT after an error that was caught would be a ROLLBACK, without a word.
                if db.info.transaction_status != TransactionStatus.INTRANS:
                    raise LocksError(
                        "apply() must not commit, roll back or go on after an error of the"
                        " database: the position goes with it"
                    )
            db.execute("COMMIT")
            return True

        return self._persist(once)

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, set()
        for db in connections:
            db.close()

    def _position(self, db: Connection, partition: int) -> int:
        row = db.execute(
            "SELECT next_offset FROM quire_position WHERE topic = %s AND partition = %s",
            (self._topic, partition),
        ).fetchone()
        if row is None:
            raise OtherLogError(f"the database has no position of {self._topic}-{partition}")
        return int(row[0])

    def _persist(self, work: Callable[[Connection], Result], name: str = "writer") -> Result:
        """`work` with this thread's connection of that name, again while connections break, or
        while the database asks for it: two partitions may be in each other's way."""
        until = time.monotonic() + self._reconnect_seconds
        while True:
            db: Connection | None = None
            try:
                db = self._connection(name)
                return work(db)
            except BaseException as error:
                if db is not None:
                    self._roll_back(db)
                if not _is_passing(error, db) or time.monotonic() > until:
                    raise
            time.sleep(random.random() * RETRY_SECONDS)

    @staticmethod
    def _roll_back(db: Connection) -> None:
        """A connection that cannot is closed: the server rolls back what it had."""
        if db.info.transaction_status == TransactionStatus.IDLE:
            return
        try:
            db.execute("ROLLBACK")
        except psycopg.OperationalError:
            db.close()

    def _connection(self, name: str) -> Connection:
        """This thread's. A reader's is another, so that a snapshot stands while others write."""
        db: Connection | None = getattr(self._own, name, None)
        if db is None or db.closed:
            db = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
            setattr(self._own, name, db)
            with self._lock:
                self._connections = {one for one in self._connections if not one.closed} | {db}
        return db


def _is_passing(error: BaseException, db: Connection | None) -> bool:
    if isinstance(error, SerializationFailure | DeadlockDetected):
        return True
    # A wrong password comes as this one as well: then it is told after the time for reconnecting.
    return isinstance(error, psycopg.OperationalError) and (db is None or db.closed)

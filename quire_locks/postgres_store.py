"""PostgresStore: data and positions in one database of PostgreSQL, for threads and processes.

    PostgresStore("host=/run/postgresql dbname=bank")

`execute` gets a psycopg connection in a READ ONLY transaction of REPEATABLE READ, whose snapshot is
made by reading the position. `apply` runs in READ COMMITTED: the UPDATE of the position holds that
row until the end, so of two programs that share the database one waits, and then finds the position
changed. Each thread has a connection for either. One that is lost is made anew for
`reconnect_seconds`; if it was lost while it committed, the position tells what became of that.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from quire_locks.errors import DatabaseLostError, LocksError, OtherLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from quire_locks.context import LogRecord

Db = psycopg.Connection[tuple[Any, ...]]
Result = TypeVar("Result")

TABLE = """CREATE TABLE IF NOT EXISTS quire_position (
  topic text NOT NULL, partition integer NOT NULL, topic_id text NOT NULL,
  next_offset bigint NOT NULL, PRIMARY KEY (topic, partition))"""
#: CREATE TABLE IF NOT EXISTS of two programs at once fails in one of them; so they take turns.
OPEN_LOCK = "SELECT pg_advisory_xact_lock(hashtext('quire_position'))"
RECONNECT_SECONDS = 30.0
PAUSE_SECONDS = 0.1

#: The server is gone or says that it cannot now; or another transaction was in this one's way.
_PASSING = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.AdminShutdown,
    psycopg.errors.CannotConnectNow,
)


class PostgresStore:
    def __init__(self, conninfo: str, *, reconnect_seconds: float = RECONNECT_SECONDS) -> None:
        """`conninfo`: as libpq takes it, key=value or a URL."""
        self._conninfo = conninfo
        self._reconnect_seconds = reconnect_seconds
        self._topic = ""
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: list[Db] = []

    def open(self, topic: str, topic_id: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self._with_retries(lambda: self._open(topic_id, partitions))

    def position(self, partition: int) -> int:
        return self._with_retries(lambda: self._position(self._writer(), partition))

    @contextmanager
    def snapshot(self, partition: int) -> Iterator[tuple[Db, int]]:
        self._drop_lost()
        db, position = self._with_retries(lambda: self._begin_reading(partition))
        try:
            yield db, position
        except psycopg.OperationalError as error:
            if not db.closed:
                raise
            raise DatabaseLostError(str(error)) from error
        finally:
            with suppress(psycopg.OperationalError):
                db.rollback()

    def apply(
        self,
        partition: int,
        start: int,
        end: int,
        records: Sequence[LogRecord],
        function: Callable[[Db, LogRecord], None],
    ) -> bool:
        return self._with_retries(lambda: self._apply(partition, start, end, records, function))

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for db in connections:
            db.close()

    # -- one try of each ---------------------------------------------------------------------------

    def _open(self, topic_id: str, partitions: Sequence[int]) -> None:
        db = self._writer()
        with db.transaction():
            db.execute(OPEN_LOCK)
            db.execute(TABLE)
            for partition in partitions:
                db.execute(
                    "INSERT INTO quire_position VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING",
                    (self._topic, partition, topic_id),
                )
                row = db.execute(
                    "SELECT topic_id FROM quire_position WHERE topic = %s AND partition = %s",
                    (self._topic, partition),
                ).fetchone()
                if row is None or row[0] != topic_id:
                    raise OtherLogError(
                        f"{db.info.dbname} follows topic {self._topic} with id"
                        f" {row and row[0]}; here it is {topic_id}"
                    )

    def _position(self, db: Db, partition: int) -> int:
        row = db.execute(
            "SELECT next_offset FROM quire_position WHERE topic = %s AND partition = %s",
            (self._topic, partition),
        ).fetchone()
        if row is None:
            raise OtherLogError(f"{db.info.dbname} has no position of {self._topic}-{partition}")
        return int(row[0])

    def _begin_reading(self, partition: int) -> tuple[Db, int]:
        db = self._connection("reader")
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            # The first thing that is read makes the snapshot, so all else is of this position.
            return db, self._position(db, partition)
        except BaseException:
            with suppress(psycopg.OperationalError):
                db.rollback()
            raise

    def _apply(
        self,
        partition: int,
        start: int,
        end: int,
        records: Sequence[LogRecord],
        function: Callable[[Db, LogRecord], None],
    ) -> bool:
        db = self._writer()
        db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            changed = db.execute(
                "UPDATE quire_position SET next_offset = %s"
                " WHERE topic = %s AND partition = %s AND next_offset = %s",
                (end, self._topic, partition, start),
            )
            if changed.rowcount == 0:
                db.rollback()
                return False
            for record in records:
                function(db, record)
                if db.info.transaction_status is not TransactionStatus.INTRANS:
                    raise LocksError(
                        "apply() must not commit or roll back: the position goes with it"
                    )
            db.commit()
        except BaseException:
            with suppress(psycopg.OperationalError):
                db.rollback()
            raise
        return True

    # -- connections -------------------------------------------------------------------------------

    def _with_retries(self, work: Callable[[], Result]) -> Result:
        until = time.monotonic() + self._reconnect_seconds
        while True:
            try:
                return work()
            except psycopg.OperationalError as error:
                is_lost = self._drop_lost() or isinstance(error, _PASSING)
                is_down = error.sqlstate is None  # libpq's: it has no connection
                if not (is_lost or is_down) or time.monotonic() > until:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _drop_lost(self) -> bool:
        """Whether one of this thread's connections was lost; the next use makes another."""
        lost = False
        for name in ("reader", "writer"):
            db: Db | None = getattr(self._own, name, None)
            if db is not None and db.closed:
                setattr(self._own, name, None)
                with self._lock:
                    self._connections = [one for one in self._connections if one is not db]
                lost = True
        return lost

    def _writer(self) -> Db:
        return self._connection("writer")

    def _connection(self, name: str) -> Db:
        """This thread's. Transactions begin where they are written, so psycopg begins none."""
        db: Db | None = getattr(self._own, name, None)
        if db is None:
            db = psycopg.connect(self._conninfo, autocommit=True)
            setattr(self._own, name, db)
            with self._lock:
                self._connections.append(db)
        return db

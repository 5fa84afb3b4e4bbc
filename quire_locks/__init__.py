"""Programs whose database follows a partition, with optimistic locks (docs/locks.md).

A transaction is decided by the database, written to the log, and applied to the database when it
comes back from there: by every program that has the partition. What is not read back has not
happened. `Client` does all that; a program gives it a `TransactionContext` for each transaction, a
function that applies a record, and a store for database and position.

    def apply(db: sqlite3.Connection, record: LogRecord) -> None: ...

    with Client(ConfluentTransport({"bootstrap.servers": ...}, "bank"),
                SqliteStore("bank.db"), apply) as client:
        done = client.submit(Transfer(...)).result()

Nothing of the server is imported here: the server may be anywhere. Threads, not trio: who uses it
has a program of his own. `AsyncClient` is for one that is written with asyncio.
"""

from quire_locks.async_client import AsyncClient
from quire_locks.client import Client, Settings
from quire_locks.context import Completion, Draft, LogRecord, TransactionContext
from quire_locks.errors import (
    DatabaseLostError,
    DeadlineError,
    HistoryGoneError,
    LocksError,
    NotTakenError,
    OtherLogError,
    StoppedError,
    TooBusyError,
    UnreachableError,
)
from quire_locks.sqlite_store import SqliteStore
from quire_locks.store import Store
from quire_locks.transport import Answer, Outcome, TopicFacts, Transport

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Completion",
    "DatabaseLostError",
    "DeadlineError",
    "Draft",
    "HistoryGoneError",
    "LocksError",
    "LogRecord",
    "NotTakenError",
    "OtherLogError",
    "Outcome",
    "Settings",
    "SqliteStore",
    "StoppedError",
    "Store",
    "TooBusyError",
    "TopicFacts",
    "TransactionContext",
    "Transport",
    "UnreachableError",
]

"""MetadataStore in one SQLite file: the default of `quire standalone`.

Format (docs/formats.md, «metadata.sqlite»): one table `node(parent, name, data, version, sequence,
owner)` whose primary key is (parent, name), so that the children of a node are a range of it; the
root is ("", ""). `application_id` and `user_version` say what the file is. Write-ahead log,
synchronous=FULL: a call that returned is on the disk.

One task (`run`) owns the connection. It takes all requests that wait, runs them in one transaction
on a worker thread, and answers them after the commit: a hundred concurrent puts cost one fsync. A
request that is refused (a lost compare-and-set) does not disturb the others of its transaction.

A full disk fails a transaction as a whole: MetadataUnavailableError, nothing has happened, and the
store goes on. Deleting needs space, too, so next to the file there is a reserve; it is given up for
the first transaction that finds none, and made again when there is plenty. Every other error of
SQLite ends the store, first of all a sync that failed. That includes those of a checkpoint, which
SQLite would keep to itself if it made them on its own: so `_execute` makes them.

Ephemeral nodes belong to the process: they are deleted when the store is closed, or when the file
is opened the next time; those of a `session` when that is closed, too (metadata/served.py). Watches
see the changes of this store only: the file is opened in SQLite's exclusive mode, so nobody else
can make any.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from metadata import rules
from metadata.rules import NO_OWNER, ROOT, Change, Row, split_path
from metadata.store import (
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
)
from metadata.transactions import Action, TransactionSession
from metadata.watches import WatchRegistry
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from metadata.rules import Table

T = TypeVar("T")

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x51524D44  # «QRMD»
FORMAT_VERSION = 1
#: The store's own session. The file is exclusive, so numbers start anew with each process.
_OWNER = 1
#: Requests in one transaction: bounds how long the first of them waits for the last.
_BATCH_MAX = 1_000
_QUEUE_MAX = 10_000
#: Of a transaction's, before others have the loop.
ANSWERS_PER_TURN = 25

_FULL_RETRY_SECONDS = 1.0

#: Rows that change between two checkpoints, which keep the write-ahead log small.
CHECKPOINT_CHANGES = 250
RESERVE_SIZE_BYTES = 8 << 20
#: The reserve is made if there is this many times as much space.
RESERVE_PLENTY = 8

_SCHEMA = """
CREATE TABLE node (
    parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    sequence INTEGER NOT NULL, owner INTEGER NOT NULL, PRIMARY KEY (parent, name)
) WITHOUT ROWID
"""


class Run(Protocol):
    """`Disk.run`: a blocking function on a worker thread, or inline."""

    def __call__(self, function: Callable[..., T], *args: object) -> Awaitable[T]: ...


class MetadataCorruptError(MetadataError):
    """The file is damaged, of a newer format, or no metadata file at all; `path` is the file's."""


class _SqliteTable:
    """`rules.Table` on a connection. All on the worker thread, inside a transaction."""

    __slots__ = ("_connection", "_execute")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute

    def find(self, path: str) -> Row | None:
        found = self._execute(
            "SELECT data, version, sequence, owner FROM node WHERE parent = ? AND name = ?",
            split_path(path),
        ).fetchone()
        return None if found is None else Row(*found)

    def insert(self, path: str, row: Row) -> None:
        self._execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?)", (*split_path(path), *row))

    def update(self, path: str, row: Row) -> None:
        self._execute(
            "UPDATE node SET data = ?, version = ?, sequence = ?, owner = ? "
            "WHERE parent = ? AND name = ?",
            (*row, *split_path(path)),
        )

    def remove(self, path: str) -> None:
        self._execute("DELETE FROM node WHERE parent = ? AND name = ?", split_path(path))

    def children(self, path: str) -> list[str]:
        found = self._execute("SELECT name FROM node WHERE parent = ? ORDER BY name", (path,))
        return [name for (name,) in found]

    def has_children(self, path: str) -> bool:
        found = self._execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,))
        return found.fetchone() is not None

    def owned(self, owner: int) -> list[str]:
        found = self._execute("SELECT parent, name FROM node WHERE owner = ?", (owner,))
        return [f"{parent.rstrip('/')}/{name}" for parent, name in found]

    def owners(self) -> list[int]:
        """The sessions that have ephemeral nodes."""
        found = self._execute("SELECT DISTINCT owner FROM node WHERE owner <> ?", (NO_OWNER,))
        return [owner for (owner,) in found.fetchall()]

    def savepoint(self) -> None:
        self._execute("SAVEPOINT multi")

    def rollback(self) -> None:
        # Some errors (a full disk) make SQLite roll the whole transaction back by itself.
        if not self._connection.in_transaction:
            return
        self._execute("ROLLBACK TO multi")
        self._execute("RELEASE multi")

    def release(self) -> None:
        self._execute("RELEASE multi")


class _Request:
    __slots__ = ("action", "done", "error", "path", "result")

    def __init__(self, path: str, action: Action) -> None:
        self.path = path
        self.action = action
        self.done = trio.Event()
        self.result: object = None
        self.error: Exception | None = None


class _Reserve:
    """A file that keeps space; see the module's docstring. Blocks."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def make(self) -> None:
        with suppress(OSError):  # it is made later, then
            directory = os.path.dirname(self._path) or "."
            if os.path.exists(self._path) or _free_bytes(directory) < (
                RESERVE_PLENTY * RESERVE_SIZE_BYTES
            ):
                return
            with open(self._path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_SIZE_BYTES)

    def release(self) -> bool:
        try:
            os.remove(self._path)
        except OSError:
            return False
        logger.warning("the disk is full: the reserve is released path=%s", self._path)
        return True


def _free_bytes(directory: str) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class SqliteStore(TransactionSession):
    """Implements `metadata.store.MetadataStore`. `file` is made if it is missing; its directory
    must exist. MetadataCorruptError from `run` if the file is damaged or something else."""

    def __init__(self, file: str, run: Run) -> None:
        super().__init__(_OWNER, WatchRegistry())
        self._file = file
        self._run_blocking = run
        self._owners = itertools.count(_OWNER + 1)
        self.sessions: set[SqliteSession] = set()
        self._queue: deque[_Request] = deque()
        self._wake = trio.Event()
        self._slots = trio.Semaphore(_QUEUE_MAX)
        self._connection: sqlite3.Connection | None = None
        self._closing = False
        self._finished: trio.Event | None = None
        self._reserve = _Reserve(f"{file}.reserve")
        self._checkpoint_due = CHECKPOINT_CHANGES

    @property
    def is_closing(self) -> bool:
        return self._closing

    def session(self) -> SqliteSession:
        """One more session on the same nodes, whose ephemeral nodes are its own; `run` it."""
        return SqliteSession(self, next(self._owners), self._watches)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens the file, serves until `aclose` or cancellation, closes the file. OSError-like
        failures of SQLite end it with MetadataCorruptError or MetadataUnavailableError."""
        assert self._finished is None, "run() was called before"
        self._finished = trio.Event()
        try:
            with trio.CancelScope(shield=True):
                self._connection = connection = await self._run_blocking(self._open)
            task_status.started()
            while not (self._closing and not self._queue):
                if not self._queue:
                    self._wake = trio.Event()
                    await self._wake.wait()
                    continue
                await self._run_batch(connection)
        finally:
            self._closing = True
            with trio.CancelScope(shield=True):
                if self._connection is not None:
                    await self._run_blocking(self._close, self._connection)
            self._fail(self._queue, MetadataClosedError, "the metadata store is closed")
            self._queue.clear()
            sessions, self.sessions = self.sessions, set()
            for session in (*sessions, self):
                session.ended()
            self._finished.set()

    async def aclose(self) -> None:
        """Answers what is queued, deletes the ephemeral nodes, closes the file."""
        self._closing = True
        self._wake.set()
        if self._finished is not None:
            await self._finished.wait()

    async def submit(
        self, path: str, action: Callable[[Table, list[Change]], T], *, checked: bool = False
    ) -> T:
        if not checked:
            rules.check_path(path)
        async with self._slots:
            if self._closing or self._connection is None:
                if self._closing:
                    raise MetadataClosedError(path, "the metadata store is closed")
                raise MetadataUnavailableError(path, "not running: start run() first")
            request = _Request(path, action)
            self._queue.append(request)
            self._wake.set()
            await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    _submit = submit

    async def _run_batch(self, connection: sqlite3.Connection) -> None:
        queue = self._queue
        batch = [queue.popleft() for _ in range(min(len(queue), _BATCH_MAX))]
        try:
            # Those requests left the queue: they are answered even if this task is cancelled.
            with trio.CancelScope(shield=True):
                changes = await self._run_blocking(self._execute, connection, batch)
        except sqlite3.Error as error:
            if _is_full(error):
                words = f"{self._file}: {error}; nothing was changed"
                self._fail(batch, MetadataUnavailableError, words)
                return
            self._fail(batch, MetadataUnknownOutcomeError, f"{self._file}: {error}")
            raise MetadataCorruptError(self._file, f"SQLite failed: {error}") from error
        self._watches.notify(changes)
        # Each wakes a task, which may have much to do.
        slices = Slices(ANSWERS_PER_TURN)
        with trio.CancelScope(shield=True):
            for request in batch:
                if slices.due():
                    await slices.turn()
                request.done.set()

    def _execute(self, connection: sqlite3.Connection, batch: Sequence[_Request]) -> list[Change]:
        """On the worker thread. sqlite3.Error."""
        try:
            changes = _execute(connection, batch)
        except sqlite3.Error as error:
            if not (_is_full(error) and self._reserve.release()):
                raise
            changes = _execute(connection, batch)
        if connection.total_changes >= self._checkpoint_due:
            self._checkpoint_due = connection.total_changes + CHECKPOINT_CHANGES
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                if not _is_full(error):
                    raise
            self._reserve.make()
        return changes

    def _fail(
        self,
        requests: Sequence[_Request],
        kind: type[MetadataUnavailableError | MetadataUnknownOutcomeError],
        words: str,
    ) -> None:
        for request in requests:
            request.error = kind(request.path, words)
            request.done.set()

    def _open(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        # Users' credentials are in it. SQLite gives the files beside it the same mode.
        with suppress(OSError):
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            # One thread at a time has it, though not always the same one.
            connection = sqlite3.connect(
                self._file, timeout=0, isolation_level=None, check_same_thread=False
            )
            _prepare(connection, self._file)
            self._reserve.make()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if "locked" in str(error):
                raise MetadataUnavailableError(
                    self._file, "another process has this metadata file open"
                ) from error
            raise MetadataCorruptError(self._file, f"cannot be opened: {error}") from error
        except MetadataCorruptError:
            assert connection is not None
            connection.close()
            raise
        return connection

    def _close(self, connection: sqlite3.Connection) -> None:
        # What fails here is done again at the next start, which deletes them first.
        with suppress(sqlite3.Error):
            _execute(connection, [_Request(ROOT, _end_sessions)])
        connection.close()


class SqliteSession(TransactionSession):
    """A session of its own on a SqliteStore, which has to run longer than it. Implements
    `metadata.store.MetadataStore`."""

    def __init__(self, store: SqliteStore, owner: int, watches: WatchRegistry) -> None:
        super().__init__(owner, watches)
        self._store = store
        self._is_closed = False
        self._closing = trio.Event()
        store.sessions.add(self)

    async def _submit(
        self, path: str, action: Callable[[Table, list[Change]], T], *, checked: bool = False
    ) -> T:
        if not checked:
            rules.check_path(path)
        if self._is_closed:
            raise MetadataClosedError(path, "the metadata session is closed")
        return await self._store.submit(path, action, checked=True)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `aclose`; a session has no work of its own."""
        task_status.started()
        await self._closing.wait()

    async def aclose(self) -> None:
        """Deletes the session's ephemeral nodes, as soon as there is space for that; the store
        does if it is closed before."""
        if self._is_closed:
            return
        self._is_closed = True
        while not self._store.is_closing:
            try:
                await self._store.submit(ROOT, self._end)
            except MetadataUnavailableError:
                await trio.sleep(_FULL_RETRY_SECONDS)
            else:
                break
        self._closing.set()
        if self in self._store.sessions:
            self._store.sessions.discard(self)
            self.ended()

    def _end(self, table: Table, changes: list[Change]) -> None:
        rules.end_session(table, self.owner, changes)


def _end_sessions(table: Table, changes: list[Change]) -> None:
    """Of this process, or of the one that had the file before."""
    assert isinstance(table, _SqliteTable)
    for owner in table.owners():
        rules.end_session(table, owner, changes)


def _prepare(connection: sqlite3.Connection, file: str) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("BEGIN IMMEDIATE")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (table_count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if table_count == 0:
        connection.execute(_SCHEMA)
        connection.execute("INSERT INTO node VALUES ('', '', x'', 0, 0, 0)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    elif application_id != APPLICATION_ID:
        raise MetadataCorruptError(file, "it is an SQLite file, but none of quire's metadata")
    elif version != FORMAT_VERSION:
        raise MetadataCorruptError(
            file, f"its format version is {version}, this program knows {FORMAT_VERSION}"
        )
    _end_sessions(_SqliteTable(connection), [])
    connection.execute("COMMIT")


def _execute(connection: sqlite3.Connection, batch: Sequence[_Request]) -> list[Change]:
    """Runs the requests in one transaction; their refusals go into them. sqlite3.Error if the
    transaction failed as a whole, after it was rolled back."""
    table = _SqliteTable(connection)
    changes: list[Change] = []
    connection.execute("BEGIN")
    try:
        for request in batch:
            request.error = None
            try:
                request.result = request.action(table, changes)
            except MetadataError as error:
                request.error = error
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return changes


def _is_full(error: sqlite3.Error) -> bool:
    """The disk is full, and the transaction was rolled back: nothing happened."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"

"""Client: transactions in, applied records out.

    submit -> worker: snapshot, execute, send --refused--> apply up to the end, execute anew
                                        |written
    applier: poll -> store.apply(records, position) -> the worker hears of its record

A try in doubt is sent again as it was: the WRITE lock that each record has lets one of both in at
most, and estimates never fall, so that one that is refused will not be written later either. What
decides is what is read back; an answer alone completes nothing.

Threads: one applier; of each partition up to `concurrent_max` workers. What they share is in
`_Progress`, behind one lock.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from quire_locks.context import Completion, Draft, TransactionContext
from quire_locks.errors import (
    DatabaseLostError,
    DeadlineError,
    HistoryGoneError,
    LocksError,
    NotTakenError,
    OtherLogError,
    TooBusyError,
    UnreachableError,
)
from quire_locks.transport import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from quire_locks.context import Headers, LogRecord
    from quire_locks.store import Store
    from quire_locks.transport import TopicFacts, Transport

Db = TypeVar("Db")

#: So long a position may lie beyond the log's end: a broker that was deposed may not know it yet.
AHEAD_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`concurrent_max`: transactions of one partition in work; `waiting_max`: of all that were
    submitted and are not over. `records_max`: applied in one transaction of the database."""

    concurrent_max: int = 5
    waiting_max: int = 1_000
    records_max: int = 500
    poll_seconds: float = 0.1
    deadline_seconds: float = 30.0
    backoff_seconds: float = 0.002
    backoff_max_seconds: float = 0.2


@dataclass(slots=True)
class _Pending:
    """A transaction in work. `record`: its own, once it was read back and applied."""

    txn_id: bytes
    deadline: float
    attempts: int = 0
    #: A send is on its way; one had no answer that says whether it was written.
    is_sent: bool = False
    is_in_doubt: bool = False
    record: LogRecord | None = None


class _Progress:
    """Up to where each partition was read back and applied, and whose records were."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applied: dict[int, int] = {}
        self._pending: dict[bytes, _Pending] = {}
        self._failure: BaseException | None = None

    def begin(self, pending: _Pending) -> None:
        with self._changed:
            self._pending[pending.txn_id] = pending

    def end(self, pending: _Pending) -> None:
        with self._changed:
            del self._pending[pending.txn_id]

    def fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def applied(self, partition: int, end: int, records: Sequence[LogRecord]) -> None:
        with self._changed:
            for record in records:
                pending = None if record.txn_id is None else self._pending.get(record.txn_id)
                if pending is not None:
                    pending.record = record
            self._applied[partition] = end
            self._changed.notify_all()

    def wait(self, pending: _Pending, partition: int, end: int | None) -> LogRecord | None:
        """Until its own record is applied, or all up to `end`; the record, if it is.
        DeadlineError."""
        with self._changed:
            while True:
                if self._failure is not None:
                    raise LocksError("records are not applied any more") from self._failure
                if pending.record is not None:
                    return pending.record
                if end is not None and self._applied.get(partition, 0) >= end:
                    return None
                left = pending.deadline - time.monotonic()
                if left <= 0:
                    text = f"{partition}: its record was not read back in time"
                    is_unknown = pending.is_sent or pending.is_in_doubt
                    raise DeadlineError(text, is_unknown=is_unknown)
                self._changed.wait(left)


class Client(Generic[Db]):
    """Used as a context manager, or closed by `close`."""

    def __init__(
        self,
        transport: Transport,
        store: Store[Db],
        apply: Callable[[Db, LogRecord], None],
        *,
        settings: Settings | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """`apply` is called with each record, in order, in the transaction that moves the position:
        it must not commit, and do nothing that a rollback would not undo. `partitions`: which are
        followed; None is all. OtherLogError, HistoryGoneError, LocksError."""
        self._transport = transport
        self._store = store
        self._apply = apply
        self._settings = settings or Settings()
        self._progress = _Progress()
        self._room = threading.Semaphore(self._settings.waiting_max)
        self._closing = threading.Event()
        self._facts = self._check(transport.facts())
        followed = range(self._facts.partition_count) if partitions is None else partitions
        self._positions = self._open(list(followed))
        self._workers = {
            partition: ThreadPoolExecutor(self._settings.concurrent_max)
            for partition in self._positions
        }
        self._applier = threading.Thread(target=self._apply_all, name="quire-locks", daemon=True)
        self._applier.start()

    @staticmethod
    def _check(facts: TopicFacts) -> TopicFacts:
        if facts.locks == "off":
            raise LocksError(f"topic {facts.name} has quire.locks=off: nothing would be tested")
        return facts

    def _open(self, partitions: list[int]) -> dict[int, int]:
        facts = self._facts
        self._store.open(facts.name, facts.topic_id, partitions)
        positions = {}
        for partition in partitions:
            position = self._store.position(partition)
            first, end = self._transport.bounds(partition)
            if position > end:
                raise OtherLogError(
                    f"{facts.name}-{partition}: the database is at {position}, the log ends at"
                    f" {end}"
                )
            if position < first:
                raise HistoryGoneError(
                    f"{facts.name}-{partition}: the database is at {position}, the log begins at"
                    f" {first}"
                )
            positions[partition] = position
        return positions

    def submit(
        self,
        context: TransactionContext[Db],
        *,
        deadline_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> Future[Completion]:
        """The future's exception: DeadlineError, NotTakenError, LocksError, or what `execute`
        raised. TooBusyError here if there was no room for `wait_seconds` (None: for ever)."""
        workers = self._workers.get(context.partition)
        if workers is None:
            raise LocksError(f"partition {context.partition} is not followed")
        if not self._room.acquire(timeout=wait_seconds):
            raise TooBusyError(f"{self._settings.waiting_max} transactions are under way")
        seconds = self._settings.deadline_seconds if deadline_seconds is None else deadline_seconds
        pending = _Pending(uuid.uuid4().bytes, time.monotonic() + seconds)
        try:
            future = workers.submit(self._run, context, pending)
        except RuntimeError:
            self._room.release()
            raise LocksError("the client is closed") from None
        future.add_done_callback(lambda _: self._room.release())
        return future

    def wait_applied(self, partition: int, *, seconds: float = 30.0) -> int:
        """Until all that was in the partition when it was called is applied here; that position."""
        _, end = self._transport.bounds(partition)
        self._progress.wait(_Pending(b"", time.monotonic() + seconds), partition, end)
        return end

    def close(self) -> None:
        """After what is in work."""
        for workers in self._workers.values():
            workers.shutdown()
        self._closing.set()
        self._applier.join()
        self._transport.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    # -- a transaction, in a worker's thread -------------------------------------------------------

    def _run(self, context: TransactionContext[Db], pending: _Pending) -> Completion:
        self._progress.begin(pending)
        try:
            completion = self._attempt_all(context, pending)
        finally:
            self._progress.end(pending)
        context.on_completion(completion)
        return completion

    def _attempt_all(self, context: TransactionContext[Db], pending: _Pending) -> Completion:
        partition = context.partition
        while True:
            pending.attempts += 1
            try:
                with self._store.snapshot(partition) as (db, position):
                    draft = Draft()
                    is_wanted = context.execute(draft, db)
            except DatabaseLostError as error:
                if time.monotonic() > pending.deadline:
                    raise DeadlineError(str(error), is_unknown=pending.is_in_doubt) from error
                self._back_off(pending.attempts)
                continue
            if not is_wanted:
                return self._given_up(pending)
            record = self._send(partition, draft, position, pending)
            if record is not None:
                context.on_application(record)
                return Completion(True, record.offset, pending.attempts)
            context.on_conflict(pending.attempts)
            self._back_off(pending.attempts)

    @staticmethod
    def _given_up(pending: _Pending) -> Completion:
        """DeadlineError if an earlier send may be in the log: a broker that was deposed and did not
        know it may have refused the one behind it."""
        if pending.record is not None:
            return Completion(True, pending.record.offset, pending.attempts)
        if pending.is_in_doubt:
            raise DeadlineError("given up after a send without an answer", is_unknown=True)
        return Completion(False, -1, pending.attempts)

    def _send(
        self, partition: int, draft: Draft, position: int, pending: _Pending
    ) -> LogRecord | None:
        """Its record, applied; None: it was refused, and all that it may be refused for is
        applied."""
        if draft.lock_count > self._facts.locks_per_record_max:
            limit = f"quire.locks.max.per.record={self._facts.locks_per_record_max}"
            raise NotTakenError(f"a transaction has {draft.lock_count} locks: {limit}")
        headers = draft.headers(position, pending.txn_id)
        tries = 0
        ahead_until = time.monotonic() + AHEAD_SECONDS
        while True:
            answer = self._answer(partition, draft, headers, pending)
            if answer.outcome is Outcome.WRITTEN:
                return self._progress.wait(pending, partition, None)
            if answer.outcome is Outcome.REFUSED:
                pending.is_sent = False
                end = self._end(partition, pending)
                if position <= end:
                    return self._progress.wait(pending, partition, end)
                if time.monotonic() > ahead_until:
                    raise OtherLogError(f"position {position} is beyond the log's end {end}")
            elif answer.outcome is Outcome.FAILED:
                raise NotTakenError(answer.text)
            else:
                pending.is_in_doubt = True
            if pending.record is not None:
                return pending.record
            tries += 1
            self._back_off(tries)

    def _end(self, partition: int, pending: _Pending) -> int:
        """DeadlineError."""
        while True:
            try:
                return self._transport.bounds(partition)[1]
            except UnreachableError as error:
                if time.monotonic() > pending.deadline:
                    unknown = pending.is_in_doubt
                    raise DeadlineError(str(error), is_unknown=unknown) from error
                self._back_off(pending.attempts)

    def _answer(self, partition: int, draft: Draft, headers: Headers, pending: _Pending) -> Answer:
        """Of one send. DeadlineError."""
        left = pending.deadline - time.monotonic()
        if left <= 0:
            text = f"partition {partition}: no place in the log after {pending.attempts} attempts"
            raise DeadlineError(text, is_unknown=pending.is_in_doubt)
        pending.is_sent = True
        answers: Future[Answer] = Future()
        self._transport.send(partition, draft.key, draft.value, headers, answers.set_result)
        try:
            return answers.result(left)
        except TimeoutError:
            return Answer(Outcome.UNKNOWN, text="no answer")

    def _back_off(self, times: int) -> None:
        settings = self._settings
        most = min(settings.backoff_seconds * 2 ** min(times, 16), settings.backoff_max_seconds)
        time.sleep(random.random() * most)

    # -- the applier -------------------------------------------------------------------------------

    def _apply_all(self) -> None:
        settings = self._settings
        try:
            self._transport.assign(self._positions)
            for partition, position in self._positions.items():
                self._progress.applied(partition, position, ())
            while not self._closing.is_set():
                fetched = self._transport.poll(settings.records_max, settings.poll_seconds)
                for partition, end in fetched.ends.items():
                    records = [one for one in fetched.records if one.partition == partition]
                    self._apply_some(partition, end, records)
        except BaseException as failure:
            self._progress.fail(failure)
            if not isinstance(failure, Exception):
                raise

    def _apply_some(self, partition: int, end: int, records: list[LogRecord]) -> None:
        """What was read up to `end`. Another program that shares the database may have applied
        some of it, or all: then it is as if we had."""
        start = self._positions[partition]
        read_from = records[0].offset if records else end
        while start < end:
            pending = [record for record in records if record.offset >= start]
            if self._store.apply(partition, start, end, pending, self._apply):
                start = end
                break
            start = self._store.position(partition)
            if start < read_from and start < self._positions[partition]:
                # The database went back, as after a restore: so do we.
                self._positions[partition] = start
                self._transport.seek(partition, start)
                return
        self._positions[partition] = start
        self._progress.applied(partition, end, records)

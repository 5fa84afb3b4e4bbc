"""Client: transactions in, applied records out.

    submit -> worker: snapshot, execute, send --refused--> apply up to the end, execute anew
                                        |written
    applier: poll -> store.apply(records, position) -> the worker hears of its record

A try in doubt is sent again as it was: the WRITE lock that each record has lets one of both in at
most. If the one behind it is refused, what is decided anew has that WRITE lock too, and is sent
once all is read back that its snapshot has: so it is not written behind the other either. What
decides is what is read back; an answer alone completes nothing.

Threads: one applier (quire_locks/applier.py); of each partition up to `concurrent_max` workers.
What they share is in Progress (quire_locks/progress.py).
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from quire_locks.applier import OLD_SECONDS, Applier
from quire_locks.context import Completion, Draft, TransactionContext
from quire_locks.errors import (
    DatabaseLostError,
    DeadlineError,
    LocksError,
    NotTakenError,
    OtherLogError,
    TooBusyError,
    UnreachableError,
)
from quire_locks.progress import Pending, Progress
from quire_locks.transport import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from quire_locks.context import Headers, LogRecord
    from quire_locks.store import Store
    from quire_locks.transport import TopicFacts, Transport

Db = TypeVar("Db")
Told = TypeVar("Told")

_logger = logging.getLogger("quire_locks")


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
        followed; None is all. Transport and store are the client's from here on, and closed with
        it, or if it cannot begin. OtherLogError, HistoryGoneError, LocksError."""
        self._transport = transport
        self._store = store
        self._settings = settings or Settings()
        self._progress = Progress()
        self._room = threading.Semaphore(self._settings.waiting_max)
        self._applier = Applier(
            transport,
            store,
            apply,
            self._progress,
            records_max=self._settings.records_max,
            poll_seconds=self._settings.poll_seconds,
        )
        self._workers: dict[int, ThreadPoolExecutor] = {}
        try:
            self._facts = self._check(transport.facts())
            followed = range(self._facts.partition_count) if partitions is None else partitions
            self._applier.start(self._facts, list(followed))
        except BaseException:
            self.close()
            raise
        self._workers = {
            partition: ThreadPoolExecutor(self._settings.concurrent_max)
            for partition in self._applier.positions
        }

    @staticmethod
    def _check(facts: TopicFacts) -> TopicFacts:
        if facts.locks == "off":
            raise LocksError(f"topic {facts.name} has quire.locks=off: nothing would be tested")
        return facts

    def submit(
        self,
        context: TransactionContext[Db],
        *,
        deadline_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> Future[Completion]:
        """The future's exception: DeadlineError, NotTakenError, StoppedError, LocksError, or what
        `execute` raised. Here: StoppedError; TooBusyError if there was no room for `wait_seconds`
        (None: for ever). A deadline of math.inf is none; ValueError for one that is no number."""
        workers = self._workers_of(context.partition)
        seconds = self._settings.deadline_seconds if deadline_seconds is None else deadline_seconds
        if math.isnan(seconds):
            raise ValueError(f"deadline_seconds={seconds}")
        self._progress.check()
        if not self._room.acquire(timeout=wait_seconds):
            raise TooBusyError(f"{self._settings.waiting_max} transactions are under way")
        pending = Pending(uuid.uuid4().bytes, time.monotonic() + seconds)
        try:
            future = workers.submit(self._run, context, pending)
        except RuntimeError:
            self._room.release()
            raise LocksError("the client is closed") from None
        future.add_done_callback(self._release_cancelled)
        return future

    def _workers_of(self, partition: int) -> ThreadPoolExecutor:
        workers = self._workers.get(partition)
        if workers is None:
            raise LocksError(f"partition {partition} is not followed")
        return workers

    def _release_cancelled(self, future: Future[Completion]) -> None:
        """One that was begun has given its place back itself."""
        if future.cancelled():
            self._room.release()

    def wait_applied(self, partition: int, *, seconds: float = 30.0) -> int:
        """Until all that was in the partition when it was called is applied here; that position.
        DeadlineError, StoppedError, UnreachableError."""
        self._workers_of(partition)
        _, end = self._transport.bounds(partition)
        self._progress.wait(Pending(b"", time.monotonic() + seconds), partition, end)
        return end

    def close(self) -> None:
        """After what is in work."""
        for workers in self._workers.values():
            workers.shutdown()
        self._applier.stop()
        try:
            self._transport.close()
        finally:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    # -- a transaction, in a worker's thread -------------------------------------------------------

    def _run(self, context: TransactionContext[Db], pending: Pending) -> Completion:
        self._progress.begin(pending)
        try:
            completion = self._attempt_all(context, pending)
        finally:
            self._progress.end(pending)
            self._room.release()
        _tell(context.on_completion, completion)
        return completion

    def _attempt_all(self, context: TransactionContext[Db], pending: Pending) -> Completion:
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
            except Exception as error:
                if not pending.is_in_doubt:
                    raise
                text = f"execute failed after a send without an answer: {error!r}"
                raise DeadlineError(text, is_unknown=True) from error
            # The snapshot may have the record of a try in doubt.
            waits = pending.is_in_doubt
            record = self._progress.wait(pending, partition, position) if waits else None
            if record is None:
                if not is_wanted:
                    return self._given_up(pending)
                record = self._send(partition, draft, position, pending)
            if record is not None:
                _tell(context.on_application, record)
                return Completion(True, record.offset, pending.attempts)
            _tell(context.on_conflict, pending.attempts)
            self._back_off(pending.attempts)

    @staticmethod
    def _given_up(pending: Pending) -> Completion:
        """DeadlineError if an earlier send may be in the log: a broker that was deposed and did not
        know it may have refused the one behind it."""
        if pending.record is not None:
            return Completion(True, pending.record.offset, pending.attempts)
        if pending.is_in_doubt:
            raise DeadlineError("given up after a send without an answer", is_unknown=True)
        return Completion(False, -1, pending.attempts)

    def _send(
        self, partition: int, draft: Draft, position: int, pending: Pending
    ) -> LogRecord | None:
        """Its record, applied; None: it was refused, and all that it may be refused for is
        applied."""
        headers = draft.headers(position, pending.txn_id, pending.guards)
        lock_count = draft.lock_count(pending.guards)
        if lock_count > self._facts.locks_per_record_max:
            limit = f"quire.locks.max.per.record={self._facts.locks_per_record_max}"
            text = f"a transaction has {lock_count} locks: {limit}"
            return self._not_taken(partition, pending, text)
        tries = 0
        old_until = time.monotonic() + OLD_SECONDS
        while True:
            answer = self._answer(partition, draft, headers, pending)
            if answer.outcome is Outcome.WRITTEN:
                return self._progress.wait(pending, partition, None)
            if answer.outcome is Outcome.REFUSED:
                pending.is_sent = False
                end = self._end(partition, pending)
                if position <= end:
                    return self._progress.wait(pending, partition, end)
                if time.monotonic() > old_until:
                    raise OtherLogError(f"position {position} is beyond the log's end {end}")
            elif answer.outcome is Outcome.FAILED:
                pending.is_sent = False
                return self._not_taken(partition, pending, answer.text)
            else:
                pending.is_in_doubt = True
                pending.guards.add(draft.guard(pending.txn_id))
            if pending.record is not None:
                return pending.record
            tries += 1
            self._back_off(tries)

    def _not_taken(self, partition: int, pending: Pending, text: str) -> LogRecord | None:
        """NotTakenError; but an earlier try that had no answer may be in the log: that is waited
        for. DeadlineError."""
        if not pending.is_in_doubt:
            raise NotTakenError(text)
        try:
            return self._progress.wait(pending, partition, None)
        except DeadlineError as error:
            text = f"{text}; an earlier try had no answer"
            raise DeadlineError(text, is_unknown=True) from error

    def _end(self, partition: int, pending: Pending) -> int:
        """DeadlineError."""
        while True:
            try:
                return self._transport.bounds(partition)[1]
            except UnreachableError as error:
                if time.monotonic() > pending.deadline:
                    unknown = pending.is_in_doubt
                    raise DeadlineError(str(error), is_unknown=unknown) from error
                self._back_off(pending.attempts)

    def _answer(self, partition: int, draft: Draft, headers: Headers, pending: Pending) -> Answer:
        """Of one send. DeadlineError."""
        self._progress.check(is_unknown=pending.is_in_doubt)
        left = pending.left_seconds
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


def _tell(function: Callable[[Told], None], told: Told) -> None:
    """What a program's own function raises is not the transaction's end: that is certain by now, or
    is not this function's matter."""
    try:
        function(told)
    except Exception:  # the program's own, whatever it is
        _logger.exception("a transaction's %s failed", getattr(function, "__name__", function))

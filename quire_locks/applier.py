"""Applier: reads partitions and applies their records to the store, in a thread of its own.

    poll -> is it still the topic that the database follows? -> store.apply(records, position)

The topic is asked for its id after the poll and before anything of it is applied: an id never comes
back, so what was read before the id was the database's is of that topic. Names do come back.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from quire_locks.errors import HistoryGoneError, LocksError, OtherLogError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire_locks.context import LogRecord
    from quire_locks.progress import Progress
    from quire_locks.store import Store
    from quire_locks.transport import TopicFacts, Transport

Db = TypeVar("Db")

#: So long a broker may tell something old: one that was deposed and does not know it, or one that
#: has just begun.
OLD_SECONDS = 3.0
RETRY_SECONDS = 0.1


class Applier(Generic[Db]):
    def __init__(
        self,
        transport: Transport,
        store: Store[Db],
        function: Callable[[Db, LogRecord], None],
        progress: Progress,
        *,
        records_max: int,
        poll_seconds: float,
    ) -> None:
        self._transport = transport
        self._store = store
        self._function = function
        self._progress = progress
        self._records_max = records_max
        self._poll_seconds = poll_seconds
        self._facts: TopicFacts | None = None
        #: Of the partitions that are followed.
        self.positions: dict[int, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quire-locks", daemon=True)

    def start(self, facts: TopicFacts, partitions: list[int]) -> None:
        """OtherLogError, HistoryGoneError."""
        self._facts = facts
        self._store.open(facts.name, facts.topic_id, partitions)
        self.positions = {number: self._position(facts, number) for number in partitions}
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is applied any more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _position(self, facts: TopicFacts, partition: int) -> int:
        until = time.monotonic() + OLD_SECONDS
        while True:
            position = self._store.position(partition)
            first, end = self._transport.bounds(partition)
            where = f"{facts.name}-{partition}: the database is at {position}, the log"
            if position < first:
                raise HistoryGoneError(f"{where} begins at {first}")
            if position <= end:
                return position
            if time.monotonic() > until:
                raise OtherLogError(f"{where} ends at {end}")
            time.sleep(RETRY_SECONDS)

    def _run(self) -> None:
        try:
            self._transport.assign(self.positions)
            for partition, position in self.positions.items():
                self._progress.applied(partition, position, ())
            while not self._closing.is_set():
                fetched = self._transport.poll(self._records_max, self._poll_seconds)
                moved = any(end > self.positions[number] for number, end in fetched.ends.items())
                if moved and not self._is_same_topic():
                    return  # closed meanwhile
                for partition, end in fetched.ends.items():
                    records = [one for one in fetched.records if one.partition == partition]
                    self._apply(partition, end, records)
        except BaseException as failure:
            self._progress.fail(failure)
            if not isinstance(failure, Exception):
                raise

    def _is_same_topic(self) -> bool:
        """Asks until it is answered; False if this is closed before. OtherLogError, LocksError."""
        assert self._facts is not None
        until = time.monotonic() + OLD_SECONDS
        while not self._closing.is_set():
            try:
                found = self._transport.topic_id()
            except UnreachableError:
                pass
            except LocksError:
                if time.monotonic() > until:
                    raise
            else:
                if found == self._facts.topic_id:
                    return True
                raise OtherLogError(
                    f"topic {self._facts.name} was made anew: its id was {self._facts.topic_id},"
                    f" and is {found}"
                )
            self._closing.wait(RETRY_SECONDS)
        return False

    def _apply(self, partition: int, end: int, records: list[LogRecord]) -> None:
        """What was read up to `end`. Another program that shares the database may have applied
        some of it, or all: then it is as if we had."""
        start = self.positions[partition]
        read_from = records[0].offset if records else end
        while start < end:
            pending = [record for record in records if record.offset >= start]
            if self._store.apply(partition, start, end, pending, self._function):
                start = end
                break
            start = self._store.position(partition)
            if start < read_from and start < self.positions[partition]:
                # The database went back, as after a restore: so do we.
                self.positions[partition] = start
                self._transport.seek(partition, start)
                return
        self.positions[partition] = start
        self._progress.applied(partition, end, records)

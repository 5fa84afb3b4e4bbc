"""Progress: what the applier's thread has read back, and which transactions wait for it.

One lock. Whoever waits is woken by each step.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire_locks.errors import DeadlineError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quire_locks.context import LogRecord


@dataclass(slots=True)
class Pending:
    """A transaction in work. `record`: its own, once it was read back and applied."""

    txn_id: bytes
    #: By the monotonic clock; may be infinite.
    deadline: float
    attempts: int = 0
    #: A send is on its way; one had no answer that says whether it was written.
    is_sent: bool = False
    is_in_doubt: bool = False
    #: A WRITE lock of each send without an answer, which all later ones have as well.
    guards: set[bytes] = field(default_factory=set)
    record: LogRecord | None = None

    @property
    def left_seconds(self) -> float:
        """As much as a thread can wait, at most."""
        return min(self.deadline - time.monotonic(), threading.TIMEOUT_MAX)


class Progress:
    """Up to where each partition was read back and applied, and whose records were."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applied: dict[int, int] = {}
        self._pending: dict[bytes, Pending] = {}
        self._failure: BaseException | None = None

    def begin(self, pending: Pending) -> None:
        with self._changed:
            self._pending[pending.txn_id] = pending

    def end(self, pending: Pending) -> None:
        with self._changed:
            del self._pending[pending.txn_id]

    def fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def check(self, *, is_unknown: bool = False) -> None:
        """StoppedError if nothing is applied any more."""
        if self._failure is not None:
            text = f"records are not applied any more: {self._failure}"
            raise StoppedError(text, is_unknown=is_unknown) from self._failure

    def applied(self, partition: int, end: int, records: Sequence[LogRecord]) -> None:
        with self._changed:
            for record in records:
                pending = None if record.txn_id is None else self._pending.get(record.txn_id)
                if pending is not None:
                    pending.record = record
            self._applied[partition] = end
            self._changed.notify_all()

    def wait(self, pending: Pending, partition: int, end: int | None) -> LogRecord | None:
        """Until its own record is applied, or all up to `end`; the record, if it is. What was
        applied before a failure counts. DeadlineError, StoppedError."""
        with self._changed:
            while True:
                if pending.record is not None:
                    return pending.record
                if end is not None and self._applied.get(partition, 0) >= end:
                    return None
                is_unknown = pending.is_sent or pending.is_in_doubt
                self.check(is_unknown=is_unknown)
                left = pending.left_seconds
                if left <= 0:
                    text = f"{partition}: its record was not read back in time"
                    raise DeadlineError(text, is_unknown=is_unknown)
                self._changed.wait(left)

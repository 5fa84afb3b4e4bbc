"""Transport: what the client asks of a Kafka library. One topic; assigned, never subscribed.

Every instance reads every partition that it applies: there is no group and nothing is committed, as
positions are the database's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quire_locks.context import Headers, LogRecord


#: Kafka's error codes of what no resend mends: INVALID_TOPIC_EXCEPTION, MESSAGE_TOO_LARGE,
#: RECORD_LIST_TOO_LARGE, INVALID_REQUIRED_ACKS, TOPIC_ and CLUSTER_AUTHORIZATION_FAILED,
#: INVALID_TIMESTAMP, POLICY_VIOLATION, UNSUPPORTED_COMPRESSION_TYPE.
FINAL_CODES = frozenset({17, 10, 18, 21, 29, 31, 32, 44, 76})
INVALID_RECORD_CODE = 87
#: The topic is not there, cannot be, or may not be looked at: UNKNOWN_TOPIC_OR_PARTITION,
#: INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED. All other errors of a question may pass.
NO_TOPIC_CODES = frozenset({3, 17, 29})


class Outcome(Enum):
    """What became of one try to write a record."""

    WRITTEN = "written"
    #: INVALID_RECORD: a conflict, or a position that nobody can have; not written by this try.
    REFUSED = "refused"
    #: Not written, and no other try will be.
    FAILED = "failed"
    #: It may be written or not, now or later.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: Outcome
    offset: int = -1
    #: For people; some libraries drop what the broker said.
    text: str = ""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Of the topic: its id, how many partitions, and the settings of its locks."""

    name: str
    topic_id: str
    partition_count: int
    locks: str
    locks_per_record_max: int


@dataclass(slots=True)
class Fetched:
    """Records in the order of each partition's offsets, and up to where each was read: that may be
    beyond the last record, as not every offset has one."""

    records: list[LogRecord] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, record: LogRecord) -> None:
        self.records.append(record)
        self.reach(record.partition, record.offset + 1)

    def reach(self, partition: int, end: int) -> None:
        self.ends[partition] = max(self.ends.get(partition, 0), end)


def outcome_of(code: int) -> Outcome:
    """Of a try that was answered with one of Kafka's error codes."""
    if code == INVALID_RECORD_CODE:
        return Outcome.REFUSED
    return Outcome.FAILED if code in FINAL_CODES else Outcome.UNKNOWN


class Transport(Protocol):
    """`poll`, `assign`, `seek` and `topic_id` are called by one thread, all else by any. LocksError
    where the topic is not as it must be, or is not there; UnreachableError where nobody answers."""

    def facts(self) -> TopicFacts: ...

    def topic_id(self) -> str:
        """Of the topic that has the name now, as `facts` tells it: as Kafka prints ids, so that it
        is the same over all libraries."""

    def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset, end) of now."""

    def assign(self, positions: Mapping[int, int]) -> None: ...

    def seek(self, partition: int, offset: int) -> None: ...

    def poll(self, records_max: int, timeout_s: float) -> Fetched:
        """Without what was rolled back by transactions. HistoryGoneError if what is asked for is
        deleted."""

    def send(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        done: Callable[[Answer], None],
    ) -> None:
        """`done(answer)` is called once, in any thread. Each record in a batch of its own. Makes no
        topic."""

    def close(self) -> None: ...

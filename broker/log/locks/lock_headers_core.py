"""Optimistic locks as a stock producer sends them: in the headers of its records.

    quire.position      decimal; the position up to which the sender had applied the partition when
                        it read what its decision rests on. Once, with every READ or WRITE lock
    quire.lock.read     id of a lock (1 to 255 bytes): the decision depends on it; repeatable
    quire.lock.write    … depends on it and changes it
    quire.lock.append   … changes it without depending on it: never tested, but marked

Ids are bytes that are hashed here, so that clients in all languages agree. Other headers that begin
with `quire.lock.` are refused: one that is misspelt would be a lock that nobody holds. All else is
the application's (`quire.txn.id`, by which a client finds its own record, is nothing to us).

Pure. What a batch may cost is bounded by elements (records and headers of a batch in which there is
any lock) and locks; more is MESSAGE_TOO_LARGE, after which a Java producer splits the batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from crc32c import crc32c

from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.walk import BLAMED_MAX, INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.buffers import Buffer

#: Id, and the two hashes that give its slots.
Lock: TypeAlias = tuple[bytes, int, int]

#: Values of the topic's setting quire.locks: nobody looks for any; every record must have one.
OFF, REQUIRED = "off", "required"
LOCK_PREFIX = b"quire.lock."
POSITION, READ, WRITE, APPEND = (
    b"quire.position", b"quire.lock.read", b"quire.lock.write", b"quire.lock.append",
)  # fmt: skip
ID_BYTES_MAX = 255
#: Of one batch. They are tested and marked in one turn of the loop, which takes 3 ms.
LOCKS_MAX = 1_000
#: Records and headers that are walked of one batch with locks: some 20 ms of a worker thread.
ELEMENTS_MAX = 20_000
#: What the batch of so many elements and locks costs, in ns, with its test and its marks.
ELEMENT_NS = 1_000
LOCK_NS = 4_000

_DECIMAL = re.compile(rb"[0-9]{1,19}")
_PRINTABLE = re.compile(rb"[!-~]+")


class RecordLocks(NamedTuple):
    """Of record `number` of its batch. `position` is -1 if nothing is tested."""

    number: int
    position: int
    tested: tuple[Lock, ...]
    marked: tuple[Lock, ...]


class BatchLocks(NamedTuple):
    """Records with locks, in order, and what looking at them costs."""

    records: tuple[RecordLocks, ...]
    cost_ns: int


#: Of a batch that was looked at, and has none.
NO_LOCKS = BatchLocks((), 0)


class LockHeadersError(KafkaError):
    """INVALID_RECORD: the headers say what locks cannot be; or there are none, and must be."""


class LockBudgetError(Exception):
    """It costs more than may be spent now; nothing was changed, and it may be tried again."""


class _BadHeadersError(Exception):
    """Of one record; the argument says why."""


def lock_of(name: bytes) -> Lock:
    return name, crc32(name), crc32c(name)


def lock_text(name: bytes) -> str:
    """For people: as it is if it is printable, else 0x and its bytes."""
    return name.decode("ascii") if _PRINTABLE.fullmatch(name) else f"0x{name.hex()}"


def batch_locks(
    inside: Buffer,
    count: int,
    *,
    is_required: bool,
    is_transactional: bool,
    per_record_max: int,
    budget_ns: int,
) -> BatchLocks:
    """`inside`: the records, not compressed, which were walked and are whole; `count` of them.

    LockHeadersError with the indexes of the records and a message for each; KafkaError
    MESSAGE_TOO_LARGE; LockBudgetError."""
    data = bytes(inside)
    if LOCK_PREFIX not in data:  # the usual batch of somebody who uses none
        if is_required:
            _refuse([(index, "has no lock") for index in range(min(count, BLAMED_MAX))])
        return NO_LOCKS
    reader = _Reader(data, per_record_max, budget_ns)
    found: list[RecordLocks] = []
    faults: list[tuple[int, str]] = []
    for index in range(count):
        try:
            record = reader.record(index)
        except _BadHeadersError as error:
            faults.append((index, error.args[0]))
            continue
        if record is not None:
            if is_transactional:
                faults.append((index, "has locks in a transaction, whose end is not known yet"))
            found.append(record)
        elif is_required:
            faults.append((index, "has no lock"))
    if faults:
        _refuse(faults)
    return BatchLocks(tuple(found), reader.spent_ns) if found else NO_LOCKS


def _refuse(faults: Sequence[tuple[int, str]]) -> None:
    faults = faults[:BLAMED_MAX]
    raise LockHeadersError(
        ErrorCode.INVALID_RECORD,
        f"LOCK_HEADERS record {faults[0][0]} {faults[0][1]}",
        record_indexes=[index for index, _ in faults],
        record_messages=[f"LOCK_HEADERS record {index} {text}" for index, text in faults],
    )


class _Reader:
    """Walks over records that are whole."""

    __slots__ = ("_at", "_budget_ns", "_data", "_elements", "_locks", "_per_record_max")

    def __init__(self, data: bytes, per_record_max: int, budget_ns: int) -> None:
        self._data = data
        self._per_record_max = per_record_max
        self._budget_ns = budget_ns
        self._at = self._elements = self._locks = 0

    @property
    def spent_ns(self) -> int:
        return self._elements * ELEMENT_NS + self._locks * LOCK_NS

    def record(self, index: int) -> RecordLocks | None:
        """The next one; None without a lock. _BadHeadersError, behind the record."""
        self._count(1)
        length = self._varint()
        end = self._at + length
        self._at += 1
        self._varint()  # timestamp
        self._varint()  # offset
        self._bytes()  # key
        self._bytes()  # value
        count = self._varint()
        if not count:
            return None
        self._count(count)
        try:
            return self._headers(index, count)
        finally:
            self._at = end

    def _headers(self, index: int, count: int) -> RecordLocks | None:
        positions: list[bytes | None] = []
        tested: list[Lock] = []
        marked: list[Lock] = []
        lock_count = 0
        for _ in range(count):
            name, value = self._bytes(), self._bytes()
            assert name is not None, "a header's key is never null"
            if name == POSITION:
                positions.append(value)
            elif name.startswith(LOCK_PREFIX):
                lock_count += 1
                lock = self._lock(name, value, lock_count)
                if name != APPEND:
                    tested.append(lock)
                if name != READ:
                    marked.append(lock)
        if not lock_count:
            return None
        return RecordLocks(index, _position(positions, tested), tuple(tested), tuple(marked))

    def _lock(self, name: bytes, value: bytes | None, count: int) -> Lock:
        if name not in (READ, WRITE, APPEND):
            text = lock_text(name[:100])
            raise _BadHeadersError(f"has a header {text} where read, write and append are known")
        if value is None or not 1 <= len(value) <= ID_BYTES_MAX:
            size = 0 if value is None else len(value)
            raise _BadHeadersError(f"has a lock id of {size} bytes where 1 to 255 may be")
        if count > self._per_record_max:
            limit = f"quire.locks.max.per.record={self._per_record_max}"
            raise _BadHeadersError(f"has more locks than {limit}")
        self._locks += 1
        if self._locks > LOCKS_MAX:
            _too_large(f"more than {LOCKS_MAX} locks")
        if self.spent_ns > self._budget_ns:
            raise LockBudgetError
        return lock_of(value)

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > ELEMENTS_MAX:
            _too_large(f"more than {ELEMENTS_MAX} records and headers")
        if self.spent_ns > self._budget_ns:
            raise LockBudgetError

    def _varint(self) -> int:
        data, at = self._data, self._at
        byte = data[at]
        at += 1
        value, shift = byte & 0x7F, 7
        while byte & 0x80:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        self._at = at
        return (value >> 1) ^ -(value & 1)

    def _bytes(self) -> bytes | None:
        size = self._varint()
        if size < 0:
            return None
        start = self._at
        self._at += size
        return self._data[start : start + size] if size <= ID_BYTES_MAX else self._long(start, size)

    def _long(self, start: int, size: int) -> bytes:
        """What is longer than any name or id of ours is not copied whole: so much that it shows."""
        return self._data[start : start + min(size, ID_BYTES_MAX + 1)]


def _position(positions: list[bytes | None], tested: list[Lock]) -> int:
    if len(positions) > 1:
        raise _BadHeadersError(f"has quire.position {len(positions)} times")
    if not positions:
        if tested:
            raise _BadHeadersError("has locks that are tested, and no quire.position")
        return -1
    text = positions[0]
    if text is None or not _DECIMAL.fullmatch(text) or int(text) > INT64_MAX:
        raise _BadHeadersError("has a quire.position that is no offset in decimal digits")
    return int(text) if tested else -1


def _too_large(what: str) -> None:
    raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch with locks has {what}")

"""What one partition knows of its idempotent producers (KIP-98, KIP-360): pure, no clock, no I/O.

Owner of the state: the partition's log, which calls `check` before it gives a batch its offsets
and `append` in the same turn, when the batch is queued. So the state is ahead of what is durable,
and a retry of a batch that is still on its way is recognised: the answer has the batch's base
offset, and the log sends it when the high watermark has passed it. If the batch is lost after all,
the log is too, and whoever takes over rebuilds the state: a snapshot, then `append` of every header
behind it.

Per producer id: its epoch, the last five batches, the time of its last append, and where its open
transaction began. Rules, as Kafka 4's ProducerAppendInfo and ProducerStateEntry have them:

- An id that is not known may begin anywhere: its records may have been deleted, its state expired
  (KIP-360; UNKNOWN_PRODUCER_ID is never answered).
- A lower epoch than the known one is INVALID_PRODUCER_EPOCH; a higher one begins at sequence 0.
- Within an epoch each batch begins one behind the last; 0 follows 2**31 - 1. Exactly one of the
  last five again is a duplicate. All else is OUT_OF_ORDER_SEQUENCE_NUMBER.
- In a transaction a batch that is not transactional is INVALID_TXN_STATE.
- A marker ends the transaction. Of a client of transaction version 0 or 1 it has the producer's own
  epoch, and a lower one is INVALID_PRODUCER_EPOCH; of version 2 it has the next epoch, and the
  producer's own is refused, too, unless no transaction is open: then it is the same marker once
  more, whose answer was lost (KIP-890, KAFKA-19999). A marker of an older coordinator than the last
  is TRANSACTION_COORDINATOR_FENCED. A marker of a producer that is not known is taken.

Deviations. One of the last five again, after the transaction that it was part of has ended, is
INVALID_TXN_STATE; Kafka's broker calls it a duplicate. Whoever ends a transaction has given up what
was on its way, so that this is another batch: librdkafka (2.16) numbers what follows an abort as if
what it gave up had never been written, and as a duplicate it would be committed without a record.

A batch that surely is in the log, but before the last five, is DUPLICATE_SEQUENCE_NUMBER. Clients
take that for success without an offset, which it is; Kafka's broker answers
OUT_OF_ORDER_SEQUENCE_NUMBER, for it does not know. Here the state counts how many sequence numbers
without a gap lead up to the last, so nothing that was lost is called a duplicate.

A producer is remembered for producer.id.expiration.ms since its last append, and never forgotten
earlier: else whoever makes many ids would end the idempotence of all others, without anybody's
notice. What is bounded is how many begin. At `producers_max` of a partition, or with no `Room` for
more in the whole broker, a batch of an id that is not known is refused with
THROTTLING_QUOTA_EXCEEDED (Java's producers retry it; librdkafka's report it), until one expires;
whoever is known goes on. Kafka has no such bound, and runs out of heap. A replay refuses nothing.
Who is refused begins with the batch that was refused first, whatever else of it comes before:
OUT_OF_ORDER_SEQUENCE_NUMBER (broker/log/append/producer_refusals.py).
How they are kept is in broker/log/append/producer_store.py.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from broker.log.append.producer_refusals import ProducerRefusals
from broker.log.append.producer_snapshot import (
    NO_OFFSET,
    SEQUENCE_MASK,
    Batch,
    Producer,
    decode_snapshot,
    encode_snapshot,
)
from broker.log.append.producer_store import HOT_MAX, ProducerStore, Room
from wire.buffers import Buffer
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import (
    CONTROL_MASK,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from wire.kafka.records.control import EndTransactionMarker

#: From this transaction.version on each transaction has an epoch of its own (KIP-890).
TRANSACTION_VERSION_EPOCHS = 2
#: As many as a producer may have in flight (KIP-98: max.in.flight.requests.per.connection <= 5).
BATCHES_KEPT_MAX = 5
PRODUCER_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms
#: What one call of `expire` forgets, and one step of a restoration takes over: 2 ms each.
STEP_PRODUCERS = 4_000

# Sequence numbers wrap, so «before» and «behind» are told apart only this far.
_RUN_MAX = 2**30


class Duplicate(NamedTuple):
    """The batch is in the log already, or queued for it, at `base_offset`.

    `log_append_time_ms` is -1 unless the topic's timestamps are append times.
    """

    base_offset: int
    log_append_time_ms: int


@dataclass(slots=True, frozen=True)
class ProducerInfo:
    """One producer, as DescribeProducers shows it; -1 where there is nothing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class ProducerState:
    """The producers of one partition. `producers_max` bounds how many may be known when a new one
    begins. They count in `room` between `enter` and `leave`."""

    __slots__ = (
        "_expiration_ms",
        "_open_transactions",
        "_refusals",
        "_refused_count",
        "_store",
        "end_offset",
        "producers_max",
    )

    def __init__(self, *, producers_max: int, hot_max: int = HOT_MAX) -> None:
        assert producers_max > 0
        self.producers_max = producers_max
        #: Behind the last batch that the state reflects; it knows all of the log below.
        self.end_offset = 0
        self._refused_count = 0
        #: Of new producers; made with the first.
        self._refusals: ProducerRefusals | None = None
        self._store = ProducerStore(hot_max)
        self._open_transactions: OrderedDict[int, int] = OrderedDict()  # id -> first offset
        self._expiration_ms = PRODUCER_EXPIRATION_MS

    def __len__(self) -> int:
        return len(self._store)

    def enter(self, room: Room) -> None:
        """The partition serves: its producers count."""
        self._store.enter(room)

    def leave(self) -> None:
        """It does not any more."""
        if self._refusals is not None:
            self._refusals.leave(self._store.room)
            self._refusals = None
        self._store.leave()

    def take_refused(self) -> int:
        """Batches of new producers that were refused since this was asked last."""
        count, self._refused_count = self._refused_count, 0
        return count

    @property
    def first_open_transaction_offset(self) -> int | None:
        """Where the oldest open transaction began; the last stable offset is not beyond it."""
        if not self._open_transactions:
            return None
        return next(iter(self._open_transactions.values()), None)

    @property
    def oldest_transaction_append_ms(self) -> int | None:
        """When whoever has had a transaction open for the longest appended last; None: nobody
        has."""
        producer_id = next(iter(self._open_transactions), None)
        producer = None if producer_id is None else self._store.find(producer_id)
        return None if producer is None else producer.last_append_ms

    def producers(self) -> Iterator[ProducerInfo]:
        """All producers, the one that has not appended for the longest first."""
        for producer_id in self._store.ids():
            producer = self._store.find(producer_id)
            if producer is not None:
                yield ProducerInfo(
                    producer_id,
                    producer.epoch,
                    producer.last_sequence,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_start_offset,
                )

    def last_places(self, below_offset: int) -> Iterator[tuple[int, int, int]]:
        """(producer id, last offset of its last batch with sequence numbers that is below
        `below_offset`, -1 if none is remembered; epoch) of all that are known now, for a cleaner,
        which keeps the headers of these batches. There may be 20,000, to be asked for in slices;
        those that expire meanwhile are left out."""
        for producer_id in self._store.ids():
            producer = self._store.find(producer_id)
            if producer is None:
                continue
            last_offset = NO_OFFSET
            for batch in producer.batches:
                end = batch.base_offset + batch.sequence_count
                if end <= below_offset:
                    last_offset = max(last_offset, end - 1)
            yield producer_id, last_offset, producer.epoch

    # -- before an append ------------------------------------------------------------------------

    def check(self, header: BatchHeader, now_ms: int) -> Duplicate | None:
        """Whether the batch, which is no marker, may be appended (None), or is a duplicate. Changes
        nothing.

        A batch without sequence numbers (of a coordinator's offsets) is checked for its epoch
        alone; that a client's batch has some is for the validation of its header.

        KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE; THROTTLING_QUOTA_EXCEEDED for a new producer if
        there is room for none; that is noted.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        producer = self._store.find(producer_id)
        if producer is None:
            self._check_new(header, now_ms)
            return None
        epoch = header.producer_epoch
        # It goes on where the last one ended, or is the first of a higher epoch, as a transaction's
        # first batch is (KIP-890): no batch that is known can be the same.
        is_next = (
            header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MASK
            if epoch == producer.epoch
            else epoch > producer.epoch and not header.base_sequence
        )
        if is_next and (
            producer.transaction_start_offset < 0 or header.attributes & TRANSACTIONAL_MASK
        ):
            return None
        return self._check_odd(producer, header, now_ms)

    def check_marker(
        self, header: BatchHeader, marker: EndTransactionMarker, transaction_version: int
    ) -> None:
        """Whether the marker may be appended. Changes nothing. What expires without a sweep is
        known here still: who knows more refuses what is late.

        There is always room for it: a transaction that cannot end would hold back all readers.
        KafkaError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        producer = self._store.find(header.producer_id)
        if producer is None:
            return
        epoch = header.producer_epoch
        is_late = epoch < producer.epoch
        if transaction_version >= TRANSACTION_VERSION_EPOCHS and epoch == producer.epoch:
            is_late = producer.transaction_start_offset >= 0
        if is_late:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the marker {epoch},"
                f" by transaction version {transaction_version}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch} for producer"
                f" {header.producer_id}: {producer.coordinator_epoch} was seen",
            )

    def check_first(self, header: BatchHeader, now_ms: int) -> None:
        """Of the first batch of a transaction of version 2: that of a producer that is not known,
        or has expired, begins at 0, as each transaction has an epoch of its own (KAFKA-18202).
        KafkaError OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if header.base_sequence <= 0:
            return
        producer = self._store.find(header.producer_id)
        if producer is None or self._has_expired(producer, now_ms):
            raise _out_of_order(header, "a transaction of a producer that is not known begins at 0")

    def transaction_start(self, producer_id: int) -> int:
        """Where the open transaction of that producer began; -1 without one."""
        return self._open_transactions.get(producer_id, NO_OFFSET)

    def is_in_transaction(self, header: BatchHeader) -> bool:
        """Whether a transaction of the batch's producer, in the same epoch, is open."""
        return self.has_transaction(header.producer_id, header.producer_epoch)

    def has_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of that producer, in that epoch, is open."""
        if producer_id not in self._open_transactions:
            return False
        producer = self._store.find(producer_id)
        assert producer is not None, "a producer with an open transaction is never forgotten"
        return producer.epoch == producer_epoch

    def open_transactions(self) -> dict[int, int]:
        """By producer id, where each open transaction began; the oldest first."""
        return dict(self._open_transactions)

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """The batch passed `check`, and was refused for another reason, which will pass: what its
        producer sent behind it is not taken before it."""
        if header.producer_id < 0 or self._store.find(header.producer_id) is not None:
            return
        if self._refusals is None:
            self._refusals = ProducerRefusals()
        self._refusals.note(header, now_ms, self._store.room)

    def _check_new(self, header: BatchHeader, now_ms: int) -> None:
        """`check` of a producer that is not known."""
        try:
            self._check_room(header.producer_id, now_ms)
        except KafkaError:
            self.note_refused(header, now_ms)
            raise
        if self._refusals is not None:
            self._refusals.expire(now_ms - self._expiration_ms, self._store.room)
            if self._refusals.must_wait(header):
                raise _out_of_order(header, "what comes before it was refused, and did not come")

    def _check_room(self, producer_id: int, now_ms: int) -> None:
        room = self._store.room
        is_full = room is not None and room.count >= room.count_max
        if len(self._store) < self.producers_max and not is_full:
            return
        oldest = self._store.oldest(self._open_transactions)
        if oldest is not None and oldest[1] <= now_ms - self._expiration_ms:
            return  # it gives its place to the new one
        self._refused_count += 1
        if room is not None:
            room.refused_count += 1
        raise KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{len(self)} producers of this partition are remembered, and a new one ({producer_id})"
            " must wait until one expires (producer.id.expiration.ms)",
        )

    def check_unasked(self, header: BatchHeader, now_ms: int) -> Duplicate | None:
        """Of a batch of a transaction that is not known to be open here, before its coordinator is
        asked: what is in the log is there, and a lower epoch is over, whatever the coordinator
        says. Whether the batch is next is looked at behind the answer, as Kafka does: what came
        before it may have been refused by the coordinator, and then this is, too, in the same way.
        OUT_OF_ORDER_SEQUENCE_NUMBER would say that something was lost.

        KafkaError INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE."""
        producer = self._store.find(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            return None
        duplicate = _duplicate_of(producer, header)
        if duplicate is None and not self._has_expired(producer, now_ms):
            _check_epoch(producer, header)
        return duplicate

    def _check_odd(self, producer: Producer, header: BatchHeader, now_ms: int) -> Duplicate | None:
        """`check` of what does not simply go on where the producer's last batch ended."""
        duplicate = _duplicate_of(producer, header)
        if duplicate is not None:
            return duplicate
        if self._has_expired(producer, now_ms):
            return None
        _check_epoch(producer, header)
        if header.base_sequence >= 0:
            _check_sequence(producer, header)
        if producer.transaction_start_offset >= 0 and not header.attributes & TRANSACTIONAL_MASK:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open since offset"
                f" {producer.transaction_start_offset}, the batch is not part of it",
            )
        return None

    def _has_expired(self, producer: Producer, now_ms: int) -> bool:
        """Though no sweep came by yet: it is as good as not known."""
        return (
            now_ms - producer.last_append_ms >= self._expiration_ms
            and producer.transaction_start_offset < 0
        )

    # -- after it --------------------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        *,
        log_append_time_ms: int | None = None,
        marker: EndTransactionMarker | None = None,
    ) -> None:
        """The batch is in the log, or queued for it, at `base_offset`. Checks nothing.

        Also for replaying a log, with each header as it is there; batches below `end_offset` are
        known and change nothing. `log_append_time_ms` is None if the header tells, and what was
        patched into the batch if `header` is from before that. `marker` is what a control batch
        holds; one without, which compaction emptied, says nothing.
        """
        producer_id = header.producer_id
        if producer_id < 0 or base_offset < self.end_offset:
            return
        if header.attributes & CONTROL_MASK and marker is None:
            self.end_offset = base_offset + header.last_offset_delta + 1
            return
        producer = self._store.latest(producer_id)
        if producer is None:
            room = self._store.room
            is_full = room is not None and room.count >= room.count_max
            if is_full or len(self._store) >= self.producers_max:
                self._expire_oldest(now_ms - self._expiration_ms)
            producer = self._store.add(producer_id)
            if self._refusals is not None:
                self._refusals.forget(producer_id, room)
        delta = header.last_offset_delta
        attributes = header.attributes
        if header.producer_epoch != producer.epoch:
            producer.begin_epoch(header.producer_epoch)
        first_sequence = header.base_sequence
        if first_sequence >= 0:
            last_sequence = (first_sequence + delta) & SEQUENCE_MASK
            if first_sequence == (producer.last_sequence + 1) & SEQUENCE_MASK:
                producer.run_length += delta + 1
            else:  # first of its epoch or of what is left of it, or compaction took some
                producer.run_length = delta + 1
            producer.last_sequence = last_sequence
            if log_append_time_ms is None:
                append_time = attributes & TIMESTAMP_TYPE_MASK
                log_append_time_ms = header.max_timestamp if append_time else NO_TIMESTAMP
            batches = producer.batches
            batches.append(  # `_make` takes half the time of a call
                Batch._make((first_sequence, last_sequence, base_offset, log_append_time_ms))
            )
            if len(batches) > BATCHES_KEPT_MAX:
                del batches[0]
        else:
            producer.unsequenced_offset = base_offset
        producer.last_timestamp = header.max_timestamp
        producer.last_append_ms = now_ms
        self.end_offset = base_offset + delta + 1
        if marker is not None:
            producer.transaction_start_offset = NO_OFFSET
            producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
            self._open_transactions.pop(producer_id, None)
        elif attributes & TRANSACTIONAL_MASK and producer.transaction_start_offset < 0:
            producer.transaction_start_offset = base_offset
            self._open_transactions[producer_id] = base_offset

    def expire(self, now_ms: int, producer_id_expiration_ms: int) -> int:
        """Forgets producers without an append for so long; gives how many they were. When they are
        STEP_PRODUCERS there may be more, for a next call.

        One with an open transaction stays: its marker is still to come.
        """
        self._expiration_ms = producer_id_expiration_ms
        latest_ms = now_ms - producer_id_expiration_ms
        if self._refusals is not None:
            self._refusals.expire(latest_ms, self._store.room)
        count = 0
        while count < STEP_PRODUCERS and self._expire_oldest(latest_ms):
            count += 1
        return count

    def _expire_oldest(self, latest_ms: int) -> bool:
        """Whether there was one to forget."""
        oldest = self._store.oldest(self._open_transactions)
        if oldest is None or oldest[1] > latest_ms:
            return False
        self._store.remove(oldest[0])
        return True

    # -- rebuilding ------------------------------------------------------------------------------

    def snapshot(self) -> list[Callable[[], bytes]]:
        """The state as it is now, as the parts of a snapshot, for `restore`. Each is encoded when
        it is called, whatever was appended since; broker/log/append/producer_snapshot.py has the
        format.
        """
        return encode_snapshot(self._store.packed(), self.end_offset)

    def restore(self, parts: Sequence[Buffer]) -> None:
        """`restoring` without a pause."""
        for _ in self.restoring(parts):
            pass

    def restoring(self, parts: Sequence[Buffer]) -> Iterator[None]:
        """Takes over the state of a snapshot, all parts of it, instead of its own; yields after
        every STEP_PRODUCERS.

        WireError, and nothing changed, if the snapshot is damaged, cut short, of a version that is
        not known, or its parts are not of one.
        """
        cold: OrderedDict[int, bytes] = OrderedDict()
        transactions: list[tuple[int, int]] = []
        ends: set[int] = set()
        count = 0
        for part in parts:
            end_offset, producers = decode_snapshot(part)
            ends.add(end_offset)
            for producer_id, transaction_start, packed in producers:
                cold[producer_id] = packed
                if transaction_start >= 0:
                    transactions.append((transaction_start, producer_id))
                count += 1
                if not count % STEP_PRODUCERS:
                    yield
        if len(ends) != 1:
            raise WireError(f"producer snapshot in parts of end offsets {sorted(ends)}")
        self._store.replace(cold)
        self._open_transactions = OrderedDict((pid, start) for start, pid in sorted(transactions))
        self.end_offset = ends.pop()


def _out_of_order(header: BatchHeader, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"batch of producer {header.producer_id} epoch {header.producer_epoch} with sequence"
        f" {header.base_sequence} to {header.last_sequence}: {why}",
    )


def _duplicate_of(producer: Producer, header: BatchHeader) -> Duplicate | None:
    """The batch among the producer's last ones that it is once more. KafkaError INVALID_TXN_STATE
    for one of a transaction that has ended."""
    first_sequence = header.base_sequence
    if header.producer_epoch != producer.epoch or first_sequence < 0:
        return None
    last_sequence = header.last_sequence
    start = producer.transaction_start_offset
    for batch in producer.batches:
        if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
            if header.attributes & TRANSACTIONAL_MASK and not 0 <= start <= batch.base_offset:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {header.producer_id} sent sequence {first_sequence} to"
                    f" {last_sequence} in a transaction that has ended, at {batch.base_offset}",
                )
            return Duplicate(batch.base_offset, batch.log_append_time_ms)
    return None


def _check_epoch(producer: Producer, header: BatchHeader) -> None:
    """KafkaError INVALID_PRODUCER_EPOCH."""
    if header.producer_epoch < producer.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {producer.epoch}, the batch"
            f" {header.producer_epoch}",
        )


def _check_sequence(producer: Producer, header: BatchHeader) -> None:
    """KafkaError unless the batch begins a new epoch or goes on with the known one."""
    first_sequence = header.base_sequence
    if header.producer_epoch != producer.epoch:
        if first_sequence != 0:
            raise _out_of_order(header, f"epoch {producer.epoch} is known, a new one begins at 0")
        return
    expected = (producer.last_sequence + 1) & SEQUENCE_MASK
    if first_sequence == expected:
        return
    # How far the batch's first and last numbers lie before the last one that is in the log.
    first_distance = (producer.last_sequence - first_sequence) & SEQUENCE_MASK
    last_distance = (producer.last_sequence - header.last_sequence) & SEQUENCE_MASK
    kept_count = sum(batch.sequence_count for batch in producer.batches)
    if kept_count <= last_distance <= first_distance < min(producer.run_length, _RUN_MAX):
        raise KafkaError(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            f"batch of producer {header.producer_id} epoch {header.producer_epoch} with sequence"
            f" {first_sequence} to {header.last_sequence} is in the log; the next is {expected}",
        )
    raise _out_of_order(header, f"{expected} is next")

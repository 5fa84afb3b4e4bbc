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
- In a transaction a batch that is not transactional is INVALID_TXN_STATE. A marker of an older
  coordinator than the last is TRANSACTION_COORDINATOR_FENCED.

One deviation: a batch that surely is in the log, but before the last five, is
DUPLICATE_SEQUENCE_NUMBER. Clients take that for success without an offset, which it is; Kafka's
broker answers OUT_OF_ORDER_SEQUENCE_NUMBER, for it does not know. Here the state counts how many
sequence numbers without a gap lead up to the last, so nothing that was lost is called a duplicate.

Bounded: at most `producers_max` producers; the one that has not appended for the longest goes
first, but never one with an open transaction. About 1.5 KiB each.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from broker.log.producer_snapshot import (
    NO_OFFSET,
    SEQUENCE_MASK,
    Batch,
    Producer,
    decode_snapshot,
    encode_snapshot,
)
from wire.buffers import Buffer
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import (
    CONTROL_MASK,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)

#: As many as a producer may have in flight (KIP-98: max.in.flight.requests.per.connection <= 5).
BATCHES_KEPT_MAX = 5
PRODUCER_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms

# Sequence numbers wrap, so «before» and «behind» are told apart only this far.
_RUN_MAX = 2**30
_FOREVER_MS = 2**63


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
    """The producers of one partition. `producers_max` bounds how many are remembered."""

    __slots__ = (
        "_expiration_ms",
        "_oldest_append_ms",
        "_open_transactions",
        "_producers",
        "end_offset",
        "producers_max",
    )

    def __init__(self, *, producers_max: int) -> None:
        assert producers_max > 0
        self.producers_max = producers_max
        #: Behind the last batch that the state reflects; it knows all of the log below.
        self.end_offset = 0
        self._producers: OrderedDict[int, Producer] = OrderedDict()  # last appended last
        self._open_transactions: OrderedDict[int, int] = OrderedDict()  # id -> first offset
        self._expiration_ms = PRODUCER_EXPIRATION_MS
        self._oldest_append_ms = _FOREVER_MS  # not above any producer's last append

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def first_open_transaction_offset(self) -> int | None:
        """Where the oldest open transaction began: the last stable offset is not beyond it."""
        return next(iter(self._open_transactions.values()), None)

    def producers(self) -> Iterator[ProducerInfo]:
        """All producers, the one that has not appended for the longest first."""
        for producer_id, producer in self._producers.items():
            yield ProducerInfo(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.transaction_start_offset,
            )

    # -- before an append ------------------------------------------------------------------------

    def check(
        self, header: BatchHeader, now_ms: int, *, coordinator_epoch: int = -1
    ) -> Duplicate | None:
        """Whether the batch may be appended (None), or is a duplicate. Changes nothing.

        A batch without sequence numbers (of a coordinator's offsets, or a marker) is checked for
        its epoch alone; that a client's batch has some is for the validation of its header.
        `coordinator_epoch` is that of a marker.

        KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED;
        THROTTLING_QUOTA_EXCEEDED for a new producer if there is room for none.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None:
            self._check_room()
            return None
        if (
            header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MASK
            and header.producer_epoch == producer.epoch
            and (producer.transaction_start_offset < 0 or header.attributes & TRANSACTIONAL_MASK)
        ):
            return None
        return self._check_odd(producer, header, now_ms, coordinator_epoch)

    def check_all(self, headers: Iterable[BatchHeader], now_ms: int) -> list[Duplicate] | None:
        """`check` for batches that are to be appended together, all or none of them.

        None if all are new, the duplicates if all are. KafkaError as of `check`, and
        OUT_OF_ORDER_SEQUENCE_NUMBER if only some are duplicates: no answer would suit both.
        """
        scratch = ProducerState(producers_max=self.producers_max)
        scratch._expiration_ms = self._expiration_ms
        duplicates: list[Duplicate] = []
        count = 0
        next_offset = self.end_offset
        for header in headers:
            if header.producer_id not in scratch._producers:
                known = self._producers.get(header.producer_id)
                if known is None:
                    if header.producer_id >= 0:
                        self._check_room()
                else:
                    scratch._producers[header.producer_id] = known.copy()
            count += 1
            duplicate = scratch.check(header, now_ms)
            if duplicate is not None and duplicate.base_offset < self.end_offset:
                duplicates.append(duplicate)
            elif duplicate is not None:
                raise _out_of_order(header, "it is twice in one request")
            else:
                scratch.append(header, next_offset, now_ms)
                next_offset += header.last_offset_delta + 1
        if not duplicates:
            return None
        if len(duplicates) < count:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{len(duplicates)} of {count} batches are in the log already",
            )
        return duplicates

    def _check_room(self) -> None:
        if len(self._producers) < self.producers_max:
            return
        if len(self._open_transactions) >= self.producers_max:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self.producers_max} producers of this partition have open transactions",
            )

    def _check_odd(
        self, producer: Producer, header: BatchHeader, now_ms: int, coordinator_epoch: int
    ) -> Duplicate | None:
        """`check` of what does not simply go on where the producer's last batch ended."""
        first_sequence = header.base_sequence
        epoch = header.producer_epoch
        if epoch == producer.epoch and first_sequence >= 0:
            last_sequence = header.last_sequence
            for batch in producer.batches:
                if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                    return Duplicate(batch.base_offset, batch.log_append_time_ms)
        if (
            now_ms - producer.last_append_ms >= self._expiration_ms
            and producer.transaction_start_offset < 0
        ):
            return None  # expired, though no sweep came by yet: as good as not known
        if epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch {epoch}",
            )
        if header.attributes & CONTROL_MASK:
            if 0 <= coordinator_epoch < producer.coordinator_epoch:
                raise KafkaError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"marker of coordinator epoch {coordinator_epoch} for producer"
                    f" {header.producer_id}: {producer.coordinator_epoch} was seen",
                )
            return None
        if first_sequence >= 0:
            _check_sequence(producer, header)
        if producer.transaction_start_offset >= 0 and not header.attributes & TRANSACTIONAL_MASK:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open since offset"
                f" {producer.transaction_start_offset}, the batch is not part of it",
            )
        return None

    # -- after it --------------------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        *,
        log_append_time_ms: int | None = None,
        coordinator_epoch: int = -1,
    ) -> None:
        """The batch is in the log, or queued for it, at `base_offset`. Checks nothing.

        Also for replaying a log, with each header as it is there; batches below `end_offset` are
        known and change nothing. `log_append_time_ms` is None if the header tells, and what was
        patched into the batch if `header` is from before that.
        """
        producer_id = header.producer_id
        if producer_id < 0 or base_offset < self.end_offset:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
            if len(self._producers) > self.producers_max:
                self._evict(producer_id)
        else:
            self._producers.move_to_end(producer_id)
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
        if now_ms < self._oldest_append_ms:
            self._oldest_append_ms = now_ms
        self.end_offset = base_offset + delta + 1
        if attributes & CONTROL_MASK or (
            attributes & TRANSACTIONAL_MASK and producer.transaction_start_offset < 0
        ):
            self._move_transaction(producer_id, producer, header, base_offset, coordinator_epoch)

    def _move_transaction(
        self,
        producer_id: int,
        producer: Producer,
        header: BatchHeader,
        base_offset: int,
        coordinator_epoch: int,
    ) -> None:
        """A marker ends the producer's transaction; its first batch begins it."""
        if header.is_control:
            producer.transaction_start_offset = NO_OFFSET
            producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
            self._open_transactions.pop(producer_id, None)
        else:
            producer.transaction_start_offset = base_offset
            self._open_transactions[producer_id] = base_offset

    def _evict(self, newest_id: int) -> None:
        """Forgets the producer that has not appended for the longest, if its transaction is over.

        `check` refuses a new one when all have open transactions; a replay does not, and then they
        all stay.
        """
        for producer_id in self._producers:
            if producer_id not in self._open_transactions and producer_id != newest_id:
                del self._producers[producer_id]
                return

    def expire(self, now_ms: int, producer_id_expiration_ms: int) -> int:
        """Forgets the producers without an append for so long; gives how many they were.

        One with an open transaction stays: its marker is still to come.
        """
        self._expiration_ms = producer_id_expiration_ms
        latest_ms = now_ms - producer_id_expiration_ms
        if self._oldest_append_ms > latest_ms:
            return 0
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_append_ms <= latest_ms and producer.transaction_start_offset < 0
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self._oldest_append_ms = self._find_oldest_append()
        return len(expired)

    # -- rebuilding ------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> list[int]:
        """Forgets what lies at `end_offset` and behind it, which the log lost.

        Gives the ids of which nothing certain is left and which are forgotten: a marker of theirs
        is gone, or all of the batches that are remembered. Who cares replays the log for them.
        """
        uncertain = []
        for producer_id, producer in self._producers.items():
            batches = producer.batches
            known = producer.unsequenced_offset < end_offset
            while batches and batches[-1].base_offset >= end_offset:
                producer.run_length -= batches.pop().sequence_count
                known = known and bool(batches)
            if not known:
                uncertain.append(producer_id)
                continue
            if batches:
                producer.last_sequence = batches[-1].last_sequence
            if producer.transaction_start_offset >= end_offset:
                producer.transaction_start_offset = NO_OFFSET
                del self._open_transactions[producer_id]
        for producer_id in uncertain:
            del self._producers[producer_id]
            self._open_transactions.pop(producer_id, None)
        self.end_offset = min(self.end_offset, end_offset)
        return uncertain

    def rebuild(self, headers: Iterable[BatchHeader], now_ms: int) -> None:
        """`append` for each header of a scan, in order, with its offset as it is there.

        `now_ms` is when they count as appended: with the batches' own times, which are the
        client's affair, the producer of old data would be expired as soon as it was read.
        """
        for header in headers:
            self.append(header, header.base_offset, now_ms)

    def snapshot(self) -> bytes:
        """The state as bytes, for `restore`; broker/log/producer_snapshot.py has the format."""
        return encode_snapshot(self._producers, self.end_offset)

    def restore(self, data: Buffer) -> None:
        """Takes over the state of a snapshot instead of its own.

        WireError, and nothing changed, if the snapshot is damaged, cut short or of a version that
        is not known. If it has more producers than `producers_max`, the oldest are left out.
        """
        self._producers, self.end_offset = decode_snapshot(data)
        transactions = sorted(
            (producer.transaction_start_offset, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.transaction_start_offset >= 0
        )
        self._open_transactions = OrderedDict((pid, offset) for offset, pid in transactions)
        for _ in range(len(self._producers) - self.producers_max):
            self._evict(-1)
        self._oldest_append_ms = self._find_oldest_append()

    def _find_oldest_append(self) -> int:
        times = (producer.last_append_ms for producer in self._producers.values())
        return min(times, default=_FOREVER_MS)


def _out_of_order(header: BatchHeader, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"batch of producer {header.producer_id} epoch {header.producer_epoch} with sequence"
        f" {header.base_sequence} to {header.last_sequence}: {why}",
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

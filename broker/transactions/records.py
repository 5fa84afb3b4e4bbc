"""Records of `__transaction_state` as values of this room, and back. The bytes are Kafka's own
(wire/kafka/records/coordinator): any Kafka tool reads them.

A transactional id has one key, and each of its records says all of it: whatever compaction keeps,
it keeps what the id does now. The previous and the next producer id are in the record: without them
whoever loads it in the middle of a change of ids fences a producer that is alive (KAFKA-20310).
"""

from __future__ import annotations

from functools import lru_cache

from broker.transactions.types import NO_PARTITIONS, TopicPartition, TxnSnapshot, TxnState
from wire.dataclass import dataclass
from wire.kafka.errors import WireError
from wire.kafka.records.coordinator import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_transaction_key,
    decode_value,
    encode_key,
    encode_value,
)

#: Keys of longer ids are made anew each time: an id may have 32,767 characters.
_KEPT_LENGTH_MAX = 256


@dataclass(slots=True, frozen=True)
class StoredTxn:
    """A transactional id's record; no snapshot: its tombstone."""

    transactional_id: str
    snapshot: TxnSnapshot | None


def txn_record(snapshot: TxnSnapshot) -> tuple[bytes, bytes]:
    """In version 1 of the value. Partitions are null while there was no transaction."""
    value = TransactionLogValue(
        producer_id=snapshot.producer_id,
        previous_producer_id=snapshot.previous_producer_id,
        next_producer_id=snapshot.next_producer_id,
        producer_epoch=snapshot.epoch,
        transaction_timeout_ms=snapshot.timeout_ms,
        transaction_status=snapshot.state,
        transaction_partitions=(
            None if snapshot.state is TxnState.EMPTY else _by_topic(snapshot.partitions)
        ),
        transaction_last_update_timestamp_ms=snapshot.updated_ms,
        transaction_start_timestamp_ms=snapshot.started_ms,
        client_transaction_version=snapshot.version,
    )
    return _key_of(snapshot.transactional_id), encode_value(value)


def txn_tombstone(transactional_id: str) -> tuple[bytes, None]:
    return _key_of(transactional_id), None


def _key_of(transactional_id: str) -> bytes:
    if len(transactional_id) > _KEPT_LENGTH_MAX:
        return encode_key(TransactionLogKey(transactional_id=transactional_id))
    return _kept_key_of(transactional_id)


@lru_cache(maxsize=1024)
def _kept_key_of(transactional_id: str) -> bytes:
    """A transaction has three records of one key."""
    return encode_key(TransactionLogKey(transactional_id=transactional_id))


def parse_record(key: bytes, value: bytes | None) -> StoredTxn | None:
    """What a record of the log says; None: of a type that is not known. WireError if it is
    malformed, or of a version or state that nobody wrote yet: to leave it out would lose an id."""
    named = decode_transaction_key(key)
    if named is None:
        return None
    name = named.transactional_id
    said = decode_value(TransactionLogValue, value)
    if said is None:
        return StoredTxn(name, None)
    try:
        state = TxnState(said.transaction_status)
    except ValueError:
        raise WireError(
            f"transactional id {name!r} has state {said.transaction_status}, which none is"
        ) from None
    return StoredTxn(
        name,
        TxnSnapshot(
            name,
            said.producer_id,
            said.previous_producer_id,
            said.next_producer_id,
            said.producer_epoch,
            said.transaction_timeout_ms,
            state,
            frozenset(
                (each.topic, number)
                for each in said.transaction_partitions or ()
                for number in each.partition_ids
            )
            or NO_PARTITIONS,
            said.transaction_last_update_timestamp_ms,
            said.transaction_start_timestamp_ms,
            said.client_transaction_version,
        ),
    )


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    """In order, so that equal values have equal bytes."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return [PartitionsSchema(topic, sorted(topics[topic])) for topic in sorted(topics)]

"""Settings of the transaction coordinator, by their Kafka names in snake_case with the unit last.

Part of the transaction coordinator, which is not served yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.cluster.config import BrokerConfig

#: Of which nothing is set: its defaults are the declarations'.
_BROKER = BrokerConfig()


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """The broker's settings, and what Kafka has no setting for (marked)."""

    transaction_state_log_num_partitions: int = _BROKER.transaction_state_log_num_partitions
    transaction_state_log_load_buffer_size: int = 5_242_880
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    #: Ours: a partition answers COORDINATOR_NOT_AVAILABLE while so many bytes of records wait for
    #: their acks.
    pending_bytes_max: int = 16_777_216
    #: Ours: records of one turn are merged into batches of at most about this size; below the
    #: topic's max.message.bytes.
    batch_bytes_max: int = 524_288
    #: Ours: partitions of `__transaction_state` that are loaded at the same time.
    loads_max: int = 8

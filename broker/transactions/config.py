"""Settings of the transaction coordinator, by their Kafka names in snake_case, the unit last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.cluster.config import BrokerConfig
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

#: Of which nothing is set: its defaults are the declarations'.
_BROKER = BrokerConfig()


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """The broker's settings, and what Kafka has no setting for (marked)."""

    transaction_state_log_num_partitions: int = _BROKER.transaction_state_log_num_partitions
    transaction_state_log_load_buffer_size: int = _BROKER.transaction_state_log_load_buffer_size
    transaction_max_timeout_ms: int = _BROKER.transaction_max_timeout_ms
    transactional_id_expiration_ms: int = _BROKER.transactional_id_expiration_ms
    transaction_remove_expired_transaction_cleanup_interval_ms: int = (
        _BROKER.transaction_remove_expired_transaction_cleanup_interval_ms
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = (
        _BROKER.add_partitions_to_txn_retry_backoff_max_ms
    )
    #: Ours: a partition answers COORDINATOR_NOT_AVAILABLE while so many bytes of records wait for
    #: their acks.
    pending_bytes_max: int = 16_777_216
    #: Ours: records of one turn are merged into batches of at most about this size; below the
    #: topic's max.message.bytes.
    batch_bytes_max: int = 524_288
    #: Ours: partitions of `__transaction_state` that are loaded at the same time.
    loads_max: int = 8

    @classmethod
    def of(cls, broker: BrokerConfig) -> TransactionConfig:
        """The coordinator's part of the broker's settings."""
        return cls(
            transaction_state_log_num_partitions=broker.transaction_state_log_num_partitions,
            transaction_state_log_load_buffer_size=broker.transaction_state_log_load_buffer_size,
            transaction_max_timeout_ms=broker.transaction_max_timeout_ms,
            transactional_id_expiration_ms=broker.transactional_id_expiration_ms,
            transaction_remove_expired_transaction_cleanup_interval_ms=(
                broker.transaction_remove_expired_transaction_cleanup_interval_ms
            ),
            add_partitions_to_txn_retry_backoff_max_ms=(
                broker.add_partitions_to_txn_retry_backoff_max_ms
            ),
        )


class Registry(Protocol):
    """Where the broker's settings are, as they are now."""

    @property
    def broker(self) -> BrokerConfig: ...


def verification_of(registry: Registry) -> Callable[[], bool]:
    """Whether a partition asks about a transaction that it does not add to; it may change while
    the broker runs."""
    return lambda: registry.broker.transaction_partition_verification_enable

"""Topics that brokers keep for themselves: how they are made, and what may never be done to them.

Owner of the rules; who makes one (a coordinator, a Metadata request, CreateTopics) asks here.
What a coordinator stored must stay until it takes it back, so no record of such a topic is ever
deleted for its age or the log's size, and its number of partitions is fixed: a key's partition is
its hash modulo that number, and all that is stored under the key would be in another one.

The settings are Kafka's (`GroupCoordinatorService.groupMetadataTopicConfigs`,
`TransactionCoordinator.transactionStateTopicConfigs`,
`ShareCoordinatorService.shareGroupStateTopicConfigs`). Known deviation: Kafka takes any settings
and any number of partitions from a client that is allowed to; here those that would lose records
are refused.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from broker.cluster.config_topic import ARCHIVE, LOCKS, LOCKS_OFF
from broker.cluster.topic import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_TOPIC,
)
from runtime.logs import kv
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.cluster.config import BrokerConfig
    from broker.cluster.topic import Topic

logger = logging.getLogger(__name__)

#: What holds for them whatever is set: records are compacted or stay, and never just deleted.
_COMPACTED: Mapping[str, str] = MappingProxyType({"cleanup.policy": "compact"})
_FIXED: Mapping[str, Mapping[str, str]] = {
    OFFSETS_TOPIC: _COMPACTED,
    TRANSACTION_TOPIC: _COMPACTED,
    # Its coordinator takes back what it needs no more (KIP-932); nothing else may.
    SHARE_STATE_TOPIC: MappingProxyType({"retention.ms": "-1", "retention.bytes": "-1"}),
}


@dataclass(slots=True, frozen=True)
class Making:
    """How a topic is made for which nobody said how."""

    partition_count: int
    configs: Mapping[str, str]


def making_of(name: str, broker: BrokerConfig) -> Making | None:
    """None: it is no internal topic."""
    if name == OFFSETS_TOPIC:
        return Making(
            broker.offsets_topic_num_partitions,
            offsets_topic_configs(broker.offsets_topic_segment_bytes),
        )
    if name == TRANSACTION_TOPIC:
        return Making(
            broker.transaction_state_log_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(broker.transaction_state_log_min_isr),
                "segment.bytes": str(broker.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
    if name == SHARE_STATE_TOPIC:
        return Making(
            broker.share_coordinator_state_topic_num_partitions,
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(broker.share_coordinator_state_topic_min_isr),
                "retention.ms": "-1",
                "segment.bytes": str(broker.share_coordinator_state_topic_segment_bytes),
            },
        )
    return None


def offsets_topic_configs(segment_bytes: int) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(segment_bytes),
    }


def configs_in_force(topic: Topic) -> Mapping[str, str]:
    """A topic's overrides; of an internal one with those that nobody can take away."""
    fixed = _FIXED.get(topic.name)
    return topic.configs if fixed is None else {**topic.configs, **fixed}


def check_configs(name: str, configs: Mapping[str, str]) -> None:
    """KafkaError INVALID_CONFIG if an internal topic's override would delete records, or ask those
    of coordinators for locks."""
    if name in INTERNAL_TOPICS and configs.get(LOCKS, LOCKS_OFF).strip() != LOCKS_OFF:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{LOCKS}={configs[LOCKS]!r} is not for {name}, which brokers write",
        )
    if name in INTERNAL_TOPICS and configs.get(ARCHIVE, "false").strip().lower() != "false":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ARCHIVE}={configs[ARCHIVE]!r} is not for {name}, which is compacted",
        )
    for setting, text in _FIXED.get(name, {}).items():
        if setting in configs and configs[setting].strip() != text:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{setting}={configs[setting]!r} would delete what {name} keeps:"
                f" there it is {text}",
            )


def check_partitions_fixed(name: str) -> None:
    """KafkaError INVALID_TOPIC_EXCEPTION if the number of partitions must stay as it is."""
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"the partitions of {name} cannot be added to: keys would be looked for in others than"
            " those that hold them",
        )


def note_ill_made(topic: Topic, broker: BrokerConfig) -> None:
    """Says in the log what is wrong with an internal topic that was not made by the rules."""
    making = making_of(topic.name, broker)
    if making is None:
        return
    missing = [
        f"{setting}={text}"
        for setting, text in _FIXED[topic.name].items()
        if topic.configs.get(setting, making.configs.get(setting, text)) != text
        or (setting in making.configs and setting not in topic.configs)
    ]
    if missing or topic.partition_count != making.partition_count:
        logger.warning(
            "internal_topic_not_as_its_coordinator_makes_it",
            kv(
                topic=topic.name,
                partitions=topic.partition_count,
                partitions_wanted=making.partition_count,
                in_force=",".join(missing),
                retention="never applies",
            ),
        )

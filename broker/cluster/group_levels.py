"""What of a group's settings is in force: its own value, else the broker's, within the broker's
limits. What was stored while these were wider counts as far as they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.config_consumer import ConsumerGroupConfig
from broker.cluster.config_share import ShareGroupConfig
from broker.cluster.config_streams import StreamsGroupConfig
from runtime.config import INT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.cluster.config import BrokerConfig
    from runtime.config import ConfigValue


def consumer_in_force(broker: BrokerConfig, own: Mapping[str, ConfigValue]) -> ConsumerGroupConfig:
    def within(name: str, default: int, least: int, most: int) -> int:
        value = own.get(name, default)
        assert isinstance(value, int)
        return min(max(value, least), most)

    return ConsumerGroupConfig(
        consumer_assignment_interval_ms=within(
            "consumer.assignment.interval.ms",
            broker.group_consumer_assignment_interval_ms,
            broker.group_consumer_min_assignment_interval_ms,
            broker.group_consumer_max_assignment_interval_ms,
        ),
        consumer_heartbeat_interval_ms=within(
            "consumer.heartbeat.interval.ms",
            broker.group_consumer_heartbeat_interval_ms,
            broker.group_consumer_min_heartbeat_interval_ms,
            broker.group_consumer_max_heartbeat_interval_ms,
        ),
        consumer_session_timeout_ms=within(
            "consumer.session.timeout.ms",
            broker.group_consumer_session_timeout_ms,
            broker.group_consumer_min_session_timeout_ms,
            broker.group_consumer_max_session_timeout_ms,
        ),
    )


def share_in_force(broker: BrokerConfig, own: Mapping[str, ConfigValue]) -> ShareGroupConfig:
    def within(name: str, default: int, least: int, most: int) -> int:
        value = own.get(name, default)
        assert isinstance(value, int)
        return min(max(value, least), most)

    unset = ShareGroupConfig()
    reset = own.get("share.auto.offset.reset", unset.share_auto_offset_reset)
    isolation = own.get("share.isolation.level", unset.share_isolation_level)
    renew = own.get("share.renew.acknowledge.enable", unset.share_renew_acknowledge_enable)
    assert isinstance(reset, str)
    assert isinstance(isolation, str)
    assert isinstance(renew, bool)
    return ShareGroupConfig(
        share_auto_offset_reset=reset,
        share_isolation_level=isolation,
        share_renew_acknowledge_enable=renew,
        share_assignment_interval_ms=within(
            "share.assignment.interval.ms",
            broker.group_share_assignment_interval_ms,
            broker.group_share_min_assignment_interval_ms,
            broker.group_share_max_assignment_interval_ms,
        ),
        share_delivery_count_limit=within(
            "share.delivery.count.limit",
            broker.group_share_delivery_count_limit,
            broker.group_share_min_delivery_count_limit,
            broker.group_share_max_delivery_count_limit,
        ),
        share_heartbeat_interval_ms=within(
            "share.heartbeat.interval.ms",
            broker.group_share_heartbeat_interval_ms,
            broker.group_share_min_heartbeat_interval_ms,
            broker.group_share_max_heartbeat_interval_ms,
        ),
        share_partition_max_record_locks=within(
            "share.partition.max.record.locks",
            broker.group_share_partition_max_record_locks,
            broker.group_share_min_partition_max_record_locks,
            broker.group_share_max_partition_max_record_locks,
        ),
        share_record_lock_duration_ms=within(
            "share.record.lock.duration.ms",
            broker.group_share_record_lock_duration_ms,
            broker.group_share_min_record_lock_duration_ms,
            broker.group_share_max_record_lock_duration_ms,
        ),
        share_session_timeout_ms=within(
            "share.session.timeout.ms",
            broker.group_share_session_timeout_ms,
            broker.group_share_min_session_timeout_ms,
            broker.group_share_max_session_timeout_ms,
        ),
    )


def streams_in_force(broker: BrokerConfig, own: Mapping[str, ConfigValue]) -> StreamsGroupConfig:
    def within(name: str, default: int, least: int, most: int) -> int:
        value = own.get(name, default)
        assert isinstance(value, int)
        return min(max(value, least), most)

    return StreamsGroupConfig(
        streams_assignment_interval_ms=within(
            "streams.assignment.interval.ms",
            broker.group_streams_assignment_interval_ms,
            broker.group_streams_min_assignment_interval_ms,
            broker.group_streams_max_assignment_interval_ms,
        ),
        streams_heartbeat_interval_ms=within(
            "streams.heartbeat.interval.ms",
            broker.group_streams_heartbeat_interval_ms,
            broker.group_streams_min_heartbeat_interval_ms,
            broker.group_streams_max_heartbeat_interval_ms,
        ),
        streams_session_timeout_ms=within(
            "streams.session.timeout.ms",
            broker.group_streams_session_timeout_ms,
            broker.group_streams_min_session_timeout_ms,
            broker.group_streams_max_session_timeout_ms,
        ),
        streams_initial_rebalance_delay_ms=within(
            "streams.initial.rebalance.delay.ms",
            broker.group_streams_initial_rebalance_delay_ms,
            0,
            INT_MAX,
        ),
        streams_num_standby_replicas=within(
            "streams.num.standby.replicas",
            broker.group_streams_num_standby_replicas,
            0,
            broker.group_streams_max_standby_replicas,
        ),
    )

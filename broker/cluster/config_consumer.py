"""Settings of consumer groups (KIP-848): the broker's, and a group's own.

A group's own value counts, else the broker's setting of the same meaning; the broker's `min` and
`max` bound what a group may set, and what counts of an older value that is beyond them.
"""

from __future__ import annotations

from runtime.config import (
    INT_MAX,
    ConfigType,
    Scope,
    at_least,
    list_of,
    one_of,
)
from runtime.settings import setting, settings_part
from wire.dataclass import dataclass

INT, LIST, STRING = ConfigType.INT, ConfigType.LIST, ConfigType.STRING

ASSIGNORS = ("uniform", "range")
PROTOCOLS = ("consumer", "classic", "share", "streams")


@settings_part
class ConsumerGroupsConfig:
    """The broker's part; times in ms."""

    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer,streams",
        list_of(*PROTOCOLS),
        doc="Without consumer or streams in it, groups of that protocol are refused. Classic groups"
        " are always served, share groups once share.version is finalized.",
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        LIST,
        ",".join(ASSIGNORS),
        list_of(*ASSIGNORS, empty_allowed=False),
        doc="Assignors that members of consumer groups may ask for; the first is the default.",
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        INT,
        str(INT_MAX),
        at_least(1),
        doc="Most members of a consumer group.",
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        one_of("disabled", "downgrade", "upgrade", "bidirectional", ignore_case=True),
        doc="Which way a group may change between the classic and consumer protocols while it has"
        " members.",
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        "600000",
        at_least(10_000),
        doc="How often patterns of subscriptions are matched anew although no topic changed.",
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Silence after which a member of a consumer group is removed.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Least value of a group's consumer.session.timeout.ms.",
    )
    group_consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        "60000",
        at_least(1),
        doc="Greatest value of a group's consumer.session.timeout.ms.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Heartbeat interval that members of a consumer group are told.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Least value of a group's consumer.heartbeat.interval.ms.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "15000",
        at_least(1),
        doc="Greatest value of a group's consumer.heartbeat.interval.ms.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.CLUSTER_WIDE,
        doc="Least time between two new assignments of a consumer group.",
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        "group.consumer.min.assignment.interval.ms",
        INT,
        "0",
        at_least(0),
        doc="Least value of a group's consumer.assignment.interval.ms.",
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        "group.consumer.max.assignment.interval.ms",
        INT,
        "15000",
        at_least(0),
        doc="Greatest value of a group's consumer.assignment.interval.ms.",
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerGroupConfig:
    """A group's own; its defaults are those of a broker of which nothing is set."""

    consumer_assignment_interval_ms: int = setting(
        "consumer.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.PER_RESOURCE,
        doc="Least time between two new assignments of a consumer group.",
    )
    consumer_heartbeat_interval_ms: int = setting(
        "consumer.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Heartbeat interval that members of a consumer group are told.",
    )
    consumer_session_timeout_ms: int = setting(
        "consumer.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Silence after which a member of a consumer group is removed.",
    )

"""Settings of streams groups (KIP-1071): the broker's, and a group's own.

A group's own value counts, else the broker's setting of the same meaning; the broker's `min` and
`max` bound what a group may set, and what counts of an older value that is beyond them.
"""

from __future__ import annotations

from broker.cluster.config_share import ShareGroupsConfig
from runtime.config import INT_MAX, ConfigType, Scope, at_least
from runtime.settings import setting, settings_part
from wire.dataclass import dataclass

INT = ConfigType.INT


@settings_part
class StreamsGroupsConfig(ShareGroupsConfig):
    """The broker's part, beside those of consumer and share groups; times in ms."""

    group_streams_assignment_interval_ms: int = setting(
        "group.streams.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.CLUSTER_WIDE,
        doc="Least time between two new assignments of a streams group.",
    )
    group_streams_min_assignment_interval_ms: int = setting(
        "group.streams.min.assignment.interval.ms",
        INT,
        "0",
        at_least(0),
        doc="Least value of a group's streams.assignment.interval.ms.",
    )
    group_streams_max_assignment_interval_ms: int = setting(
        "group.streams.max.assignment.interval.ms",
        INT,
        "15000",
        at_least(0),
        doc="Greatest value of a group's streams.assignment.interval.ms.",
    )
    group_streams_heartbeat_interval_ms: int = setting(
        "group.streams.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Heartbeat interval that members of a streams group are told.",
    )
    group_streams_min_heartbeat_interval_ms: int = setting(
        "group.streams.min.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Least value of a group's streams.heartbeat.interval.ms.",
    )
    group_streams_max_heartbeat_interval_ms: int = setting(
        "group.streams.max.heartbeat.interval.ms",
        INT,
        "15000",
        at_least(1),
        doc="Greatest value of a group's streams.heartbeat.interval.ms.",
    )
    group_streams_session_timeout_ms: int = setting(
        "group.streams.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Silence after which a member of a streams group is removed.",
    )
    group_streams_min_session_timeout_ms: int = setting(
        "group.streams.min.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Least value of a group's streams.session.timeout.ms.",
    )
    group_streams_max_session_timeout_ms: int = setting(
        "group.streams.max.session.timeout.ms",
        INT,
        "60000",
        at_least(1),
        doc="Greatest value of a group's streams.session.timeout.ms.",
    )
    group_streams_initial_rebalance_delay_ms: int = setting(
        "group.streams.initial.rebalance.delay.ms",
        INT,
        "3000",
        at_least(0),
        doc="How long a streams group without members waits for more, once one joins.",
    )
    group_streams_num_standby_replicas: int = setting(
        "group.streams.num.standby.replicas",
        INT,
        "0",
        at_least(0),
        doc="Standby tasks of each stateful task.",
    )
    group_streams_max_standby_replicas: int = setting(
        "group.streams.max.standby.replicas",
        INT,
        "2",
        at_least(0),
        doc="Greatest value of a group's streams.num.standby.replicas.",
    )
    group_streams_max_size: int = setting(
        "group.streams.max.size",
        INT,
        str(INT_MAX),
        at_least(1),
        doc="Most members of a streams group.",
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class StreamsGroupConfig:
    """A group's own; its defaults are those of a broker of which nothing is set."""

    streams_assignment_interval_ms: int = setting(
        "streams.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.PER_RESOURCE,
        doc="Least time between two new assignments of a streams group.",
    )
    streams_heartbeat_interval_ms: int = setting(
        "streams.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Heartbeat interval that members of a streams group are told.",
    )
    streams_session_timeout_ms: int = setting(
        "streams.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Silence after which a member of a streams group is removed.",
    )
    streams_initial_rebalance_delay_ms: int = setting(
        "streams.initial.rebalance.delay.ms",
        INT,
        "3000",
        at_least(0),
        Scope.PER_RESOURCE,
        doc="How long a streams group without members waits for more, once one joins.",
    )
    streams_num_standby_replicas: int = setting(
        "streams.num.standby.replicas",
        INT,
        "0",
        at_least(0),
        Scope.PER_RESOURCE,
        doc="Standby tasks of each stateful task.",
    )

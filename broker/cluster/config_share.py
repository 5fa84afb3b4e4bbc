"""Settings of share groups (KIP-932): the broker's, and a group's own.

A group's own value counts, else the broker's setting of the same meaning; the broker's `min` and
`max` bound what a group may set, and what counts of an older value that is beyond them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.cluster.config_consumer import ConsumerGroupsConfig
from runtime.config import ConfigType, Scope, at_least, between, list_of, one_of
from runtime.settings import setting, settings_part
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.config import ConfigValue

BOOLEAN, INT, LIST, STRING = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LIST,
    ConfigType.STRING,
)

#: As Java's, which has no more digits either: with 4,300 Python does not read the number, and the
#: broker that was to begin a share partition there ended.
_DIGITS = "[0-9]{1,18}"
_DURATION = re.compile(
    rf"P(?=[0-9T])({_DIGITS}D)?"
    rf"(T(?=[0-9])({_DIGITS}H)?({_DIGITS}M)?({_DIGITS}(\.[0-9]{{1,9}})?S)?)?",
    re.ASCII,
)


def _auto_offset_reset(value: ConfigValue) -> str | None:
    """latest, earliest, or by_duration: and an ISO-8601 duration (KIP-1106)."""
    assert isinstance(value, str)
    kind, _, duration = value.partition(":")
    if value in ("latest", "earliest"):
        return None
    if kind == "by_duration" and _DURATION.fullmatch(duration):
        return None
    return "expected latest, earliest or by_duration:PnDTnHnMn.nS"


@settings_part
class ShareGroupsConfig(ConsumerGroupsConfig):
    """The broker's part, beside that of consumer groups; times in ms."""

    group_share_assignors: tuple[str, ...] = setting(
        "group.share.assignors",
        LIST,
        "simple",
        list_of("simple", empty_allowed=False),
        doc="Assignors of share groups; there is one.",
    )
    group_share_max_size: int = setting(
        "group.share.max.size",
        INT,
        "200",
        between(1, 1000),
        doc="Most members of a share group.",
    )
    group_share_max_share_sessions: int = setting(
        "group.share.max.share.sessions",
        INT,
        "2000",
        at_least(1),
        doc="Most share sessions of a broker: one for each member that reads from it.",
    )
    group_share_initialize_retry_interval_ms: int = setting(
        "group.share.initialize.retry.interval.ms",
        INT,
        "30000",
        at_least(1),
        doc="How long the share coordinator has to begin a partition before it is asked again.",
    )
    group_share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Silence after which a member of a share group is removed.",
    )
    group_share_min_session_timeout_ms: int = setting(
        "group.share.min.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        doc="Least value of a group's share.session.timeout.ms.",
    )
    group_share_max_session_timeout_ms: int = setting(
        "group.share.max.session.timeout.ms",
        INT,
        "60000",
        at_least(1),
        doc="Greatest value of a group's share.session.timeout.ms.",
    )
    group_share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Heartbeat interval that members of a share group are told.",
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        "group.share.min.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        doc="Least value of a group's share.heartbeat.interval.ms.",
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        "group.share.max.heartbeat.interval.ms",
        INT,
        "15000",
        at_least(1),
        doc="Greatest value of a group's share.heartbeat.interval.ms.",
    )
    group_share_assignment_interval_ms: int = setting(
        "group.share.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.CLUSTER_WIDE,
        doc="Least time between two new assignments of a share group.",
    )
    group_share_min_assignment_interval_ms: int = setting(
        "group.share.min.assignment.interval.ms",
        INT,
        "0",
        at_least(0),
        doc="Least value of a group's share.assignment.interval.ms.",
    )
    group_share_max_assignment_interval_ms: int = setting(
        "group.share.max.assignment.interval.ms",
        INT,
        "15000",
        at_least(0),
        doc="Greatest value of a group's share.assignment.interval.ms.",
    )
    group_share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit",
        INT,
        "5",
        at_least(2),
        doc="How often a share group is given a record at most.",
    )
    group_share_min_delivery_count_limit: int = setting(
        "group.share.min.delivery.count.limit",
        INT,
        "2",
        at_least(2),
        doc="Least value of a group's share.delivery.count.limit.",
    )
    group_share_max_delivery_count_limit: int = setting(
        "group.share.max.delivery.count.limit",
        INT,
        "10",
        at_least(2),
        doc="Greatest value of a group's share.delivery.count.limit.",
    )
    group_share_partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks",
        INT,
        "2000",
        at_least(100),
        doc="Records of a partition that a share group may hold at a time.",
    )
    group_share_min_partition_max_record_locks: int = setting(
        "group.share.min.partition.max.record.locks",
        INT,
        "100",
        at_least(100),
        doc="Least value of a group's share.partition.max.record.locks.",
    )
    group_share_max_partition_max_record_locks: int = setting(
        "group.share.max.partition.max.record.locks",
        INT,
        "4000",
        at_least(100),
        doc="Greatest value of a group's share.partition.max.record.locks.",
    )
    group_share_record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms",
        INT,
        "30000",
        at_least(1000),
        doc="How long a member of a share group may hold a record.",
    )
    group_share_min_record_lock_duration_ms: int = setting(
        "group.share.min.record.lock.duration.ms",
        INT,
        "15000",
        at_least(1000),
        doc="Least value of a group's share.record.lock.duration.ms.",
    )
    group_share_max_record_lock_duration_ms: int = setting(
        "group.share.max.record.lock.duration.ms",
        INT,
        "60000",
        at_least(1000),
        doc="Greatest value of a group's share.record.lock.duration.ms.",
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class ShareGroupConfig:
    """A group's own; its defaults are those of a broker of which nothing is set."""

    share_assignment_interval_ms: int = setting(
        "share.assignment.interval.ms",
        INT,
        "1000",
        at_least(0),
        Scope.PER_RESOURCE,
        doc="Least time between two new assignments of a share group.",
    )
    share_auto_offset_reset: str = setting(
        "share.auto.offset.reset",
        STRING,
        "latest",
        _auto_offset_reset,
        Scope.PER_RESOURCE,
        doc="Where a share group starts to read.",
    )
    share_delivery_count_limit: int = setting(
        "share.delivery.count.limit",
        INT,
        "5",
        at_least(2),
        Scope.PER_RESOURCE,
        doc="How often a share group is given a record at most.",
    )
    share_heartbeat_interval_ms: int = setting(
        "share.heartbeat.interval.ms",
        INT,
        "5000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Heartbeat interval that members of a share group are told.",
    )
    share_isolation_level: str = setting(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        Scope.PER_RESOURCE,
        doc="Whether a share group sees records of transactions that are not committed.",
    )
    share_partition_max_record_locks: int = setting(
        "share.partition.max.record.locks",
        INT,
        "2000",
        at_least(100),
        Scope.PER_RESOURCE,
        doc="Records of a partition that a share group may hold at a time.",
    )
    share_record_lock_duration_ms: int = setting(
        "share.record.lock.duration.ms",
        INT,
        "30000",
        at_least(1000),
        Scope.PER_RESOURCE,
        doc="How long a member of a share group may hold a record.",
    )
    share_renew_acknowledge_enable: bool = setting(
        "share.renew.acknowledge.enable",
        BOOLEAN,
        "true",
        scope=Scope.PER_RESOURCE,
        doc="Whether a member of a share group may prolong its hold of a record.",
    )
    share_session_timeout_ms: int = setting(
        "share.session.timeout.ms",
        INT,
        "45000",
        at_least(1),
        Scope.PER_RESOURCE,
        doc="Silence after which a member of a share group is removed.",
    )

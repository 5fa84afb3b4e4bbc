"""Settings of groups and of client-metrics subscriptions, as Kafka 4.3 has them.

Group settings (KIP-848, 932, 1071; Kafka's `GroupConfig`): a group's own value, else the broker
setting of the same meaning. All groups here are classic ones, which have no settings of their own:
these are known, stored and shown only. Client-metrics subscriptions (KIP-714) are
stored and shown; clients are not asked for telemetry.
"""

from __future__ import annotations

import re

from runtime.config import (
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    at_least,
    between,
    one_of,
)

_INT, _STRING, _BOOLEAN, _LIST = (
    ConfigType.INT,
    ConfigType.STRING,
    ConfigType.BOOLEAN,
    ConfigType.LIST,
)
_DURATION = re.compile(
    r"P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]{1,9})?S)?)?", re.ASCII
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


_MILLISECONDS = at_least(1)

GROUP_CONFIGS = ConfigTable(
    "a group",
    [
        ConfigKey(name, kind, default, doc, validator, has_effect=False)
        for name, kind, default, validator, doc in (
            (
                *("consumer.assignment.interval.ms", _INT, "1000", at_least(0)),
                "Least time between two new assignments of a consumer group.",
            ),
            (
                *("consumer.heartbeat.interval.ms", _INT, "5000", _MILLISECONDS),
                "Heartbeat interval that members of a consumer group are told.",
            ),
            (
                *("consumer.session.timeout.ms", _INT, "45000", _MILLISECONDS),
                "Silence after which a member of a consumer group is removed.",
            ),
            (
                *("share.assignment.interval.ms", _INT, "1000", at_least(0)),
                "Least time between two new assignments of a share group.",
            ),
            (
                *("share.auto.offset.reset", _STRING, "latest", _auto_offset_reset),
                "Where a share group starts to read.",
            ),
            (
                *("share.delivery.count.limit", _INT, "5", at_least(2)),
                "How often a share group is given a record at most.",
            ),
            (
                *("share.heartbeat.interval.ms", _INT, "5000", _MILLISECONDS),
                "Heartbeat interval that members of a share group are told.",
            ),
            (
                *("share.isolation.level", _STRING, "read_uncommitted"),
                one_of("read_committed", "read_uncommitted"),
                "Whether a share group sees records of transactions that are not committed.",
            ),
            (
                *("share.partition.max.record.locks", _INT, "2000", at_least(100)),
                "Records of a partition that a share group may hold at a time.",
            ),
            (
                *("share.record.lock.duration.ms", _INT, "30000", at_least(1000)),
                "How long a member of a share group may hold a record.",
            ),
            (
                *("share.renew.acknowledge.enable", _BOOLEAN, "true", None),
                "Whether a member of a share group may prolong its hold of a record.",
            ),
            (
                *("share.session.timeout.ms", _INT, "45000", _MILLISECONDS),
                "Silence after which a member of a share group is removed.",
            ),
            (
                *("streams.assignment.interval.ms", _INT, "1000", at_least(0)),
                "Least time between two new assignments of a streams group.",
            ),
            (
                *("streams.heartbeat.interval.ms", _INT, "5000", _MILLISECONDS),
                "Heartbeat interval that members of a streams group are told.",
            ),
            (
                *("streams.initial.rebalance.delay.ms", _INT, "3000", at_least(0)),
                "How long a new streams group waits for more members.",
            ),
            (
                *("streams.num.standby.replicas", _INT, "0", at_least(0)),
                "Standby tasks of each stateful task.",
            ),
            (
                *("streams.session.timeout.ms", _INT, "45000", _MILLISECONDS),
                "Silence after which a member of a streams group is removed.",
            ),
        )
    ],
)

GROUP_BROKER_NAMES = {
    key.name: name
    for key in GROUP_CONFIGS
    # Kafka's broker names are the group's with «group.» in front, all but these.
    if (name := f"group.{key.name}")
    not in (
        "group.share.auto.offset.reset",
        "group.share.isolation.level",
        "group.share.renew.acknowledge.enable",
    )
}
"""Broker settings that give a group setting's default."""

_LIMITED = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
)

GROUP_LIMITS = {
    name: (f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}")
    for name in _LIMITED
    for kind, _, rest in (name.partition("."),)
}
"""Broker settings between which a group setting must lie (least, greatest)."""


def _client_match(value: ConfigValue) -> str | None:
    """name=pattern pairs over the labels that KIP-714 lists."""
    assert isinstance(value, tuple)
    labels = (
        *("client_instance_id", "client_id", "client_software_name"),
        *("client_software_version", "client_source_address", "client_source_port"),
    )
    for element in value:
        label, separator, pattern = element.partition("=")
        if label.strip() not in labels or not separator:
            return f"{element!r}: expected label=pattern with a label of {', '.join(labels)}"
        try:
            re.compile(pattern)
        except re.error as error:
            return f"{element!r} is no regular expression: {error}"
    return None


CLIENT_METRICS_CONFIGS = ConfigTable(
    "a client-metrics subscription",
    [
        ConfigKey(
            *("interval.ms", _INT, "300000"),
            "How often a matching client would push its metrics.",
            between(100, 3_600_000),
            has_effect=False,
        ),
        ConfigKey(
            *("match", _LIST, ""),
            "Which clients the subscription is for.",
            _client_match,
            has_effect=False,
        ),
        ConfigKey(
            *("metrics", _LIST, ""),
            "Prefixes of the metrics that are asked for; empty for none, * for all.",
            has_effect=False,
        ),
    ],
)

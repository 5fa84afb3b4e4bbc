"""Settings of groups and of client-metrics subscriptions, as Kafka 4.3 has them.

Group settings (KIP-848, 932, 1071; Kafka's `GroupConfig`): a group's own value, else the broker
setting of the same meaning. All groups here are classic ones, which have no settings of their own:
these are known, stored and shown only (known_settings/group.txt). Client-metrics subscriptions
(KIP-714) are stored and shown; clients are not asked for telemetry.
"""

from __future__ import annotations

import re

from broker.cluster.config_topic import KNOWN_SETTINGS
from runtime.config import ConfigTable, ConfigValue
from runtime.known_settings import read_known

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


_GROUP_SETTINGS = read_known(
    KNOWN_SETTINGS / "group.txt",
    "A group's setting without effect here.",
    {"auto_offset_reset": _auto_offset_reset},
)

GROUP_CONFIGS = ConfigTable("a group", (known.key for known in _GROUP_SETTINGS))

GROUP_BROKER_NAMES = {
    known.key.name: known.default_from[0] for known in _GROUP_SETTINGS if known.default_from
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
    (
        known.key
        for known in read_known(
            KNOWN_SETTINGS / "client_metrics.txt",
            "A subscription's setting without effect here.",
            {"client_match": _client_match},
        )
    ),
)

"""Settings of groups and of client-metrics subscriptions, as Kafka 4.3 has them.

Group settings (KIP-848, 932, 1071; Kafka's `GroupConfig`): a group's own value, else the broker
setting of the same meaning. Those of consumer groups are declared in config_consumer.py, those of
share groups in config_share.py, those of streams groups in config_streams.py; others are known,
stored and shown only (known_settings/group.txt).
Client-metrics subscriptions (KIP-714) say what broker/telemetry/ asks clients for.
"""

from __future__ import annotations

from broker.cluster.config_consumer import ConsumerGroupConfig
from broker.cluster.config_share import ShareGroupConfig
from broker.cluster.config_streams import StreamsGroupConfig
from broker.cluster.config_topic import KNOWN_SETTINGS
from broker.regex import Pattern
from runtime.config import ConfigKey, ConfigTable, ConfigType, ConfigValue, Scope, between
from runtime.known_settings import read_known
from runtime.settings import keys_of
from wire.kafka.errors import KafkaError

_GROUP_SETTINGS = read_known(
    KNOWN_SETTINGS / "group.txt",
    "A group's setting without effect here.",
)

_OWN_KEYS = (
    *keys_of(ConsumerGroupConfig),
    *keys_of(ShareGroupConfig),
    *keys_of(StreamsGroupConfig),
)
#: Settings of a share group that the broker has none for.
_SHARE_ONLY = ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")

GROUP_CONFIGS = ConfigTable(
    "a group",
    sorted((*_OWN_KEYS, *(known.key for known in _GROUP_SETTINGS)), key=lambda key: key.name),
)

GROUP_BROKER_NAMES = {
    **{key.name: f"group.{key.name}" for key in _OWN_KEYS if key.name not in _SHARE_ONLY},
    **{known.key.name: known.default_from[0] for known in _GROUP_SETTINGS if known.default_from},
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

GROUP_MOST = {"streams.num.standby.replicas": "group.streams.max.standby.replicas"}
"""The same where there is only a greatest."""


def _client_match(value: ConfigValue) -> str | None:
    """name=pattern pairs over the labels that KIP-714 lists."""
    # Patterns are RE2's: clients say what they are matched with, up to 32 KB, and `.*a.*b` took
    # Python's 0.8 s for that.
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
            Pattern(pattern.strip())
        except KafkaError as error:
            return f"{element!r}: {error.message}"
    return None


CLIENT_METRICS_CONFIGS = ConfigTable(
    "a client-metrics subscription",
    (
        ConfigKey(
            "interval.ms",
            ConfigType.INT,
            "300000",
            "How often a matching client pushes its metrics.",
            between(100, 3_600_000),
            Scope.PER_RESOURCE,
        ),
        ConfigKey(
            "match",
            ConfigType.LIST,
            "",
            "Which clients it is for: label=pattern, all of which match; all clients without one.",
            _client_match,
            Scope.PER_RESOURCE,
        ),
        ConfigKey(
            "metrics",
            ConfigType.LIST,
            "",
            "Prefixes of the names of metrics that are asked for; empty for none, * for all.",
            scope=Scope.PER_RESOURCE,
        ),
    ),
)

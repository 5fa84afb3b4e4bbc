"""The broker settings that mean something here: Kafka's names, and ours under `quire.`.

Types, defaults, limits and scopes are Kafka 4.3's (`AbstractKafkaConfig`, `DynamicBrokerConfig`),
read from a running 4.3.1, with these deviations, all because one node is a whole cluster here:
node.id has the default 0, listeners is on the loopback interface only, and the internal topics'
replication factors and least numbers of replicas in sync are 1 instead of 3 and 2.
Names that Kafka has and that mean nothing here are in `config_definitions_known`. Values that have
a form of their own (listeners, for one) are read by `config_forms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster import config_definitions_topic as topic
from broker.cluster.config_definitions_known import KNOWN_CONFIGS
from broker.cluster.config_forms import check_listeners, check_overrides, check_protocol_map
from runtime.config import (
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    ConfigTable,
    ConfigType,
    Scope,
    Validator,
    at_least,
    between,
    distinct_list,
    list_of,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

INT, LONG, SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
STRING, LIST, BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN
DOUBLE = ConfigType.DOUBLE

_RO, _CLUSTER = Scope.READ_ONLY, Scope.CLUSTER_WIDE
_PER_BROKER = Scope.PER_BROKER
_Row = tuple[str, ConfigType, str | None, Validator | None, Scope, str]

_NODE: tuple[_Row, ...] = (
    (
        *("node.id", INT, "0", at_least(0), _RO),
        "This broker's number; clients see it, and no two brokers have the same.",
    ),
    ("broker.id", INT, "-1", None, _RO, "The older name of node.id; node.id wins over it."),
    ("broker.rack", STRING, None, None, _RO, "Where this broker stands, told to clients."),
    (
        *("listeners", LIST, "PLAINTEXT://127.0.0.1:9092", check_listeners, _RO),
        "Addresses that this broker listens at: NAME://host:port.",
    ),
    (
        *("advertised.listeners", LIST, None, check_listeners, _RO),
        "Addresses that clients are told; without it, those of listeners.",
    ),
    (
        *("listener.security.protocol.map", STRING),
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        *(check_protocol_map, _RO),
        "Which security protocol a listener's name stands for.",
    ),
    (
        *("log.dirs", LIST, None, distinct_list(empty_allowed=False), _RO),
        "Directories of this node's data.",
    ),
    ("log.dir", LIST, "/tmp/kafka-logs", None, _RO, "Used when log.dirs is not set."),
)

_CLUSTER_OF_BROKERS: tuple[_Row, ...] = (
    (
        *("auto.leader.rebalance.enable", BOOLEAN, "true", None, _RO),
        "Whether the controller moves leaders back to the preferred ones.",
    ),
    (
        *("leader.imbalance.check.interval.seconds", LONG, "300", at_least(1), _RO),
        "How often it looks for leaders to be moved back.",
    ),
    (
        *("controlled.shutdown.enable", BOOLEAN, "true", None, _RO),
        "Whether a broker that is stopped first hands its partitions to others.",
    ),
    (
        *("cordoned.log.dirs", LIST, "", None, _PER_BROKER),
        "Anything in it, or *: this broker is given no more partitions (KIP-1066).",
    ),
)

_NETWORK: tuple[_Row, ...] = (
    (
        *("socket.request.max.bytes", INT, "104857600", at_least(1), _RO),
        "Largest request that is read; a larger one closes its connection.",
    ),
    (
        *("socket.send.buffer.bytes", INT, "102400", None, _RO),
        "SO_SNDBUF of client sockets; -1 leaves it to the system.",
    ),
    (
        *("socket.receive.buffer.bytes", INT, "102400", None, _RO),
        "SO_RCVBUF of client sockets; -1 leaves it to the system.",
    ),
    (
        *("socket.listen.backlog.size", INT, "50", at_least(1), _RO),
        "Connections that may wait to be accepted.",
    ),
    (
        *("queued.max.request.bytes", LONG, "-1", None, _RO),
        "Bytes of requests that may wait in memory before reading stops; -1 is the built-in limit.",
    ),
    (
        *("queued.max.requests", INT, "500", at_least(1), _RO),
        "Requests of one connection that may wait before reading from it stops.",
    ),
    (
        *("connections.max.idle.ms", LONG, "600000", None, _RO),
        "A connection without traffic for this long is closed.",
    ),
    (
        *("max.connections", INT, str(INT_MAX), at_least(0), _CLUSTER),
        "Connections that this broker keeps at a time.",
    ),
    (
        *("max.connections.per.ip", INT, str(INT_MAX), at_least(0), _CLUSTER),
        "Connections that this broker keeps at a time from one address.",
    ),
    (
        *("max.connections.per.ip.overrides", STRING, "", check_overrides, _CLUSTER),
        "The same for certain addresses: address:count, with commas between them.",
    ),
    (
        *("fetch.max.bytes", INT, "57671680", at_least(1024), _RO),
        "Most bytes that one Fetch is answered with, beyond the first batch.",
    ),
    (
        *("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0), _RO),
        "Incremental fetch sessions that are kept at a time (KIP-227).",
    ),
    (
        *("max.request.partition.size.limit", INT, "2000", at_least(1), _RO),
        "Most partitions that one DescribeTopicPartitions is answered with.",
    ),
)

_TOPICS: tuple[_Row, ...] = (
    (
        *("auto.create.topics.enable", BOOLEAN, "true", None, _RO),
        "Whether Metadata makes a topic that is asked for and does not exist.",
    ),
    ("delete.topic.enable", BOOLEAN, "true", None, _RO, "Whether topics can be deleted."),
    (
        *("num.partitions", INT, "1", at_least(1), _RO),
        "Partitions of a topic that is made without saying how many.",
    ),
    (
        *("default.replication.factor", INT, "1", None, _RO),
        "Replication factor of a topic that is made without saying which.",
    ),
    (
        *("quire.clip.replication.factor", BOOLEAN, "false", None, _RO),
        "Whether a replication factor above the number of brokers is lowered to it, not refused.",
    ),
    (
        *("message.max.bytes", INT, "1048588", at_least(0), _CLUSTER),
        "Default of a topic's max.message.bytes.",
    ),
    (
        *("log.retention.check.interval.ms", LONG, "300000", at_least(1), _RO),
        "Time between two looks at what retention lets go.",
    ),
    (
        *("log.cleaner.enable", BOOLEAN, "true", None, _RO),
        "Whether topics with cleanup.policy=compact are compacted.",
    ),
    (
        *("log.cleaner.backoff.ms", LONG, "15000", at_least(0), _CLUSTER),
        "Time between two looks for logs to compact.",
    ),
)

# The broker's side of the topic settings: type, default and limits are the topic's unless the
# unit differs. (name, type, default, validator)
_TOPIC_DEFAULTS: tuple[tuple[str, ConfigType, str | None, Validator | None, Scope], ...] = (
    ("compression.gzip.level", INT, "-1", topic.gzip_level, _CLUSTER),
    ("compression.lz4.level", INT, "9", topic.lz4_level, _CLUSTER),
    ("compression.type", STRING, "producer", topic.compression_type, _CLUSTER),
    ("compression.zstd.level", INT, "3", topic.zstd_level, _CLUSTER),
    ("log.cleaner.delete.retention.ms", LONG, "86400000", at_least(0), _CLUSTER),
    ("log.cleaner.max.compaction.lag.ms", LONG, str(LONG_MAX), at_least(1), _CLUSTER),
    ("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", topic.ratio, _CLUSTER),
    ("log.cleaner.min.compaction.lag.ms", LONG, "0", at_least(0), _CLUSTER),
    ("log.cleanup.policy", LIST, "delete", topic.cleanup_policy, _CLUSTER),
    ("log.message.timestamp.after.max.ms", LONG, "3600000", at_least(0), _CLUSTER),
    ("log.message.timestamp.before.max.ms", LONG, str(LONG_MAX), at_least(0), _CLUSTER),
    ("log.message.timestamp.type", STRING, "CreateTime", topic.timestamp_type, _CLUSTER),
    ("log.retention.bytes", LONG, "-1", None, _CLUSTER),
    ("log.retention.hours", INT, "168", None, _RO),
    ("log.retention.minutes", INT, None, None, _RO),
    ("log.retention.ms", LONG, None, None, _CLUSTER),
    ("log.roll.hours", INT, "168", at_least(1), _RO),
    ("log.roll.jitter.hours", INT, "0", at_least(0), _RO),
    ("log.roll.jitter.ms", LONG, None, at_least(0), _CLUSTER),
    ("log.roll.ms", LONG, None, at_least(1), _CLUSTER),
    ("log.segment.bytes", INT, "1073741824", topic.segment_size, _CLUSTER),
    ("min.insync.replicas", INT, "1", at_least(1), _CLUSTER),
    ("quire.ledger.ack.quorum", INT, "1", at_least(1), _CLUSTER),
    ("quire.ledger.ensemble.size", INT, "1", at_least(1), _CLUSTER),
    ("quire.ledger.write.quorum", INT, "1", at_least(1), _CLUSTER),
)

_GROUPS: tuple[_Row, ...] = (
    (
        *("group.initial.rebalance.delay.ms", INT, "3000", None, _RO),
        "How long a new classic group waits for more members before its first rebalance.",
    ),
    (
        *("group.min.session.timeout.ms", INT, "6000", None, _RO),
        "Shortest session timeout that a classic member may ask for.",
    ),
    (
        *("group.max.session.timeout.ms", INT, "1800000", None, _RO),
        "Longest session timeout that a classic member may ask for.",
    ),
    ("group.max.size", INT, str(INT_MAX), at_least(1), _RO, "Most members of a classic group."),
    (
        *("group.coordinator.rebalance.protocols", LIST, "classic,consumer,streams"),
        *(list_of("consumer", "classic", "share", "streams"), _RO),
        "Group protocols that are served.",
    ),
    (
        *("group.consumer.session.timeout.ms", INT, "45000", at_least(1), _RO),
        "Session timeout of members of consumer groups (KIP-848).",
    ),
    (
        *("group.consumer.min.session.timeout.ms", INT, "45000", at_least(1), _RO),
        "Least value of a group's consumer.session.timeout.ms.",
    ),
    (
        *("group.consumer.max.session.timeout.ms", INT, "60000", at_least(1), _RO),
        "Greatest value of a group's consumer.session.timeout.ms.",
    ),
    (
        *("group.consumer.heartbeat.interval.ms", INT, "5000", at_least(1), _RO),
        "Heartbeat interval that members of consumer groups are told (KIP-848).",
    ),
    (
        *("group.consumer.min.heartbeat.interval.ms", INT, "5000", at_least(1), _RO),
        "Least value of a group's consumer.heartbeat.interval.ms.",
    ),
    (
        *("group.consumer.max.heartbeat.interval.ms", INT, "15000", at_least(1), _RO),
        "Greatest value of a group's consumer.heartbeat.interval.ms.",
    ),
    ("group.consumer.max.size", INT, str(INT_MAX), at_least(1), _RO, "Most members of a group."),
    (
        *("group.consumer.assignors", LIST, "uniform,range", distinct_list(), _RO),
        "Assignors on the broker's side, the default one first (KIP-848).",
    ),
    (
        *("group.consumer.migration.policy", STRING, "bidirectional"),
        one_of("disabled", "downgrade", "upgrade", "bidirectional", ignore_case=True),
        *(_RO, "Which way a group may change between the classic and consumer protocols."),
    ),
    (
        *("offset.metadata.max.bytes", INT, "4096", None, _RO),
        "Longest text that a commit may carry beside an offset.",
    ),
    (
        *("offsets.commit.timeout.ms", INT, "5000", at_least(1), _RO),
        "How long a commit waits to be stored.",
    ),
    (
        *("offsets.load.buffer.size", INT, "5242880", at_least(1), _RO),
        "Bytes read at a time when a coordinator loads a partition.",
    ),
    (
        *("offsets.retention.minutes", INT, "10080", at_least(1), _RO),
        "How long the offsets of a group without members are kept.",
    ),
    (
        *("offsets.retention.check.interval.ms", LONG, "600000", at_least(1), _RO),
        "Time between two looks for offsets that are too old.",
    ),
    (
        *("offsets.topic.num.partitions", INT, "50", at_least(1), _RO),
        "Partitions of __consumer_offsets; fixed once the topic exists.",
    ),
    (
        *("offsets.topic.replication.factor", SHORT, "1", at_least(1), _RO),
        "Replication factor of __consumer_offsets.",
    ),
    (
        *("offsets.topic.segment.bytes", INT, "104857600", at_least(1), _RO),
        "segment.bytes of __consumer_offsets.",
    ),
    (
        *("offsets.topic.compression.codec", INT, "0", between(0, 4), _RO),
        "How the coordinator compresses its records: 0 not, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    ),
)

_TRANSACTIONS: tuple[_Row, ...] = (
    (
        *("producer.id.expiration.ms", INT, "86400000", at_least(1), _CLUSTER),
        "How long a partition remembers a producer that is silent.",
    ),
    (
        *("transaction.max.timeout.ms", INT, "900000", at_least(1), _RO),
        "Longest transaction timeout that a producer may ask for.",
    ),
    (
        *("transactional.id.expiration.ms", INT, "604800000", at_least(1), _RO),
        "How long a transactional id without transactions is remembered.",
    ),
    (
        *("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000"),
        *(at_least(1), _RO, "Time between two looks for transactions that took too long."),
    ),
    (
        *("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000"),
        *(at_least(1), _RO, "Time between two looks for transactional ids that are too old."),
    ),
    (
        *("transaction.partition.verification.enable", BOOLEAN, "true", None, _CLUSTER),
        "Whether a partition asks if a transaction is open before it takes its first batch.",
    ),
    (
        *("transaction.state.log.num.partitions", INT, "50", at_least(1), _RO),
        "Partitions of __transaction_state; fixed once the topic exists.",
    ),
    (
        *("transaction.state.log.replication.factor", SHORT, "1", at_least(1), _RO),
        "Replication factor of __transaction_state.",
    ),
    (
        *("transaction.state.log.min.isr", INT, "1", at_least(1), _RO),
        "min.insync.replicas of __transaction_state.",
    ),
    (
        *("transaction.state.log.segment.bytes", INT, "104857600", at_least(1), _RO),
        "segment.bytes of __transaction_state.",
    ),
    (
        *("share.coordinator.state.topic.num.partitions", INT, "50", at_least(1), _RO),
        "Partitions of __share_group_state, where somebody makes that; fixed then.",
    ),
    (
        *("share.coordinator.state.topic.replication.factor", SHORT, "1", at_least(1), _RO),
        "Replication factor of __share_group_state.",
    ),
    (
        *("share.coordinator.state.topic.min.isr", SHORT, "1", at_least(1), _RO),
        "min.insync.replicas of __share_group_state.",
    ),
    (
        *("share.coordinator.state.topic.segment.bytes", INT, "104857600", at_least(1), _RO),
        "segment.bytes of __share_group_state.",
    ),
)


#: Read by nothing: what they are about is not served, or is done in another way.
_WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "group.consumer.assignors",
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "group.consumer.max.session.timeout.ms",
            "group.consumer.max.size",
            "group.consumer.migration.policy",
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.min.session.timeout.ms",
            "group.consumer.session.timeout.ms",
            "group.coordinator.rebalance.protocols",
        ),
        "All groups are classic ones",
    ),
    **dict.fromkeys(
        (
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction.max.timeout.ms",
            "transaction.partition.verification.enable",
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "transactional.id.expiration.ms",
        ),
        "Transactions are refused",
    ),
    **dict.fromkeys(
        ("log.cleaner.backoff.ms", "log.cleaner.enable"), "Compaction does not act yet"
    ),
    **dict.fromkeys(("log.dir", "log.dirs"), "The command line names the directory"),
    "offsets.commit.timeout.ms": "A commit waits as long as its ledger does",
    "queued.max.requests": "queued.max.request.bytes bounds what waits",
    "socket.listen.backlog.size": "The system's limit holds",
    "socket.receive.buffer.bytes": "The system chooses",
    "socket.send.buffer.bytes": "The system chooses",
}


def _key(
    name: str,
    kind: ConfigType,
    default: str | None,
    validator: Validator | None,
    scope: Scope,
    doc: str,
) -> ConfigKey:
    why_not = _WITHOUT_EFFECT.get(name)
    if why_not is not None:
        doc = f"{doc} No effect here: {why_not[0].lower()}{why_not[1:]}."
    return ConfigKey(name, kind, default, doc, validator, scope, has_effect=why_not is None)


def _topic_of(broker_name: str) -> str:
    return next(
        name for name, names in topic.BROKER_NAMES.items() if broker_name in {n.name for n in names}
    )


_MEANINGFUL = [
    _key(name, kind, default, validator, scope, doc)
    for rows in (_NODE, _CLUSTER_OF_BROKERS, _NETWORK, _TOPICS, _GROUPS, _TRANSACTIONS)
    for name, kind, default, validator, scope, doc in rows
] + [
    ConfigKey(
        *(name, kind, default, f"Default of a topic's {_topic_of(name)}.", validator, scope),
        has_effect=topic.TOPIC_CONFIGS[_topic_of(name)].has_effect,
    )
    for name, kind, default, validator, scope in _TOPIC_DEFAULTS
]

BROKER_CONFIGS = ConfigTable(
    "Kafka",
    [*_MEANINGFUL, *KNOWN_CONFIGS],
    prefixes=("listener.name.",),
    hints={
        name: broker_names[0].name
        for name, broker_names in topic.BROKER_NAMES.items()
        if broker_names[0].name != name
    },
)

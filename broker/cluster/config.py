"""What is in force for one broker: Kafka's settings, and ours under `quire.`, each declared once.

A field's name is its setting's with dots as underscores. Types, defaults, limits and scopes are
Kafka 4.3's (`AbstractKafkaConfig`, `DynamicBrokerConfig`), read from a running 4.3.1, with these
deviations, all because one node is a whole cluster here: node.id has the default 0, listeners is on
the loopback interface only, and the internal topics' replication factors and least numbers of
replicas in sync are 1 instead of 3 and 2.

Names that Kafka has and that nothing here reads are lines of known_settings/broker.txt. Settings
that give a topic's default are declared with the topic's, in config_topic.py, and those of the
coordinators in config_coordinators.py. Values that have a form of their own (listeners, for one)
are read by config_forms.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from broker.cluster.config_acls import AclConfig
from broker.cluster.config_forms import (
    Listener,
    check_listeners,
    check_overrides,
    check_protocol_map,
    parse_listener,
    parse_protocol_map,
)
from broker.cluster.config_ssl import TlsSettings
from broker.cluster.config_topic import BROKER_NAMES, KNOWN_SETTINGS, TOPIC_DEFAULTS, TopicConfig
from runtime.config import (
    INT_MAX,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    Scope,
    at_least,
    one_of,
)
from runtime.known_settings import read_known
from runtime.settings import field_values, keys_of, same_as, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BROKER_CONFIGS", "BrokerConfig", "TopicConfig", "check_quorums"]

INT, LONG, SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
STRING, LIST, BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN
DOUBLE = ConfigType.DOUBLE
CLUSTER_WIDE, PER_BROKER = Scope.CLUSTER_WIDE, Scope.PER_BROKER

#: Kafka has no limit. Here passes share the event loop with clients, and disks with the journal.
CLEANER_BYTES_PER_SECOND = 32 << 20
#: Each pass needs a map of more than this.
DEDUPE_BYTES_MIN = 1 << 20

#: Between brokers, unless something else is set: as Kafka's by its security.inter.broker.protocol.
PLAINTEXT = "PLAINTEXT"
_PROTOCOLS = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
_BROKER_ID = ConfigKey("broker.id", INT, "-1", "The older name of node.id; node.id wins over it.")
_OF_TOPICS = {key.name: key for key in TOPIC_DEFAULTS}


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerConfig(AclConfig):
    """Sizes in bytes, times as the names say. Made of texts or values by `parse` and `of`, which
    check what goes together."""

    node_id: int = setting(
        "node.id",
        INT,
        "0",
        at_least(0),
        doc="This broker's number; clients see it, and no two brokers have the same.",
        others=(_BROKER_ID,),
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name",
        STRING,
        doc="The listener by which brokers speak with each other: PLAINTEXT, or the first one"
        " where none has that name.",
    )
    security_inter_broker_protocol: str = setting(
        "security.inter.broker.protocol",
        STRING,
        PLAINTEXT,
        one_of(PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Brokers speak with each other by the listener of this name. Only without"
        " inter.broker.listener.name.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "GSSAPI",
        doc="How brokers log in to each other where their listener has SASL: PLAIN, SCRAM-SHA-256"
        " or SCRAM-SHA-512.",
    )
    broker_rack: str | None = setting(
        "broker.rack",
        STRING,
        doc="Where this broker stands, told to clients.",
    )
    listeners: tuple[str, ...] = setting(
        "listeners",
        LIST,
        "PLAINTEXT://127.0.0.1:9092",
        check_listeners,
        doc="Addresses that this broker listens at: NAME://host:port.",
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        "advertised.listeners",
        LIST,
        None,
        check_listeners,
        doc="Addresses that clients are told; without it, those of listeners.",
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        STRING,
        _PROTOCOLS,
        check_protocol_map,
        doc="Which security protocol a listener's name stands for.",
    )

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        doc="Whether the controller moves leaders back to the preferred ones.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        at_least(1),
        doc="How often it looks for leaders to be moved back.",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        doc="Whether a broker that is stopped first hands its partitions to others.",
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        "cordoned.log.dirs",
        LIST,
        "",
        scope=PER_BROKER,
        doc="Anything in it, or *: this broker is given no more partitions (KIP-1066).",
    )

    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        INT,
        "104857600",
        at_least(1),
        doc="Largest request that is read; a larger one closes its connection.",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        LONG,
        "-1",
        doc="Bytes of requests that may wait in memory before reading stops; -1 is the built-in"
        " limit.",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        LONG,
        "600000",
        doc="A connection without traffic for this long is closed.",
    )
    max_connections: int = setting(
        "max.connections",
        INT,
        str(INT_MAX),
        at_least(0),
        CLUSTER_WIDE,
        doc="Connections that this broker keeps at a time; also of a single listener.",
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        INT,
        str(INT_MAX),
        at_least(0),
        CLUSTER_WIDE,
        doc="Connections that this broker accepts in a second; also of a single listener.",
        unit="connections",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        INT,
        str(INT_MAX),
        at_least(0),
        CLUSTER_WIDE,
        doc="Connections that this broker keeps at a time from one address.",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        check_overrides,
        CLUSTER_WIDE,
        doc="The same for certain addresses: address:count, with commas between them.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        INT,
        "57671680",
        at_least(1024),
        doc="Most bytes that one Fetch is answered with, beyond the first batch.",
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        at_least(0),
        doc="Incremental fetch sessions that are kept at a time (KIP-227).",
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        INT,
        "2000",
        at_least(1),
        unit="partitions",
        doc="Most partitions that one DescribeTopicPartitions is answered with.",
    )

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        doc="Whether Metadata makes a topic that is asked for and does not exist.",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        BOOLEAN,
        "true",
        doc="Whether topics can be deleted.",
    )
    num_partitions: int = setting(
        "num.partitions",
        INT,
        "1",
        at_least(1),
        doc="Partitions of a topic that is made without saying how many.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        INT,
        "1",
        doc="Replication factor of a topic that is made without saying which.",
    )
    quire_clip_replication_factor: bool = setting(
        "quire.clip.replication.factor",
        BOOLEAN,
        "false",
        doc="Whether a replication factor above the number of brokers is lowered to it, not"
        " refused.",
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        at_least(1),
        doc="Time between two looks at what retention lets go.",
    )
    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        doc="Whether topics with cleanup.policy=compact are compacted; false lets them grow.",
    )
    log_cleaner_threads: int = setting(
        "log.cleaner.threads",
        INT,
        "1",
        at_least(1),
        CLUSTER_WIDE,
        unit="tasks",
        doc="Partitions that this broker compacts at a time.",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        at_least(0),
        CLUSTER_WIDE,
        doc="Time between two looks for logs to compact, when nothing is to be done; 10 at least.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        scope=CLUSTER_WIDE,
        unit="bytes",
        doc="Memory for the keys of all passes at a time: 24 bytes a key. It is allocated for a"
        " pass, as far as the pass needs it.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        scope=CLUSTER_WIDE,
        doc="How full the map of keys may become, as a share of its places (0.1 to 0.95 is used).",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        str(float(CLEANER_BYTES_PER_SECOND)),
        scope=CLUSTER_WIDE,
        doc="What all passes together may read and write; Kafka's default has no limit.",
    )
    #: Of topics that say nothing else; declared with the topics' settings.
    min_insync_replicas: int = same_as(_OF_TOPICS["min.insync.replicas"])
    quire_ledger_ack_quorum: int = same_as(_OF_TOPICS["quire.ledger.ack.quorum"])
    quire_ledger_ensemble_size: int = same_as(_OF_TOPICS["quire.ledger.ensemble.size"])
    quire_ledger_write_quorum: int = same_as(_OF_TOPICS["quire.ledger.write.quorum"])

    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        at_least(1),
        CLUSTER_WIDE,
        doc="How long a partition remembers a producer that is silent.",
    )
    telemetry_max_bytes: int = setting(
        "telemetry.max.bytes",
        INT,
        "1048576",
        at_least(1),
        doc="The most that a client may push of its metrics at once, compressed and not.",
        unit="bytes",
    )
    quota_window_num: int = setting(
        "quota.window.num",
        INT,
        "11",
        at_least(1),
        doc="How many windows of quota.window.size.seconds clients' quotas are measured over.",
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds",
        INT,
        "1",
        at_least(1),
        doc="The length of a window of clients' quotas.",
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num",
        INT,
        "11",
        at_least(1),
        doc="So many windows' worth of changes of topics a client may make at once"
        " (controller_mutation_rate).",
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds",
        INT,
        "1",
        at_least(1),
        doc="The length of a window of the quota of changes of topics.",
    )

    @classmethod
    def of(cls, values: Mapping[str, ConfigValue]) -> BrokerConfig:
        """From parsed values of those that are set; the others have their defaults.

        ConfigError where two settings do not go together."""
        found = field_values(cls, values)
        if "node.id" not in values and "broker.id" in values:
            found["node_id"] = values["broker.id"]
        config = cls(**found)
        _check_together(config)
        return config

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """From texts, as a properties file has them; ConfigError names the setting."""
        return cls.of(BROKER_CONFIGS.parse(texts))

    def parsed_listeners(self) -> list[Listener]:
        return [parse_listener(text) for text in self.listeners]

    def parsed_advertised_listeners(self) -> list[Listener]:
        """What clients are told; where nothing is set, the listeners themselves."""
        texts = self.advertised_listeners
        return self.parsed_listeners() if texts is None else [parse_listener(t) for t in texts]

    @property
    def listener_for_brokers(self) -> str:
        """The name of the listener that other brokers come by. Where nothing is set it is Kafka's
        default, PLAINTEXT, or the first one where there is none of that name."""
        names = [listener.name for listener in self.parsed_advertised_listeners()]
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        if self.security_inter_broker_protocol != PLAINTEXT:
            return self.security_inter_broker_protocol
        return names[0] if names and PLAINTEXT not in names else PLAINTEXT


BROKER_CONFIGS = ConfigTable(
    "Kafka",
    (
        *keys_of(BrokerConfig, TlsSettings),
        *TOPIC_DEFAULTS,
        *(
            known.key
            for known in read_known(
                KNOWN_SETTINGS / "broker.txt",
                "A setting of Kafka that has no effect here.",
            )
        ),
    ),
    prefixes=("listener.name.",),
    hints={name: names[0].name for name, names in BROKER_NAMES.items() if names[0].name != name},
)


def _check_together(config: BrokerConfig) -> None:
    if config.node_id < 0:
        raise ConfigError("broker.id", f"broker.id={config.node_id}: the least is 0")
    protocols = parse_protocol_map(config.listener_security_protocol_map)
    for listener in config.parsed_listeners():
        if listener.name not in protocols:
            raise ConfigError(
                "listeners",
                f"listeners: {listener.name} is not in listener.security.protocol.map",
            )
    named = {listener.name for listener in config.parsed_listeners()}
    if (between_brokers := config.inter_broker_listener_name) is not None and (
        between_brokers.upper() not in named
    ):
        raise ConfigError(
            "inter.broker.listener.name",
            f"inter.broker.listener.name={between_brokers} is no listener",
        )
    if (protocol := config.security_inter_broker_protocol) != PLAINTEXT:
        name = "security.inter.broker.protocol"
        if between_brokers is not None:
            raise ConfigError(name, f"{name}: only one of it and inter.broker.listener.name is set")
        if protocol not in named or protocols[protocol] != protocol:
            raise ConfigError(
                name, f"{name}={protocol}: there is no listener {protocol} of this protocol"
            )
    for listener in config.parsed_advertised_listeners():
        if listener.name not in named:
            raise ConfigError(
                "advertised.listeners", f"advertised.listeners: {listener.name} is no listener"
            )
        if listener.host in ("0.0.0.0", "::") and config.advertised_listeners is not None:
            raise ConfigError(
                "advertised.listeners",
                f"advertised.listeners: no client can connect to {listener.host}",
            )
    _check_order(
        ("group.min.session.timeout.ms", config.group_min_session_timeout_ms),
        ("group.max.session.timeout.ms", config.group_max_session_timeout_ms),
    )
    _check_consumer_groups(config)
    _check_share_groups(config)
    _check_streams_groups(config)
    check_quorums(
        config.quire_ledger_ensemble_size,
        config.quire_ledger_write_quorum,
        config.quire_ledger_ack_quorum,
    )
    _check_cleaner(config)


def _check_consumer_groups(config: BrokerConfig) -> None:
    """As Kafka's GroupCoordinatorConfig: what groups get is between what they may set."""
    _check_order(
        ("group.consumer.min.session.timeout.ms", config.group_consumer_min_session_timeout_ms),
        ("group.consumer.session.timeout.ms", config.group_consumer_session_timeout_ms),
        ("group.consumer.max.session.timeout.ms", config.group_consumer_max_session_timeout_ms),
    )
    _check_order(
        (
            "group.consumer.min.heartbeat.interval.ms",
            config.group_consumer_min_heartbeat_interval_ms,
        ),
        ("group.consumer.heartbeat.interval.ms", config.group_consumer_heartbeat_interval_ms),
        (
            "group.consumer.max.heartbeat.interval.ms",
            config.group_consumer_max_heartbeat_interval_ms,
        ),
    )
    _check_order(
        (
            "group.consumer.min.assignment.interval.ms",
            config.group_consumer_min_assignment_interval_ms,
        ),
        ("group.consumer.assignment.interval.ms", config.group_consumer_assignment_interval_ms),
        (
            "group.consumer.max.assignment.interval.ms",
            config.group_consumer_max_assignment_interval_ms,
        ),
    )
    heartbeat_ms = config.group_consumer_heartbeat_interval_ms
    if heartbeat_ms >= config.group_consumer_session_timeout_ms:
        raise ConfigError(
            "group.consumer.heartbeat.interval.ms",
            f"group.consumer.heartbeat.interval.ms={heartbeat_ms} must be below"
            " group.consumer.session.timeout.ms",
        )


def _check_share_groups(config: BrokerConfig) -> None:
    """The same of share groups (Kafka's GroupCoordinatorConfig and ShareGroupConfig)."""
    for name in (
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "assignment.interval.ms",
        "delivery.count.limit",
        "partition.max.record.locks",
        "record.lock.duration.ms",
    ):
        names = (f"group.share.min.{name}", f"group.share.{name}", f"group.share.max.{name}")
        _check_order(*((each, getattr(config, each.replace(".", "_"))) for each in names))
    heartbeat_ms = config.group_share_heartbeat_interval_ms
    if heartbeat_ms >= config.group_share_session_timeout_ms:
        raise ConfigError(
            "group.share.heartbeat.interval.ms",
            f"group.share.heartbeat.interval.ms={heartbeat_ms} must be below"
            " group.share.session.timeout.ms",
        )


def _check_streams_groups(config: BrokerConfig) -> None:
    """The same of streams groups."""
    kind = "group.streams"
    for rest, least, value, most in (
        (
            "session.timeout.ms",
            config.group_streams_min_session_timeout_ms,
            config.group_streams_session_timeout_ms,
            config.group_streams_max_session_timeout_ms,
        ),
        (
            "heartbeat.interval.ms",
            config.group_streams_min_heartbeat_interval_ms,
            config.group_streams_heartbeat_interval_ms,
            config.group_streams_max_heartbeat_interval_ms,
        ),
        (
            "assignment.interval.ms",
            config.group_streams_min_assignment_interval_ms,
            config.group_streams_assignment_interval_ms,
            config.group_streams_max_assignment_interval_ms,
        ),
    ):
        _check_order(
            (f"{kind}.min.{rest}", least), (f"{kind}.{rest}", value), (f"{kind}.max.{rest}", most)
        )
    _check_order(
        (f"{kind}.num.standby.replicas", config.group_streams_num_standby_replicas),
        (f"{kind}.max.standby.replicas", config.group_streams_max_standby_replicas),
    )
    if config.group_streams_heartbeat_interval_ms >= config.group_streams_session_timeout_ms:
        raise ConfigError(
            f"{kind}.heartbeat.interval.ms",
            f"{kind}.heartbeat.interval.ms={config.group_streams_heartbeat_interval_ms} must be"
            f" below {kind}.session.timeout.ms",
        )


def _check_cleaner(config: BrokerConfig) -> None:
    """As Kafka's LogCleaner."""
    size, threads = config.log_cleaner_dedupe_buffer_size, config.log_cleaner_threads
    if config.log_cleaner_enable and size // threads <= DEDUPE_BYTES_MIN:
        raise ConfigError(
            "log.cleaner.dedupe.buffer.size",
            f"log.cleaner.dedupe.buffer.size={size}: each of {threads} log.cleaner.threads must"
            f" have more than {DEDUPE_BYTES_MIN}",
        )
    if config.log_cleaner_io_max_bytes_per_second <= 0:
        raise ConfigError(
            "log.cleaner.io.max.bytes.per.second",
            f"log.cleaner.io.max.bytes.per.second={config.log_cleaner_io_max_bytes_per_second}:"
            " a pass would never end",
        )


def check_cleaner_threads(now: int, wanted: int) -> None:
    """Of a change while the broker runs, as Kafka's `LogCleaner.validateReconfiguration`: at most
    halved or doubled at a time. ConfigError."""
    name = "log.cleaner.threads"
    if wanted < now // 2:
        raise ConfigError(name, f"{name}={wanted} is less than half of {now}, which it is now")
    if wanted > now * 2:
        raise ConfigError(name, f"{name}={wanted} is more than twice {now}, which it is now")


def _check_order(*settings: tuple[str, int]) -> None:
    for (name, value), (next_name, next_value) in itertools.pairwise(settings):
        if value > next_value:
            raise ConfigError(name, f"{name}={value} is above {next_name}={next_value}")


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """feature 19: E >= Qw >= Qa."""
    _check_order(
        ("quire.ledger.ack.quorum", ack_quorum),
        ("quire.ledger.write.quorum", write_quorum),
        ("quire.ledger.ensemble.size", ensemble_size),
    )

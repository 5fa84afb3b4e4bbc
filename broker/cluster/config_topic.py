"""What is in force for one topic: every topic setting of Kafka 4.3, each declared once, with its
default and the broker's settings that give it.

A topic's value is, in this order: its own override, the dynamic and then the static value of the
first of these broker settings that is set, the default here. Sources: Kafka's `LogConfig`,
`TopicConfig` and `ServerTopicConfigSynonyms` (names, types, defaults and limits as read from a
running 4.3.1); the `quire.ledger.*` ones are feature 19. Those that nothing here reads are lines of
known_settings/topic.txt.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.config import (
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    Scope,
    Validator,
    at_least,
    between,
    either,
    list_of,
    one_of,
)
from runtime.known_settings import read_known
from runtime.settings import FieldValue, declared_by, field_values, keys_of, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

INT, LONG, STRING, LIST = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.LIST

KNOWN_SETTINGS = Path(__file__).with_name("known_settings")

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_FOREVER = str(LONG_MAX)


@dataclass(slots=True, frozen=True)
class BrokerName:
    """A broker setting that gives a topic setting's default; `factor` turns its unit into the
    topic's (hours into milliseconds)."""

    name: str
    factor: int = 1


_THROTTLED_REPLICA = re.compile(r"[0-9]{1,9}:[0-9]{1,9}", re.ASCII)


def _throttled_replicas(value: ConfigValue) -> str | None:
    """`*`, or partition:broker pairs (KIP-73)."""
    assert isinstance(value, tuple)
    if value == ("*",) or all(_THROTTLED_REPLICA.fullmatch(element) for element in value):
        return None
    return "expected * or pairs partition:broker"


def _of_broker(
    name: str,
    kind: ConfigType,
    default: str | None = None,
    valid: Validator | None = None,
    scope: Scope = Scope.CLUSTER_WIDE,
    *,
    factor: int = 1,
) -> tuple[ConfigKey, int]:
    """A broker's setting, and what turns its unit into the topic's."""
    return ConfigKey(name, kind, default, "", valid, scope), factor


def _setting(
    name: str,
    kind: ConfigType,
    default: str,
    valid: Validator | None = None,
    *,
    broker: str | tuple[tuple[ConfigKey, int], ...],
    doc: str,
) -> FieldValue:
    """A topic's setting, and the broker's that give its default, strongest first: its name where it
    is of the same type, default and limits."""
    if isinstance(broker, str):
        broker = (_of_broker(broker, kind, default, valid),)
    of_broker = tuple(
        (replace(key, doc=f"Default of a topic's {name}."), factor) for key, factor in broker
    )
    return setting(
        *(name, kind, default, valid, Scope.PER_RESOURCE), doc=doc, more={_BY_BROKER: of_broker}
    )


#: Metadata of a field: the broker's settings, each with its factor.
_BY_BROKER = "broker"


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicConfig:
    """A field's name is its setting's with dots as underscores. Sizes in bytes; -1 is no limit
    where a limit may be absent. The quorums are asked of new ledgers only."""

    cleanup_policy: tuple[str, ...] = _setting(
        "cleanup.policy",
        LIST,
        "delete",
        list_of("compact", "delete"),
        broker="log.cleanup.policy",
        doc="What becomes of old records: delete drops them by age and size, compact keeps the"
        " newest of each key.",
    )
    compression_gzip_level: int = _setting(
        "compression.gzip.level",
        INT,
        "-1",
        either(-1, between(1, 9)),
        broker="compression.gzip.level",
        doc="Level used when the broker itself compresses with gzip; -1 is the codec's default.",
    )
    compression_lz4_level: int = _setting(
        "compression.lz4.level",
        INT,
        "9",
        between(1, 17),
        broker="compression.lz4.level",
        doc="Level used when the broker itself compresses with lz4.",
    )
    compression_type: str = _setting(
        "compression.type",
        STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker="compression.type",
        doc="Codec of stored batches; producer keeps each batch as it was sent.",
    )
    compression_zstd_level: int = _setting(
        "compression.zstd.level",
        INT,
        "3",
        between(-131_072, 22),
        broker="compression.zstd.level",
        doc="Level used when the broker itself compresses with zstd.",
    )
    delete_retention_ms: int = _setting(
        "delete.retention.ms",
        LONG,
        "86400000",
        at_least(0),
        broker="log.cleaner.delete.retention.ms",
        doc="How long compaction leaves a tombstone readable.",
    )
    file_delete_delay_ms: int = _setting(
        "file.delete.delay.ms",
        LONG,
        "60000",
        at_least(0),
        broker="log.segment.delete.delay.ms",
        doc="Delay before a ledger is deleted that compaction has replaced.",
    )
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms",
        LONG,
        _FOREVER,
        at_least(1),
        broker="log.cleaner.max.compaction.lag.ms",
        doc="The longest that a record of a compacted topic may stay uncompacted.",
    )
    max_message_bytes: int = _setting(
        "max.message.bytes",
        INT,
        "1048588",
        at_least(0),
        broker="message.max.bytes",
        doc="Largest record batch that is accepted, as it is on the wire.",
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        at_least(0),
        broker="log.message.timestamp.after.max.ms",
        doc="How far a record's timestamp may lie after the broker's clock.",
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        at_least(0),
        broker="log.message.timestamp.before.max.ms",
        doc="How far a record's timestamp may lie before the broker's clock.",
    )
    message_timestamp_type: str = _setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
        doc="Whose clock stamps records: the producer's (CreateTime) or the broker's"
        " (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        between(0, 1),
        broker="log.cleaner.min.cleanable.ratio",
        doc="Share of uncompacted bytes above which a log is compacted.",
    )
    min_compaction_lag_ms: int = _setting(
        "min.compaction.lag.ms",
        LONG,
        "0",
        at_least(0),
        broker="log.cleaner.min.compaction.lag.ms",
        doc="The shortest that a record of a compacted topic stays uncompacted.",
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas",
        INT,
        "1",
        at_least(1),
        broker="min.insync.replicas",
        doc="Bookies that must take writes for acks=all, and have a record before it is"
        " acknowledged.",
    )
    quire_archive_required: bool = _setting(
        "quire.archive.required",
        ConfigType.BOOLEAN,
        "false",
        broker=(),
        doc="Whether retention deletes a ledger only after `quire-spark archive` has told that its"
        " records are archived (docs/spark-jobs.md). Not for compacted topics.",
    )
    quire_ledger_ack_quorum: int = _setting(
        "quire.ledger.ack.quorum",
        INT,
        "1",
        at_least(1),
        broker="quire.ledger.ack.quorum",
        doc="Bookies that must have an entry on disk before it is acknowledged (at new ledgers).",
    )
    quire_ledger_ensemble_size: int = _setting(
        "quire.ledger.ensemble.size",
        INT,
        "1",
        at_least(1),
        broker="quire.ledger.ensemble.size",
        doc="Bookies over which a ledger's entries are spread (at new ledgers).",
    )
    quire_ledger_write_quorum: int = _setting(
        "quire.ledger.write.quorum",
        INT,
        "1",
        at_least(1),
        broker="quire.ledger.write.quorum",
        doc="Bookies to which each entry is written (at new ledgers).",
    )
    quire_locks: str = _setting(
        "quire.locks",
        STRING,
        "off",
        one_of("off", "optional", "required"),
        broker=(),
        doc="Optimistic locks in headers of records (docs/locks.md): off ignores them, optional"
        " tests the records that have any, required refuses those that have none.",
    )
    quire_locks_max_per_record: int = _setting(
        "quire.locks.max.per.record",
        INT,
        "64",
        between(1, 1_000),
        broker=(),
        doc="Optimistic locks that one record may have.",
    )
    quire_locks_table_size: int = _setting(
        "quire.locks.table.size",
        INT,
        "30000",
        between(1_009, 10_000_000),
        broker=(),
        doc="Slots of a partition's table of optimistic locks, 8 bytes each: more are needed for"
        " fewer false conflicts. A change makes every client catch up once.",
    )
    retention_bytes: int = _setting(
        "retention.bytes",
        LONG,
        "-1",
        broker="log.retention.bytes",
        doc="Size of a partition above which its oldest ledgers are deleted; -1 is no limit.",
    )
    retention_ms: int = _setting(
        "retention.ms",
        LONG,
        "604800000",
        at_least(-1),
        broker=(
            _of_broker("log.retention.ms", LONG, None),
            _of_broker(
                "log.retention.minutes", INT, None, scope=Scope.READ_ONLY, factor=_MINUTE_MS
            ),
            _of_broker("log.retention.hours", INT, "168", scope=Scope.READ_ONLY, factor=_HOUR_MS),
        ),
        doc="Age above which a ledger of a partition is deleted; -1 is no limit.",
    )
    segment_bytes: int = _setting(
        "segment.bytes",
        INT,
        "1073741824",
        at_least(1_048_576),
        broker="log.segment.bytes",
        doc="Size at which a partition's open ledger is closed and a new one begun.",
    )
    segment_jitter_ms: int = _setting(
        "segment.jitter.ms",
        LONG,
        "0",
        at_least(0),
        broker=(
            _of_broker("log.roll.jitter.ms", LONG, None, at_least(0)),
            _of_broker(
                "log.roll.jitter.hours",
                INT,
                "0",
                at_least(0),
                scope=Scope.READ_ONLY,
                factor=_HOUR_MS,
            ),
        ),
        doc="Most by which segment.ms is shortened at random, so that partitions roll apart.",
    )
    segment_ms: int = _setting(
        "segment.ms",
        LONG,
        "604800000",
        at_least(1),
        broker=(
            _of_broker("log.roll.ms", LONG, None, at_least(1)),
            _of_broker(
                "log.roll.hours", INT, "168", at_least(1), scope=Scope.READ_ONLY, factor=_HOUR_MS
            ),
        ),
        doc="Age at which a partition's open ledger is closed and a new one begun.",
    )

    @classmethod
    def of(cls, values: Mapping[str, ConfigValue]) -> TopicConfig:
        """From the effective value of every topic setting."""
        return cls(**field_values(cls, values))


#: The setting of optimistic locks, and what it is without any.
LOCKS, LOCKS_OFF = "quire.locks", "off"


def check_locks(config: TopicConfig) -> None:
    """ConfigError for locks on a topic that is compacted: a client that applies it from the start
    would miss writes."""
    if "compact" in config.cleanup_policy:
        raise ConfigError(
            LOCKS,
            f"{LOCKS}={config.quire_locks} cannot be kept with cleanup.policy="
            f"{','.join(config.cleanup_policy)}: compaction drops records that clients have to"
            " apply",
        )


#: The setting of archives.
ARCHIVE = "quire.archive.required"


def check_archive(config: TopicConfig) -> None:
    """ConfigError where an archive is asked for that would not have all records: compaction drops
    some before they are archived."""
    if config.quire_archive_required and "compact" in config.cleanup_policy:
        raise ConfigError(
            ARCHIVE,
            f"{ARCHIVE}=true cannot be kept with cleanup.policy="
            f"{','.join(config.cleanup_policy)}: compaction drops records that are not archived",
        )


_KNOWN = read_known(
    KNOWN_SETTINGS / "topic.txt",
    "A topic's setting without effect here.",
    {"throttled_replicas": _throttled_replicas},
)

TOPIC_CONFIGS = ConfigTable(
    "a topic",
    sorted((*keys_of(TopicConfig), *(known.key for known in _KNOWN)), key=lambda key: key.name),
    hints={
        "message.format.version": "message.timestamp.type",
        "message.max.bytes": "max.message.bytes",
        "log.retention.ms": "retention.ms",
        "log.retention.bytes": "retention.bytes",
        "log.segment.bytes": "segment.bytes",
        "log.cleanup.policy": "cleanup.policy",
    },
)
#: Topic settings -> the broker's that give their defaults, of those that act.
_OF_BROKER: dict[str, tuple[tuple[ConfigKey, int], ...]] = {
    declared.key.name: of_broker
    for field in fields(TopicConfig)
    if (declared := declared_by(field)) is not None and declared.key is not None
    for of_broker in (field.metadata[_BY_BROKER],)
}

BROKER_NAMES: dict[str, tuple[BrokerName, ...]] = {
    **{
        known.key.name: tuple(BrokerName(name) for name in known.default_from)
        for known in _KNOWN
        if known.default_from
    },
    **{
        name: tuple(BrokerName(key.name, factor) for key, factor in of_broker)
        for name, of_broker in _OF_BROKER.items()
        if of_broker
    },
}
"""Broker settings that give a topic setting's default, strongest first."""

TOPIC_DEFAULTS = tuple(
    sorted((key for some in _OF_BROKER.values() for key, _ in some), key=lambda key: key.name)
)
"""Those of them that act, as settings of the broker."""

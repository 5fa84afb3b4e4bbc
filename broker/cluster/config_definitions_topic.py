"""Every topic setting of Kafka 4.3, with its default and its broker-level names.

A topic's value is, in this order: its own override, the dynamic and then the static value of the
first broker setting in `broker_names` that is set, this table's default. Sources: Kafka's
`LogConfig`, `TopicConfig` and `ServerTopicConfigSynonyms` (names, types, defaults and limits as
read from a running 4.3.1); the `quire.ledger.*` ones are feature 19.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.config import (
    LONG_MAX,
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    either,
    list_of,
    one_of,
)

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


@dataclass(slots=True, frozen=True)
class BrokerName:
    """A broker setting that gives a topic setting's default; `factor` turns its unit into the
    topic's (hours into milliseconds)."""

    name: str
    factor: int = 1


COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = ("compact", "delete")

compression_type = one_of(*COMPRESSION_TYPES)
timestamp_type = one_of(*TIMESTAMP_TYPES)
cleanup_policy = list_of(*CLEANUP_POLICIES)
gzip_level = either(-1, between(1, 9))
lz4_level = between(1, 17)
zstd_level = between(-131_072, 22)
segment_size = at_least(1_048_576)
ratio = between(0, 1)

_THROTTLED_REPLICA = re.compile(r"[0-9]{1,9}:[0-9]{1,9}", re.ASCII)


def throttled_replicas(value: ConfigValue) -> str | None:
    """`*`, or partition:broker pairs (KIP-73)."""
    assert isinstance(value, tuple)
    if value == ("*",) or all(_THROTTLED_REPLICA.fullmatch(element) for element in value):
        return None
    return "expected * or pairs partition:broker"


_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_STRING, _LIST, _BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN
_FOREVER = str(LONG_MAX)

# name, type, default, validator, does it act here, what it does
_ROWS: tuple[tuple[str, ConfigType, str, Validator | None, bool, str], ...] = (
    (
        *("cleanup.policy", _LIST, "delete", cleanup_policy, True),
        "What becomes of old records: delete, or compact, which keeps all of them as yet.",
    ),
    (
        *("compression.gzip.level", _INT, "-1", gzip_level, True),
        "Level used when the broker itself compresses with gzip; -1 is the codec's default.",
    ),
    (
        *("compression.lz4.level", _INT, "9", lz4_level, True),
        "Level used when the broker itself compresses with lz4.",
    ),
    (
        *("compression.type", _STRING, "producer", compression_type, True),
        "Codec of stored batches; producer keeps each batch as it was sent.",
    ),
    (
        *("compression.zstd.level", _INT, "3", zstd_level, True),
        "Level used when the broker itself compresses with zstd.",
    ),
    (
        *("delete.retention.ms", _LONG, "86400000", at_least(0), False),
        "How long compaction leaves a tombstone readable; compaction does not act yet.",
    ),
    (
        *("file.delete.delay.ms", _LONG, "60000", at_least(0), False),
        "Delay before a deleted segment's file goes; a ledger is deleted at once.",
    ),
    (
        *("flush.messages", _LONG, _FOREVER, at_least(1), False),
        "Records between forced flushes; here each record is on disk before it is acknowledged.",
    ),
    (
        *("flush.ms", _LONG, _FOREVER, at_least(0), False),
        "Time between forced flushes; here each record is on disk before it is acknowledged.",
    ),
    (
        *("follower.replication.throttled.replicas", _LIST, "", throttled_replicas, False),
        "Replicas whose follower side is throttled; ledgers are replicated by their writer.",
    ),
    (
        *("index.interval.bytes", _INT, "4096", at_least(0), False),
        "Bytes between entries of a segment's offset index; a ledger's index is per entry.",
    ),
    (
        *("leader.replication.throttled.replicas", _LIST, "", throttled_replicas, False),
        "Replicas whose leader side is throttled; ledgers are replicated by their writer.",
    ),
    (
        *("local.retention.bytes", _LONG, "-2", at_least(-2), False),
        "Bytes kept locally under tiered storage, which is not served here.",
    ),
    (
        *("local.retention.ms", _LONG, "-2", at_least(-2), False),
        "Time kept locally under tiered storage, which is not served here.",
    ),
    (
        *("max.compaction.lag.ms", _LONG, _FOREVER, at_least(1), False),
        "The longest that a record may stay uncompacted; compaction does not act yet.",
    ),
    (
        *("max.message.bytes", _INT, "1048588", at_least(0), True),
        "Largest record batch that is accepted, as it is on the wire.",
    ),
    (
        *("message.timestamp.after.max.ms", _LONG, "3600000", at_least(0), True),
        "How far a record's timestamp may lie after the broker's clock.",
    ),
    (
        *("message.timestamp.before.max.ms", _LONG, _FOREVER, at_least(0), True),
        "How far a record's timestamp may lie before the broker's clock.",
    ),
    (
        *("message.timestamp.type", _STRING, "CreateTime", timestamp_type, True),
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    (
        *("min.cleanable.dirty.ratio", _DOUBLE, "0.5", ratio, False),
        "Share of uncompacted bytes at which a log is compacted; compaction does not act yet.",
    ),
    (
        *("min.compaction.lag.ms", _LONG, "0", at_least(0), False),
        "The shortest that a record stays uncompacted; compaction does not act yet.",
    ),
    (
        *("min.insync.replicas", _INT, "1", at_least(1), True),
        "Bookies that must take writes for acks=all, and have a record before it is acknowledged.",
    ),
    (
        *("preallocate", _BOOLEAN, "false", None, False),
        "Whether a segment's file is made at full size; partitions have no files of their own.",
    ),
    (
        *("quire.ledger.ack.quorum", _INT, "1", at_least(1), True),
        "Bookies that must have an entry on disk before it is acknowledged (at new ledgers).",
    ),
    (
        *("quire.ledger.ensemble.size", _INT, "1", at_least(1), True),
        "Bookies over which a ledger's entries are spread (at new ledgers).",
    ),
    (
        *("quire.ledger.write.quorum", _INT, "1", at_least(1), True),
        "Bookies to which each entry is written (at new ledgers).",
    ),
    (
        *("remote.log.copy.disable", _BOOLEAN, "false", None, False),
        "Stops copying to tiered storage, which is not served here.",
    ),
    (
        *("remote.log.delete.on.disable", _BOOLEAN, "false", None, False),
        "Deletes tiered data when tiering is turned off; tiered storage is not served here.",
    ),
    (
        *("remote.storage.enable", _BOOLEAN, "false", None, False),
        "Turns on tiered storage, which is not served here.",
    ),
    (
        *("retention.bytes", _LONG, "-1", None, True),
        "Size of a partition above which its oldest ledgers are deleted; -1 is no limit.",
    ),
    (
        *("retention.ms", _LONG, "604800000", at_least(-1), True),
        "Age above which a ledger of a partition is deleted; -1 is no limit.",
    ),
    (
        *("segment.bytes", _INT, "1073741824", segment_size, True),
        "Size at which a partition's open ledger is closed and a new one begun.",
    ),
    (
        *("segment.index.bytes", _INT, "10485760", at_least(4), False),
        "Size of a segment's index file; partitions have no files of their own.",
    ),
    (
        *("segment.jitter.ms", _LONG, "0", at_least(0), True),
        "Most by which segment.ms is shortened at random, so that partitions roll apart.",
    ),
    (
        *("segment.ms", _LONG, "604800000", at_least(1), True),
        "Age at which a partition's open ledger is closed and a new one begun.",
    ),
    (
        *("unclean.leader.election.enable", _BOOLEAN, "false", None, False),
        "Lets a stale replica lead; recovery of a ledger never loses acknowledged entries.",
    ),
)

TOPIC_CONFIGS = ConfigTable(
    "a topic",
    [
        ConfigKey(name, kind, default, doc, validator, has_effect=has_effect)
        for name, kind, default, validator, has_effect, doc in _ROWS
    ],
    hints={
        "message.format.version": "message.timestamp.type",
        "message.max.bytes": "max.message.bytes",
        "log.retention.ms": "retention.ms",
        "log.retention.bytes": "retention.bytes",
        "log.segment.bytes": "segment.bytes",
        "log.cleanup.policy": "cleanup.policy",
    },
)

_SAME_NAME = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "min.insync.replicas",
    "quire.ledger.ack.quorum",
    "quire.ledger.ensemble.size",
    "quire.ledger.write.quorum",
    "unclean.leader.election.enable",
)

BROKER_NAMES: dict[str, tuple[BrokerName, ...]] = {
    **{name: (BrokerName(name),) for name in _SAME_NAME},
    "cleanup.policy": (BrokerName("log.cleanup.policy"),),
    "delete.retention.ms": (BrokerName("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (BrokerName("log.segment.delete.delay.ms"),),
    "flush.messages": (BrokerName("log.flush.interval.messages"),),
    "flush.ms": (
        BrokerName("log.flush.interval.ms"),
        BrokerName("log.flush.scheduler.interval.ms"),
    ),
    "index.interval.bytes": (BrokerName("log.index.interval.bytes"),),
    "local.retention.bytes": (BrokerName("log.local.retention.bytes"),),
    "local.retention.ms": (BrokerName("log.local.retention.ms"),),
    "max.compaction.lag.ms": (BrokerName("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (BrokerName("message.max.bytes"),),
    "message.timestamp.after.max.ms": (BrokerName("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (BrokerName("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (BrokerName("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (BrokerName("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (BrokerName("log.cleaner.min.compaction.lag.ms"),),
    "preallocate": (BrokerName("log.preallocate"),),
    "retention.bytes": (BrokerName("log.retention.bytes"),),
    "retention.ms": (
        BrokerName("log.retention.ms"),
        BrokerName("log.retention.minutes", _MINUTE_MS),
        BrokerName("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (BrokerName("log.segment.bytes"),),
    "segment.index.bytes": (BrokerName("log.index.size.max.bytes"),),
    "segment.jitter.ms": (
        BrokerName("log.roll.jitter.ms"),
        BrokerName("log.roll.jitter.hours", _HOUR_MS),
    ),
    "segment.ms": (BrokerName("log.roll.ms"), BrokerName("log.roll.hours", _HOUR_MS)),
}
"""Broker settings that give a topic setting's default, strongest first."""

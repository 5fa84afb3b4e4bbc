"""Options of `format("quire")`: texts -> values, with errors that name the option.

Names and meanings are those of Spark's `kafka` source, so that a job changes its format and adds
`metadata`. Ours beside them: `metadata`, `columns`, `minTimestamp`, `maxTimestamp`,
`maxBytesPerPartition`, `maxBytesPerTrigger`, `checkCrc`, `metadataTimeoutMs`, and `bookkeeper.*`
(settings of BookKeeper's client). What the `kafka` source knows and needs only for its consumers is
taken and has no effect. Names do not depend on case. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark_quire.columns import ColumnSet, column_set
from pyspark_quire.offsets_json import (
    EARLIEST,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    LATEST,
    json_object,
    per_partition,
)
from pyspark_quire.topic_pattern import matcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark_quire.offsets_json import PerPartition

MAX_BYTES_PER_PARTITION = 256 << 20
METADATA_TIMEOUT_MS = 60_000
MAX_TRIGGER_DELAY_MS = 15 * 60_000

#: Of the `kafka` source's consumers, which we do not have.
_WITHOUT_EFFECT = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs", "useDeprecatedOffsetFetching", "path",
    )
)  # fmt: skip
#: As many digits as 64 bits have: text of thousands takes Python a while.
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
#: As Spark's JavaUtils.timeStringAsMs has them; without a unit it is ms.
_DELAY = re.compile(r"(\d{1,18})\s*(us|ms|s|m|min|h|d)?", re.ASCII)
_DELAY_US = {
    "us": 1, "ms": 1000, "s": 10**6, "m": 60 * 10**6, "min": 60 * 10**6, "h": 3600 * 10**6,
    "d": 86_400 * 10**6,
}  # fmt: skip
#: What KafkaSourceProvider.validateGeneralOptions refuses, since the source decides it itself.
_REFUSED_OF_KAFKA = (
    "auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit",
    "interceptor.classes",
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class Which:
    """Which partitions: exactly one of these says it."""

    assign: dict[str, tuple[int, ...]] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None


@dataclass(slots=True, frozen=True)
class Border:
    """Where to start or to end: at an offset for all, at an offset each (EARLIEST and LATEST
    among them), or at the first record of a time (ms) or later, for all or each."""

    offset: int | None = None
    offsets: PerPartition | None = None
    timestamp: int | None = None
    timestamps: PerPartition | None = None


@dataclass(slots=True, frozen=True)
class ReadOptions:
    """Picklable: it goes to Spark's workers."""

    metadata: str
    which: Which
    starting: Border
    ending: Border
    columns: ColumnSet
    #: Of Kafka's clients, «bootstrap.servers» among them if it is given. May have passwords.
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    bookkeeper: dict[str, str] = field(default_factory=dict)
    fails_on_data_loss: bool = True
    #: No time -> the end, instead of an error.
    unmatched_is_latest: bool = False
    read_committed: bool = False
    checks_crc: bool = True
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = MAX_BYTES_PER_PARTITION
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    metadata_timeout_ms: int = METADATA_TIMEOUT_MS


def for_tasks(options: ReadOptions) -> ReadOptions:
    """What a task needs: it asks no broker, so passwords for brokers stay with the driver."""
    return replace(options, kafka={})


class _Options:
    """The given ones by their names in small letters; each is taken once."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._left = {name.lower(): (name, str(value)) for name, value in given.items()}

    def text(self, name: str) -> str | None:
        found = self._left.pop(name.lower(), None)
        return None if found is None else found[1]

    def number(self, name: str, least: int = 1, most: int = INT64_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text.strip()) or not least <= int(text) <= most:
            raise ValueError(f"{name}: {text[:100]!r} is no number of {least} to {most}")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}: {text!r} is neither true nor false")
        return text.lower() == "true"

    def starting_with(self, prefix: str) -> dict[str, str]:
        """By the rest of their names, as they were written (Spark has small letters only)."""
        names = [name for name in self._left if name.startswith(prefix)]
        found = [self._left.pop(name) for name in names]
        return {name[len(prefix) :]: value for name, value in found}

    def check_all_taken(self) -> None:
        names = [name for key, (name, _) in self._left.items() if key not in _WITHOUT_EFFECT]
        if names:
            raise ValueError(f"unknown option {sorted(names)[0]!r}")


def parse_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """ValueError names the option."""
    options = _Options(given)
    metadata = options.text("metadata")
    if metadata is None:
        raise ValueError(
            "metadata: must be set: zk+hierarchical://host:2181/ledgers of a cluster, or"
            " quire+unix:///data/metadata.sock of `quire standalone --bookie-listen`"
        )
    kafka = _kafka(options)
    if is_stream:
        _refuse_endings(options)
    isolation = options.text("isolation.level") or kafka.get("isolation.level", "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ValueError(
            f"isolation.level: {isolation!r} is neither read_committed nor read_uncommitted"
        )
    columns = column_set(
        options.text("columns"), include_headers=options.flag("includeHeaders", False)
    )
    parsed = ReadOptions(
        metadata=metadata,
        which=_which(options),
        starting=_border(options, "starting", LATEST if is_stream else EARLIEST),
        ending=_border(options, "ending", LATEST),
        columns=columns,
        kafka=kafka,
        bookkeeper=options.starting_with("bookkeeper."),
        fails_on_data_loss=options.flag("failOnDataLoss", True),
        unmatched_is_latest=_strategy(options),
        read_committed=isolation == "read_committed",
        checks_crc=options.flag("checkCrc", True),
        min_timestamp=options.number("minTimestamp", INT64_MIN),
        max_timestamp=options.number("maxTimestamp", INT64_MIN),
        min_partitions=options.number("minPartitions", most=INT32_MAX),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        max_bytes_per_partition=options.number("maxBytesPerPartition") or MAX_BYTES_PER_PARTITION,
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=options.number("minOffsetsPerTrigger"),
        max_bytes_per_trigger=options.number("maxBytesPerTrigger"),
        max_trigger_delay_ms=_delay(options.text("maxTriggerDelay")),
        metadata_timeout_ms=options.number("metadataTimeoutMs", most=INT32_MAX)
        or METADATA_TIMEOUT_MS,
    )
    options.check_all_taken()
    if not is_stream:
        _check_borders(parsed)
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ValueError(
            f"minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, which is {most}"
        )
    return parsed


def _kafka(options: _Options) -> dict[str, str]:
    """What is for Kafka's clients. ValueError for what the `kafka` source refuses."""
    kafka = {name.lower(): value for name, value in options.starting_with("kafka.").items()}
    for name in _REFUSED_OF_KAFKA:
        if name in kafka:
            raise ValueError(f"kafka.{name}: cannot be set: the source decides that itself")
    return kafka


def _refuse_endings(options: _Options) -> None:
    """As KafkaSourceProvider.validateStreamOptions, whatever they say."""
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if options.text(name) is not None:
            raise ValueError(f"{name}: ending offset not valid in streaming queries")


def _check_borders(options: ReadOptions) -> None:
    """As KafkaSourceProvider.validateBatchOptions."""
    if options.starting.offset == LATEST:
        raise ValueError("starting offset can't be latest for batch queries on Kafka")
    if LATEST in _values(options.starting.offsets):
        raise ValueError("startingOffsets: can't be latest for batch queries on Kafka")
    if options.ending.offset == EARLIEST or EARLIEST in _values(options.ending.offsets):
        raise ValueError("ending offset can't be earliest for batch queries on Kafka")


def _values(offsets: PerPartition | None) -> set[int]:
    return {each for of_topic in (offsets or {}).values() for each in of_topic.values()}


def _which(options: _Options) -> Which:
    assign, subscribe = options.text("assign"), options.text("subscribe")
    pattern = options.text("subscribePattern")
    if sum(each is not None for each in (assign, subscribe, pattern)) != 1:
        raise ValueError("exactly one of assign, subscribe, subscribePattern must be set")
    if subscribe is not None:
        names = tuple(name for each in subscribe.split(",") if (name := each.strip()))
        if not names:
            raise ValueError(f"subscribe: {subscribe!r} names no topic")
        return Which(subscribe=names)
    if pattern is not None:
        pattern = pattern.strip()
        if not pattern:
            raise ValueError("subscribePattern: is empty")
        try:
            matcher(pattern)
        except ValueError as error:
            raise ValueError(f"subscribePattern: {error}") from None
        return Which(pattern=pattern)
    assert assign is not None
    found = json_object("assign", assign)
    if not all(isinstance(v, list) and all(type(p) is int for p in v) for v in found.values()):
        raise ValueError(f'assign: {assign!r}: expected JSON such as {{"topic":[0,1]}}')
    return Which(assign={topic: tuple(numbers) for topic, numbers in found.items()})


def _border(options: _Options, name: str, default: int) -> Border:
    """A time for all goes before times, times before offsets, as in KafkaSourceProvider."""
    timestamp = options.number(f"{name}Timestamp", 0)
    timestamps = options.text(f"{name}OffsetsByTimestamp")
    text = options.text(f"{name}Offsets")
    if timestamp is not None:
        return Border(timestamp=timestamp)
    if timestamps is not None:
        return Border(timestamps=per_partition(f"{name}OffsetsByTimestamp", timestamps, 0))
    if text is None:
        return Border(offset=default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return Border(offset=words[text.strip().lower()])
    return Border(offsets=per_partition(f"{name}Offsets", text, EARLIEST))


def _strategy(options: _Options) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = (options.text(name) or "error").lower()
    if text not in ("error", "latest"):
        raise ValueError(f"{name}: {text!r} is neither error nor latest")
    return text == "latest"


def _delay(text: str | None) -> int:
    """ms"""
    if text is None:
        return MAX_TRIGGER_DELAY_MS
    match = _DELAY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"maxTriggerDelay: {text!r}: expected a time such as 15m")
    return int(match[1]) * _DELAY_US[match[2] or "ms"] // 1000

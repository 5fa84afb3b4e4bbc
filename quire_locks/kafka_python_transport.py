"""Over kafka-python, which is Python alone."""

from __future__ import annotations

import threading
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, for_code
from kafka.net.compat import KafkaNetClient

from quire_locks.context import LogRecord
from quire_locks.errors import HistoryGoneError, LocksError, UnreachableError
from quire_locks.transport import (
    NO_TOPIC_CODES,
    Answer,
    Fetched,
    Outcome,
    TopicFacts,
    outcome_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quire_locks.context import Headers


def _client(**configs: Any) -> KafkaNetClient:  # noqa: ANN401  # whatever the library has
    """One that makes no topics: of the library's setting for that, allow_auto_create_topics, what
    asks for metadata is not told (3.0.12)."""
    client = KafkaNetClient(**configs)
    client.cluster.config["allow_auto_create_topics"] = False
    return client


#: As of the transport over confluent-kafka.
PRODUCER = {
    "acks": "all",
    "enable_idempotence": False,
    "linger_ms": 0,
    "batch_size": 0,
    "retries": 0,
    "delivery_timeout_ms": 10_000,
    "request_timeout_ms": 9_000,
    "max_block_ms": 5_000,
    "kafka_client": _client,
}
CONSUMER = {
    "group_id": None,
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "isolation_level": "read_committed",
    "kafka_client": _client,
}


class KafkaPythonTransport:
    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        """`config`: of kafka-python, for producer, consumers and admin (bootstrap_servers)."""
        self._topic = topic
        self._admin = KafkaAdminClient(**config)
        self._producer = KafkaProducer(**{**config, **PRODUCER})
        self._consumer = KafkaConsumer(**{**config, **CONSUMER})
        self._asker = KafkaConsumer(**{**config, **CONSUMER})
        self._asking = threading.Lock()

    def facts(self) -> TopicFacts:
        found = self._described()
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topic)
        try:
            told = self._admin.describe_configs([resource], config_filter="all")
        except KafkaError as error:
            raise UnreachableError(str(error)) from error
        (configs,) = told["topic"].values()
        if "quire.locks" not in configs:
            raise LocksError("the server knows no quire.locks")
        return TopicFacts(
            self._topic,
            _printed(found["topic_id"]),
            len(found["partitions"]),
            str(configs["quire.locks"]["value"]),
            int(configs["quire.locks.max.per.record"]["value"]),
        )

    def topic_id(self) -> str:
        return _printed(self._described()["topic_id"])

    def _described(self) -> Mapping[str, Any]:
        try:
            (found,) = self._admin.describe_topics([self._topic])
        except KafkaError as error:
            raise UnreachableError(str(error)) from error
        if code := found["error_code"]:
            kind = LocksError if code in NO_TOPIC_CODES else UnreachableError
            raise kind(f"topic {self._topic}: {for_code(code).__name__}")
        return dict(found)

    def bounds(self, partition: int) -> tuple[int, int]:
        at = TopicPartition(self._topic, partition)
        try:
            with self._asking:
                first = self._asker.beginning_offsets([at])[at]
                return int(first), int(self._asker.end_offsets([at])[at])
        except KafkaError as error:
            raise UnreachableError(str(error)) from error

    def assign(self, positions: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, number) for number in positions])
        for number, offset in positions.items():
            self.seek(number, offset)

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def poll(self, records_max: int, timeout_s: float) -> Fetched:
        fetched = Fetched()
        try:
            found = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=records_max)
        except OffsetOutOfRangeError as error:
            raise HistoryGoneError(str(error)) from error
        except CorruptRecordError as error:
            raise LocksError(
                f"{self._places()}: a record that kafka-python cannot read: {error}"
            ) from error
        for records in found.values():
            for one in records:
                headers = tuple(one.headers)
                fetched.add(LogRecord(one.partition, one.offset, one.key, one.value, headers))
        for at in self._consumer.assignment():
            fetched.reach(at.partition, self._consumer.position(at))
        return fetched

    def _places(self) -> str:
        """Where each partition is read next."""
        reached = sorted(
            (at.partition, self._consumer.position(at)) for at in self._consumer.assignment()
        )
        return ", ".join(f"{self._topic}-{number} from {offset} on" for number, offset in reached)

    def send(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        done: Callable[[Answer], None],
    ) -> None:
        try:
            future = self._producer.send(
                self._topic, value=value, key=key, headers=headers, partition=partition
            )
        except KafkaError as error:
            done(_refused(error))
            return
        future.add_callback(lambda placed: done(Answer(Outcome.WRITTEN, placed.offset)))
        future.add_errback(lambda error: done(_refused(error)))

    def close(self) -> None:
        self._producer.close(timeout=10)
        self._consumer.close()
        self._asker.close()
        self._admin.close()


def _printed(topic_id: object) -> str:
    """As Kafka prints it: base64 for URLs, without padding."""
    return urlsafe_b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")


def _refused(error: BaseException) -> Answer:
    code = getattr(error, "errno", -1)  # the library's own errors have none
    return Answer(outcome_of(code), text=str(error))

"""Over confluent-kafka (librdkafka), which drops the broker's text of a refusal."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

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

    from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

    from quire_locks.context import Headers

_logger = logging.getLogger("quire_locks")

ASK_SECONDS = 30.0
#: One record a batch, as a batch is refused whole; no idempotence, as locks make a resend safe and
#: a refusal would cost the producer's epoch.
PRODUCER = {
    "acks": "all",
    "enable.idempotence": False,
    "linger.ms": 0,
    "batch.num.messages": 1,
    "message.timeout.ms": 10_000,
    "message.send.max.retries": 0,  # a try without an answer is the client's to know of
    "allow.auto.create.topics": False,
}
CONSUMER = {
    "group.id": "quire-locks",  # asked for, and not used
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "isolation.level": "read_committed",
}
#: With what librdkafka says of itself.
_NO_TOPIC = NO_TOPIC_CODES | {KafkaError._UNKNOWN_TOPIC}
_SPECS: Any = OffsetSpec
_EARLIEST, _LATEST = _SPECS.earliest(), _SPECS.latest()


class ConfluentTransport:
    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        """`config`: of librdkafka, for producer, consumer and admin: where, and how to log in."""
        self._topic = topic
        self._admin = AdminClient(dict(config))
        self._producer = Producer({**config, **PRODUCER})
        self._consumer = Consumer({**config, **CONSUMER})
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll_producer, daemon=True)
        self._poller.start()

    def facts(self) -> TopicFacts:
        found = self._described()
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            configs = self._admin.describe_configs([resource])[resource].result(ASK_SECONDS)
        except (KafkaException, TimeoutError) as error:
            raise _told(error) from error
        if "quire.locks" not in configs:
            raise LocksError("the server knows no quire.locks")
        return TopicFacts(
            self._topic,
            _printed(found.topic_id),
            len(found.partitions),
            str(configs["quire.locks"].value),
            int(configs["quire.locks.max.per.record"].value),
        )

    def topic_id(self) -> str:
        return _printed(self._described().topic_id)

    def _described(self) -> TopicDescription:
        asked = self._admin.describe_topics(TopicCollection([self._topic]))
        try:
            found: TopicDescription = asked[self._topic].result(ASK_SECONDS)
        except (KafkaException, TimeoutError) as error:
            raise _told(error) from error
        return found

    def bounds(self, partition: int) -> tuple[int, int]:
        at = TopicPartition(self._topic, partition)
        found = [self._admin.list_offsets({at: spec})[at] for spec in (_EARLIEST, _LATEST)]
        try:
            first, end = (one.result(ASK_SECONDS).offset for one in found)
        except (KafkaException, TimeoutError) as error:
            raise UnreachableError(str(error)) from error
        return first, end

    def assign(self, positions: Mapping[int, int]) -> None:
        self._consumer.assign(
            [TopicPartition(self._topic, number, at) for number, at in positions.items()]
        )

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition, offset))

    def poll(self, records_max: int, timeout_s: float) -> Fetched:
        fetched = Fetched()
        first = self._consumer.poll(timeout_s)
        if first is not None:
            self._take(fetched, first)
            for message in self._consumer.consume(records_max - 1, 0):
                self._take(fetched, message)
        return fetched

    def _take(self, fetched: Fetched, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is None:
            assert partition is not None
            assert offset is not None
            key, value = message.key(), message.value()
            fetched.add(LogRecord(partition, offset, _bytes(key), _bytes(value), _headers(message)))
        elif error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None
            assert offset is not None
            fetched.reach(partition, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise HistoryGoneError(str(error))
        elif error.fatal():
            raise LocksError(str(error))

    def send(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        done: Callable[[Answer], None],
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            done(_answer(error, -1 if offset is None else offset))

        try:
            self._producer.produce(
                self._topic,
                value=value,
                key=key,
                partition=partition,
                headers=list(headers),
                on_delivery=delivered,
            )
        except BufferError:  # librdkafka's queue is full: as if it had waited there in vain
            done(Answer(Outcome.UNKNOWN, text="the producer's queue is full"))
        except KafkaException as error:
            done(_answer(error.args[0], -1))

    def _poll_producer(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)

    def close(self) -> None:
        self._closed.set()
        self._poller.join()
        self._producer.flush(ASK_SECONDS)
        self._consumer.close()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _printed(topic_id: object) -> str:
    """As Kafka prints it, which is base64 for URLs; librdkafka's is the plain one."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    """None of a record that has one whose name is no UTF-8: the library tells none of it. It is no
    transaction of ours."""
    try:
        told: Any = message.headers() or ()
    except (SystemError, UnicodeDecodeError):
        at = f"{message.topic()}-{message.partition()} at {message.offset()}"
        _logger.warning("%s has a header whose name is no UTF-8: none of its headers is told", at)
        return ()
    return tuple((name, _bytes(text)) for name, text in told)


def _told(error: KafkaException | TimeoutError) -> LocksError:
    """UnreachableError where it may pass."""
    kafka = error.args[0] if error.args else None
    if isinstance(kafka, KafkaError) and kafka.code() in _NO_TOPIC:
        return LocksError(str(error))
    return UnreachableError(str(error))


def _answer(error: KafkaError | None, offset: int) -> Answer:
    if error is None:
        return Answer(Outcome.WRITTEN, offset)
    outcome = Outcome.FAILED if error.fatal() else outcome_of(error.code())
    return Answer(outcome, text=str(error))

"""librdkafka's producer and consumer at a steady pace, and what they notice when brokers go.

A record for each partition in turn; each holds its number, so that what was read can be held
against what was acknowledged. Latency is from `produce` to the acknowledgement's report.
"""

import json
import struct
import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, Producer

from bench.clients import QUIET, TIMEOUT_SECONDS

VALUE_SIZE_BYTES = 100
#: A client that looks for the new leader all the time, so that the server is what is measured.
QUICK = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


@dataclass(frozen=True)
class Ack:
    number: int
    partition: int
    at: float  # seconds since 1970
    latency_seconds: float


@dataclass
class Requests:
    """What librdkafka counted of Produce, Metadata and all other requests."""

    retried: int = 0
    failed: int = 0
    timed_out: int = 0


class Pacer(threading.Thread):
    """Produces from `start` to `finish`. `acks` come in the order of their reports."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, per_second: float, **settings: object
    ) -> None:
        super().__init__(name=f"pacer of {topic}", daemon=True)
        self.topic, self.partitions, self.per_second = topic, partitions, per_second
        self.acks: list[Ack] = []
        self.errors: list[str] = []
        self.requests = Requests()
        self.sent = 0
        self._end = threading.Event()
        self._failure: BaseException | None = None
        config = {
            "bootstrap.servers": bootstrap,
            "statistics.interval.ms": 200,
            "stats_cb": self._count,
            **QUIET,
            **settings,
        }
        self._producer = Producer(config)

    def run(self) -> None:
        try:
            due = time.perf_counter()
            while not self._end.is_set():
                self._produce()
                due += 1 / self.per_second
                self._producer.poll(0)
                while (left := due - time.perf_counter()) > 0:
                    self._producer.poll(left)
        except BaseException as failure:  # told by `finish`, in the thread that asked for this one
            self._failure = failure

    def _produce(self) -> None:
        number = self.sent
        value = struct.pack(">q", number) + bytes(VALUE_SIZE_BYTES - 8)
        self._producer.produce(
            self.topic,
            value,
            partition=number % self.partitions,
            on_delivery=lambda error, message: self._done(number, error, message),
        )
        self.sent += 1

    def _done(self, number: int, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            ack = Ack(number, message.partition(), time.time(), message.latency())
            self.acks.append(ack)

    def _count(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.requests = Requests(
            sum(each["txretries"] for each in brokers),
            sum(each["txerrs"] + each["rxerrs"] for each in brokers),
            sum(each["req_timeouts"] for each in brokers),
        )

    def wait_for_acks(self, since: float) -> None:
        """Until each partition acknowledged a record after `since`; RuntimeError if not."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        seen, missing = 0, set(range(self.partitions))
        while missing:
            acks, seen = self.acks[seen:], len(self.acks)
            missing -= {ack.partition for ack in acks if ack.at > since}
            if time.monotonic() > deadline or not self.is_alive():
                raise RuntimeError(f"{len(missing)} partitions do not acknowledge: {self._failure}")
            time.sleep(0.01)

    def finish(self) -> None:
        """Waits for what is under way."""
        self._end.set()
        self.join()
        if self._failure is not None:
            raise RuntimeError("the producer ended") from self._failure
        self._producer.flush(TIMEOUT_SECONDS)
        self._producer.poll(0.3)  # the last counters

    def first_acks(self, since: float) -> list[float]:
        """Seconds from `since` to each partition's first acknowledgement after it, ascending."""
        found: dict[int, float] = {}
        for ack in self.acks:
            if ack.at > since:
                found.setdefault(ack.partition, ack.at - since)
        return sorted(found.values())

    def longest(self, since: float) -> list[float]:
        """The longest latency of each partition after `since`, in seconds, ascending."""
        found: dict[int, float] = {}
        for ack in self.acks:
            if ack.at > since:
                found[ack.partition] = max(found.get(ack.partition, 0.0), ack.latency_seconds)
        return sorted(found.values())


@dataclass
class Follower:
    """A consumer in a group of one that reads what a Pacer writes, with librdkafka's defaults."""

    bootstrap: str
    topic: str
    numbers: set[int] = field(default_factory=set)
    read_count: int = 0
    longest_gap_seconds: float = 0.0
    last_at: float | None = None

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Returns when it has read something."""
        self._thread.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.last_at is None:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the consumer reads nothing")
            time.sleep(0.01)
        self.longest_gap_seconds = 0.0

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"follower-{time.monotonic_ns()}",
                "auto.offset.reset": "earliest",
                **QUIET,
            }
        )
        consumer.subscribe([self.topic])
        try:
            while not self._end.is_set():
                messages = consumer.consume(1000, 0.02)
                values = [message.value() for message in messages if message.error() is None]
                if values:
                    now = time.monotonic()
                    if self.last_at is not None:
                        gap = now - self.last_at
                        self.longest_gap_seconds = max(self.longest_gap_seconds, gap)
                    self.last_at = now
                    self.read_count += len(values)
                    self.numbers.update(struct.unpack_from(">q", value)[0] for value in values)
        finally:
            consumer.close()

    def finish(self, wanted: set[int]) -> set[int]:
        """Ends when all `wanted` records were read, or nothing new comes; those that were not."""
        while not wanted <= self.numbers and time.monotonic() - (self.last_at or 0) < 10:
            time.sleep(0.05)
        self._end.set()
        self._thread.join()
        return wanted - self.numbers

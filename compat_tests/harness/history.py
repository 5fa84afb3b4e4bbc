"""Clients that work through a server's crashes and write down what they were told.

`Writer` sends numbered records with an idempotent producer; `Watcher` reads the same partitions all
the while. What they noted is checked at the end against what the log then holds.
"""

import itertools
import json
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

# A crash shows as connection errors in whatever a client does at that moment.
CLIENT_SETTINGS = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 2000,
    "log_level": 0,
}
#: `connections.max.idle.ms` of producers that commit offsets in transactions. librdkafka (2.16; its
#: issues 5456 and 5511) waits for the coordinator of a group for ever, whatever the call's timeout,
#: if that broker has left the cluster's metadata, unless some connection opens or closes: with this
#: one does, when nothing else happens.
IDLE_MS = 2_000


class Writer(threading.Thread):
    """Numbers 0, 1, 2 ... to partitions in turn, until stopped; value = the number, padded."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        size_bytes: int = 100,
        settings: dict[str, object] | None = None,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self.topic, self.partitions, self.size_bytes = topic, partitions, size_bytes
        self.acked: dict[int, tuple[int, int]] = {}  # number -> (partition, offset)
        self.failed: list[str] = []
        self.sent_count = 0
        self.stopping = threading.Event()
        #: librdkafka's own picture of itself, every second while the writer runs.
        self.statistics: dict[str, object] = {}
        self.producer = Producer(
            {
                **CLIENT_SETTINGS,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
                "queue.buffering.max.messages": 2000,
                "error_cb": self._on_error,
                "statistics.interval.ms": 1000,
                "stats_cb": self._on_statistics,
                **(settings or {}),
            }
        )

    def _on_error(self, error: object) -> None:
        if error.fatal():
            self.failed.append(f"fatal: {error.str()}")

    def _on_statistics(self, told: str) -> None:
        self.statistics = json.loads(told)

    def state(self) -> str:
        """Who stands still, if nothing is acknowledged: a broker that owes answers (`awaited`), or
        a client that asks for none."""
        told = self.statistics
        brokers = {
            name: (
                f"{one['state']} awaited {one['waitresp_cnt']} unsent {one['outbuf_cnt']}"
                f" silent {one['rxidle'] / 1e6:.1f} s"
            )
            for name, one in told.get("brokers", {}).items()
        }
        partitions = {
            number: (
                f"leader {one['leader']} queued {one['msgq_cnt']}+{one['xmit_msgq_cnt']}"
                f" in flight {one['msgs_inflight']}"
                f" next ack {one['next_ack_seq']} error {one['next_err_seq']}"
            )
            for topic in told.get("topics", {}).values()
            for number, one in topic["partitions"].items()
        }
        life = f"alive {self.is_alive()}, {told.get('eos')}"
        return f"{life}, brokers {brokers}, partitions {partitions}"

    def value(self, number: int) -> bytes:
        return b"%d" % number + b"." * self.size_bytes

    def _reporter(self, number: int):
        def report(error, message):
            if error is not None:
                self.failed.append(f"record {number}: {error.str()}")
            elif number in self.acked:
                self.failed.append(f"record {number} was acknowledged twice")
            else:
                self.acked[number] = (message.partition(), message.offset())

        return report

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set() and not self.failed:
            try:
                self.producer.produce(
                    self.topic,
                    self.value(number),
                    partition=number % self.partitions,
                    on_delivery=self._reporter(number),
                )
                number += 1
                self.sent_count = number
            except BufferError:
                self.producer.poll(0.02)
            except KafkaException as error:  # a fatal one, of which `poll` has not told yet
                self.failed.append(f"produce: {error}")
            if number % 50 == 0:
                self.producer.poll(0)
                time.sleep(0.002)  # leave a core for the server

    def finish(self, timeout_s: float = 60) -> int:
        """Stop sending; wait for what is under way. How many records never got an answer."""
        self.stopping.set()
        self.join(10)
        return self.producer.flush(timeout_s)


class Watcher(threading.Thread):
    """Reads every partition again and again; no two reads of an offset may differ."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        settings: dict[str, object] | None = None,
    ) -> None:
        super().__init__(name="watcher", daemon=True)
        self.settings = settings or {}
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.seen: dict[tuple[int, int], bytes] = {}
        self.wrong: list[str] = []
        self.read_count = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        settings = {
            **CLIENT_SETTINGS,
            "bootstrap.servers": self.bootstrap,
            "group.id": "watcher",
            **self.settings,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer(settings)
        start = [TopicPartition(self.topic, p, OFFSET_BEGINNING) for p in range(self.partitions)]
        consumer.assign(start)
        rewind_at = time.monotonic() + 5
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    self._note(message)
            if time.monotonic() > rewind_at:
                consumer.assign(start)
                rewind_at = time.monotonic() + 5
        consumer.close()

    def _note(self, message) -> None:
        self.read_count += 1
        place = (message.partition(), message.offset())
        before = self.seen.setdefault(place, message.value())
        if before != message.value():
            self.wrong.append(f"{place} read {before[:20]!r}, later {message.value()[:20]!r}")

    def finish(self) -> None:
        self.stopping.set()
        self.join(10)


def read_all(
    bootstrap: str,
    topic: str,
    partitions: int,
    isolation: str = "read_uncommitted",
    timeout_s: float = 180,
    settings: dict[str, object] | None = None,
):
    """partition -> [(offset, value)], up to the end offsets of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            **(settings or {}),
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    rows: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(partitions)}
    open_partitions = set(rows)
    deadline = time.monotonic() + timeout_s
    while open_partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}: partitions {open_partitions} have no end")
        for message in consumer.consume(2000, 0.2):
            if message.error() is not None:
                if message.error().name() != "_PARTITION_EOF":
                    raise KafkaException(message.error())
                open_partitions.discard(message.partition())
            else:
                rows[message.partition()].append((message.offset(), message.value()))
    consumer.close()
    return rows


def check(writer: Writer, watcher: Watcher, rows: dict[int, list[tuple[int, bytes]]]) -> list[str]:
    """What is wrong, in words; empty when every promise was kept.

    The promises: an acknowledged record is at the offset that was acknowledged; each record is
    there once; a partition's records are in the order of sending; nobody read anything else.
    """
    wrong = list(writer.failed) + list(watcher.wrong)
    at = {(partition, offset): value for partition, row in rows.items() for offset, value in row}
    for number, place in writer.acked.items():
        found = at.get(place)
        if found != writer.value(number):
            wrong.append(f"record {number}, acknowledged at {place}: there is {found!r:.60}")
    for partition, row in rows.items():
        numbers = [int(value.rstrip(b".")) for _, value in row]
        for before, after in itertools.pairwise(numbers):
            if after <= before:
                kind = "twice" if after == before else "out of order"
                wrong.append(f"partition {partition}: {after} comes after {before}: {kind}")
            elif after != before + writer.partitions:
                wrong.append(f"partition {partition}: {after} comes after {before}: a hole")
        offsets = [offset for offset, _ in row]
        if offsets != list(range(len(offsets))):
            wrong.append(f"partition {partition}: offsets are not 0, 1, 2 ...")
    for place, value in watcher.seen.items():
        if at.get(place) != value:
            wrong.append(f"{place} was read as {value[:20]!r}, and is now {at.get(place)!r:.40}")
    return wrong

"""Read, work and write in transactions, through the faults; and what everybody must find after it.

A feeder writes numbered records to the partitions of a source topic. For each partition there is a
worker with a transactional id of its own: it reads some records, writes each one to two partitions
of `out` and under a key to a compacted topic, puts its offset into the transaction, and commits, or
aborts every fourth transaction on purpose and reads the same records again. Whatever fails, the
worker goes on from what is committed: only transactions that keep their word make that exact.

Some workers are librdkafka's, which speaks the first version of the protocol, some Java's, which
speaks the second (transactional_java.py). All write to the same partitions of `out`, so that
transactions of both versions are open side by side. Both clients read it as readers of committed
records, Java's the compacted topic, too, from the beginning to the end and now and then back.

Judged: a record of the source is in both of its partitions of `out`, once, and in its order;
nothing of a transaction that was aborted on purpose is read by anybody who reads committed records,
at any time; no two such reads of an offset differ; nothing comes to be committed behind a reader
that has passed it; of each key the last value stays.
"""

import random
import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import history

from .kafka_writers import REQUEST_TIMEOUT_MS, RewindingWatcher
from .transactional_java import JavaTransactions
from .transactional_judges import (
    OUT_PARTITIONS,
    TO_ABORT,
    TO_COMMIT,
    judge_keyed,
    judge_out,
    judge_reader,
    key_of,
    places_of,
    value_of,
)
from .workloads import Gaps, Workload

SOURCE, OUT, KEYED = "chaos-tx-source", "chaos-tx-out", "chaos-tx-keyed"
#: One partition of the source for each; librdkafka's have the first ones.
LIBRDKAFKA_WORKERS, JAVA_WORKERS = 3, 2
WORKERS = LIBRDKAFKA_WORKERS + JAVA_WORKERS
RECORDS_MAX = 20
ABORTED_EVERY = 4
SOURCE_RATE = 60
#: Of the compacted topic: ledgers that are passed over and replaced all the while.
KEYED_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
#: Of a transaction, and of one call of the client.
TRANSACTION_TIMEOUT_MS, CALL_S = 60_000, 10
DONE_WITHIN_S = 180.0
UNANSWERED_MAX = 3


class Worker(threading.Thread):
    """Of one partition of the source. `counts`: by what transactions came to."""

    def __init__(self, bootstrap: str, partition: int, gap: Gaps) -> None:
        super().__init__(name=f"worker {partition}", daemon=True)
        self.bootstrap, self.partition, self.gap = bootstrap, partition, gap
        self.rng = random.Random(partition)
        self.counts: dict[str, int] = defaultdict(int)
        self.wrong: list[str] = []
        self.stopping = threading.Event()
        self.source = TopicPartition(SOURCE, partition)
        #: The next offset, as far as this worker knows it to be committed.
        self.committed = 0
        self.transaction_count = 0
        self.consumer = self._new_consumer()
        #: Calls in a row that asked for what is committed, and had no answer.
        self.unanswered = 0
        self.producer: Producer | None = None
        self.last_read_error = ""

    def _settings(self) -> dict[str, object]:
        return {
            **history.CLIENT_SETTINGS,
            "bootstrap.servers": self.bootstrap,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
        }

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                **self._settings(),
                "group.id": f"chaos-tx-{self.partition}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
            }
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                if self.producer is None:
                    self._begin_anew()
                self._one()
            except KafkaException as error:
                self._failed(error.args[0])
        self.consumer.close()

    def _begin_anew(self) -> None:
        """A new producer under the old id: what is open is aborted, what was decided is done, so
        that what is committed by then stays so."""
        producer = Producer(
            {
                **self._settings(),
                "transactional.id": f"chaos-tx-{self.partition}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS - 1000,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "linger.ms": 2,
                "retry.backoff.ms": 50,
                "connections.max.idle.ms": history.IDLE_MS,
            }
        )
        producer.init_transactions(CALL_S)
        self.producer = producer
        self.counts["producers"] += 1
        self._go_back()

    def _go_back(self) -> None:
        """To what is committed. It never falls, and is what this worker was told, at least."""
        found = self._ask_committed()
        if found.error is not None:
            raise KafkaException(found.error)
        offset = max(found.offset, 0)
        if offset < self.committed:
            when = time.strftime("%H:%M:%S", time.gmtime())
            self.wrong.append(
                f"{self.name}: committed is {offset}, and was {self.committed}, at {when}"
            )
        self.committed = offset
        self.consumer.assign([TopicPartition(SOURCE, self.partition, offset)])

    def _ask_committed(self) -> TopicPartition:
        """A consumer of librdkafka (2.16) may cease to look for its group's coordinator: the call
        runs into its timeout again and again, and no request for that group is on the wire, while
        another consumer is told at once. It is left then, and another asks."""
        try:
            (found,) = self.consumer.committed([self.source], CALL_S)
        except KafkaException:
            self.unanswered += 1
            if self.unanswered == UNANSWERED_MAX:
                self.counts["consumers that failed to ask"] += 1
                threading.Thread(target=self.consumer.close, daemon=True).start()
                self.consumer = self._new_consumer()
                self.unanswered = 0
            raise
        self.unanswered = 0
        return found

    def _one(self) -> None:
        """One transaction, if there is something to do."""
        records = self._read()
        if not records:
            return
        self.transaction_count += 1
        is_to_abort = self.transaction_count % ABORTED_EVERY == 0
        purpose = TO_ABORT if is_to_abort else TO_COMMIT
        self.producer.begin_transaction()
        for offset in records:
            self._write(offset, purpose)
        end = records[-1] + 1
        self.producer.send_offsets_to_transaction(
            [TopicPartition(SOURCE, self.partition, end)],
            self.consumer.consumer_group_metadata(),
            CALL_S,
        )
        if is_to_abort:
            # librdkafka's own race: a partition that is not added yet makes its abort fail.
            self.producer.flush(CALL_S)
            self._end(self.producer.abort_transaction)
            self.counts["aborted"] += 1
            self._go_back()
        else:
            self._end(self.producer.commit_transaction)
            self.committed = end
            self.counts["committed"] += 1
            self.counts["records"] += len(records)
            self.gap.moments.append(time.monotonic())

    def _read(self) -> list[int]:
        """Offsets of the next records."""
        found = []
        for message in self.consumer.consume(self.rng.randrange(1, RECORDS_MAX), 0.2):
            if message.error() is None:
                found.append(message.offset())
            else:
                # librdkafka may have stopped to read by itself: it goes on from what is committed.
                self.counts[f"read failed {message.error().name()}"] += 1
                self.last_read_error = message.error().str()
                raise KafkaException(message.error())
        return found

    def _write(self, offset: int, purpose: bytes) -> None:
        value = value_of(self.partition, offset, purpose)
        for place in places_of(self.partition, offset):
            self.producer.produce(OUT, value, partition=place)
        key = key_of(self.partition, offset)
        self.producer.produce(KEYED, value, key=key, partition=self.partition)
        self.producer.poll(0)

    def _end(self, end) -> None:
        """Until it is known what came of it."""
        deadline = time.monotonic() + 2 * TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                end(CALL_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _failed(self, error) -> None:
        self.counts[f"failed {error.name()}"] += 1
        if self.producer is not None and error.txn_requires_abort():
            try:
                self._end(self.producer.abort_transaction)
                self._go_back()
                return
            except KafkaException as worse:
                self.counts[f"abort failed {worse.args[0].name()}"] += 1
        self.producer = None
        time.sleep(0.1)


class CommittedWatcher(RewindingWatcher):
    """Of committed records; what it may never see is noted at once."""

    ISOLATION = "read_committed"

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        #: By partition: the last offset of all that was seen.
        self.last_seen = dict.fromkeys(range(partitions), -1)

    def _note(self, message) -> None:
        partition, offset = message.partition(), message.offset()
        where = f"{message.value()!r} at {partition}/{offset}"
        if offset < self.last_seen[partition] and (partition, offset) not in self.seen:
            self.wrong.append(f"passed over, and later read: {where}")
        super()._note(message)
        self.last_seen[partition] = max(self.last_seen[partition], offset)
        if message.value().endswith(TO_ABORT):
            self.wrong.append(f"aborted, and read: {where}")


class TransactionalWriting(Workload):
    name = "transactions"
    silent_s = 5.0

    def __init__(self, world) -> None:
        super().__init__(world)
        self.bootstrap = world.bootstrap
        self.gaps = {partition: Gaps() for partition in range(WORKERS)}
        self.workers: list[Worker] = []
        self.feeder = None
        self.watcher = None
        self.java: JavaTransactions | None = None

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for topic, partitions, config in (
            (SOURCE, WORKERS, {}),
            (OUT, OUT_PARTITIONS, {}),
            (KEYED, WORKERS, KEYED_CONFIG),
        ):
            admin.create_topics([NewTopic(topic, partitions, 3, config=config)])[topic].result(60)
        self.feeder = Feeder(self.bootstrap)
        self.watcher = CommittedWatcher(self.bootstrap, OUT, OUT_PARTITIONS)
        self.workers = [
            Worker(self.bootstrap, partition, self.gaps[partition])
            for partition in range(LIBRDKAFKA_WORKERS)
        ]
        names = {"source": SOURCE, "out": OUT, "keyed": KEYED}
        sizes = {"records_max": RECORDS_MAX, "aborted_every": ABORTED_EVERY}
        times = {"call_ms": CALL_S * 1000, "transaction_ms": TRANSACTION_TIMEOUT_MS}
        read = {"read": {OUT: OUT_PARTITIONS, KEYED: WORKERS}}
        mine = {n: self.gaps[n] for n in range(LIBRDKAFKA_WORKERS, WORKERS)}
        self.java = JavaTransactions(self.world, names | sizes | times | read, mine)
        for each in (self.feeder, self.watcher, *self.workers):
            each.start()

    def look_after(self, struck, say) -> None:
        self.java.look_after()

    def committed(self) -> dict[int, int]:
        """By partition of the source: where its worker is."""
        mine = {worker.partition: worker.committed for worker in self.workers}
        return mine | self.java.committed

    def finish(self) -> None:
        unanswered = self.feeder.finish()
        if unanswered:
            self.wrong.append(f"feeder: {unanswered} records never got an answer")
        self.wrong += self.feeder.failed
        self.source_rows = history.read_all(self.bootstrap, SOURCE, WORKERS)
        ends = {p: (row[-1][0] + 1 if row else 0) for p, row in self.source_rows.items()}
        self._wait_for("workers", self.committed, ends)
        for worker in self.workers:
            worker.stopping.set()
        for worker in self.workers:
            worker.join(90)
            self.wrong += worker.wrong
        self.rows = {
            OUT: history.read_all(self.bootstrap, OUT, OUT_PARTITIONS, "read_committed"),
            KEYED: history.read_all(self.bootstrap, KEYED, WORKERS, "read_committed"),
        }
        lasts = {p: row[-1][0] for p, row in self.rows[OUT].items() if row}
        self._wait_for("librdkafka's reader", lambda: self.watcher.last_seen, lasts)
        # The last record of a compacted topic is the last of its key, and stays.
        seen = self.java.last_seen
        lasts = {(topic, p): row[-1][0] for topic in self.rows
                 for p, row in self.rows[topic].items() if row}  # fmt: skip
        self._wait_for("Java's reader", lambda: seen, lasts)
        self.java.finish(2 * TRANSACTION_TIMEOUT_MS / 1000)
        self.watcher.finish()
        self.wrong += self.watcher.wrong + self.java.wrong

    def _wait_for(self, who: str, at, ends: dict) -> None:
        """Until `at()`, by what `ends` has, is at those ends."""
        deadline = time.monotonic() + DONE_WITHIN_S
        while any(at().get(key, -1) < end for key, end in ends.items()):
            if time.monotonic() > deadline:
                self.wrong.append(
                    f"{self.name}: {who} at {dict(at())} of {ends} after {DONE_WITHIN_S} s"
                )
                return
            time.sleep(0.1)

    def close(self) -> None:
        for each in (self.feeder, self.watcher, *self.workers):
            if each is not None:
                each.stopping.set()
        if self.java is not None:
            self.java.close()

    def check(self) -> list[str]:
        """What is wrong, in words."""
        out, keyed = self.rows[OUT], self.rows[KEYED]
        offsets = {p: [offset for offset, _ in row] for p, row in self.source_rows.items()}
        java = self.java.seen
        return [
            *self.wrong,
            *judge_out(offsets, out),
            *judge_keyed(offsets, keyed),
            *judge_reader("librdkafka's reader", self.watcher.seen, out),
            *judge_reader("Java's reader", java[OUT], out),
            *judge_reader("Java's reader of keys", java[KEYED], keyed, is_compacted=True),
        ]

    def describe(self) -> str:
        total: dict[str, int] = defaultdict(int)
        for worker in self.workers:
            for name, count in worker.counts.items():
                total[name] += count
        out, keyed = (sum(map(len, rows.values())) for rows in self.rows.values())
        java = f"Java {self.java.started.get('version')} (version 2)"
        return (
            f"{self.name}: {_words('librdkafka (version 1)', total)}; "
            f"{_words(java, self.java.counts)}; "
            f"{total['records'] + self.java.counts['records']} records acked in transactions, "
            f"{out} read back in two copies each; {len(self.java.seen[KEYED])} read of the"
            f" compacted topic, which has {keyed} left; "
            + "; ".join(worker.last_read_error for worker in self.workers if worker.last_read_error)
        )


def _words(who: str, counts: dict[str, int]) -> str:
    failed = {name: n for name, n in sorted(counts.items()) if "failed" in name}
    return (
        f"{who}: {counts['committed']} committed, {counts['aborted']} aborted,"
        f" {counts['producers']} producers"
        + "".join(f", {name} {count}" for name, count in failed.items())
    )


class Feeder(history.Writer):
    """Of the source: so many records per second."""

    def __init__(self, bootstrap: str) -> None:
        timeouts = {
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
        }
        super().__init__(bootstrap, SOURCE, WORKERS, size_bytes=10, settings=timeouts)

    def run(self) -> None:
        number = 0
        while not self.stopping.wait(1 / SOURCE_RATE) and not self.failed:
            try:
                self.producer.produce(
                    SOURCE,
                    self.value(number),
                    partition=number % WORKERS,
                    on_delivery=self._reporter(number),
                )
            except BufferError:  # half a minute in which nobody took anything
                self.producer.poll(0.1)
                continue
            number += 1
            self.sent_count = number
            self.producer.poll(0)

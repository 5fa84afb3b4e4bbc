"""A Kafka Streams application with group.protocol=streams (KIP-1071) through the faults.

Two instances of java/kafka/ChaosStreams.java count the records that librdkafka writes by key,
exactly once, and write each count. Now and then one leaves or is killed, and comes back with its
state. Judged: of each key the counts that are committed are 1, 2, 3 and so on, up to how many
records there are of it.
"""

import threading
import time
from collections import Counter

from confluent_kafka.admin import AdminClient, NewTopic
from harness import history

from .java_process import JavaProcess
from .kafka_writers import REQUEST_TIMEOUT_MS, TopicWorkload
from .new_group_judges import Rows, judge_counts
from .workloads import Workload

APPLICATION, OUT = "chaos-streams", "chaos-counts"
INSTANCES, KEYS = 2, 40
COUNTED_WITHIN_S = 180.0
LOOKED_EVERY_S = 2.0
LEAVES_WITHIN_S = 40.0


class StreamsCounting(Workload):
    name = "streams"
    silent_s = 8.0

    def __init__(self, world, source: TopicWorkload, application: str = APPLICATION) -> None:
        super().__init__(world)
        self.source, self.application = source, application
        self.instances: list[JavaProcess] = []
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.rows: Rows = {}
        self.replaced_count = 0
        self.is_finished = False
        self._lock = threading.Lock()

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.world.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(OUT, self.source.partitions, 3)])[OUT].result(60)
        self.instances = [self._new(number) for number in range(INSTANCES)]

    def _new(self, number: int) -> JavaProcess:
        """With the state that its predecessor left, and so under its transactional ids."""
        settings = {
            "bootstrap.servers": self.world.bootstrap,
            "application.id": self.application,
            "group.protocol": "streams",
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": 1,
            "state.dir": str(self.world.directory / f"streams-{number}"),
            "statestore.cache.max.bytes": 0,
            "commit.interval.ms": 200,
            "producer.transaction.timeout.ms": 20_000,
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "metadata.max.age.ms": 2000,
        }
        options = {"settings": settings, "topic": self.source.topic, "out": OUT, "keys": KEYS}
        return JavaProcess("ChaosStreams", number, self.world, options, self._note)

    def _note(self, number: int, event: dict) -> None:
        if event["event"] == "counted":
            with self._lock:
                self.gaps[0].moments.append(time.monotonic())
        elif event["event"] == "failed":
            self.counts[event["what"]] += 1
            self.failures[event["what"]] = event["words"]

    def replace_member(self) -> None:
        number = self.replaced_count % INSTANCES
        instance = self.instances[number]
        # Every other pair of times it is killed.
        if self.replaced_count // INSTANCES % 2:
            instance.kill()
        else:
            instance.leave()
        # Its state is locked until it has ended: `look_after` starts it again then.
        self.replaced_count += 1

    def look_after(self, struck, say) -> None:
        if self.is_finished:
            return
        for number, each in enumerate(self.instances):
            if each.process.poll() is None:
                continue
            if not each.is_leaving:
                self.wrong.append(
                    f"{each.name}: ended with {each.process.returncode}: {each.log_end()}"
                )
            self.instances[number] = self._new(number)

    def _read_counts(self) -> bool:
        """Whether all are there that must be."""
        self.rows = history.read_all(
            self.world.bootstrap, OUT, self.source.partitions, "read_committed"
        )
        return sum(map(len, self.rows.values())) >= self.source.record_count

    def finish(self) -> None:
        """The source has finished."""
        until = time.monotonic() + COUNTED_WITHIN_S
        while not self._read_counts():
            self.look_after([], print)
            if time.monotonic() > until:
                self.wrong.append(
                    f"{self.name}: {sum(map(len, self.rows.values()))} counts of"
                    f" {self.source.record_count} after {COUNTED_WITHIN_S:.0f} s; failures:"
                    f" {self.failures}"
                )
                break
            time.sleep(LOOKED_EVERY_S)
        self.is_finished = True
        for each in self.instances:
            each.leave()
        for each in self.instances:
            each.has_left(LEAVES_WITHIN_S)
        # Nothing may come after what was complete.
        self._read_counts()

    def check(self, rows: Rows) -> list[str]:
        return self.wrong + [
            f"{self.name}: {words}" for words in judge_counts(rows, self.rows, KEYS)
        ]

    def describe(self) -> str:
        told = ", ".join(f"{n} times {what}" for what, n in sorted(self.counts.items()))
        return (
            f"{self.name}: {sum(map(len, self.rows.values()))} counts, exactly once;"
            f" {self.replaced_count} instances replaced; threads that failed: {told or 'none'}"
        )

    def close(self) -> None:
        self.is_finished = True
        for each in self.instances:
            each.kill()

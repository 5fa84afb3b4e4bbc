"""A consumer group (KIP-848) and a share group (KIP-932) of Java's clients through the faults.

Two processes of java/kafka/ChaosGroups.java with a member of either group each, which now and then
leave or are killed, and others come. Both groups read the topic that librdkafka writes.
new_group_judges.py says what must hold.
"""

import threading
import time

from confluent_kafka import Consumer, TopicPartition
from harness import tools
from harness.brokers import wait_for

from .java_process import JavaProcess
from .kafka_writers import REQUEST_TIMEOUT_MS, TopicWorkload
from .new_group_judges import ConsumerGroupHistory, Rows, ShareGroupHistory
from .workloads import Gaps, Workload

GROUP, SHARE_GROUP = "chaos-consumer", "chaos-share"
PROCESSES = 2
#: The broker's setting in world.py; most deliveries of a record.
DELIVERY_COUNT_LIMIT = 10
CAUGHT_UP_WITHIN_S = 120.0
LEAVES_WITHIN_S = 30.0
CLIENT_SETTINGS = {
    "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
    "default.api.timeout.ms": "8000",
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "200",
    "metadata.max.age.ms": "2000",
}
SHARE_TOOL = "consumer.group.ShareGroupCommand"


class NewGroups(Workload):
    name = "new-groups"
    silent_s = 5.0

    def __init__(
        self, world, source: TopicWorkload, group: str = GROUP, share_group: str = SHARE_GROUP
    ) -> None:
        super().__init__(world)
        self.source, self.group, self.share_group = source, group, share_group
        #: 0: read in the consumer group; 1: acknowledged in the share group.
        self.gaps = {0: Gaps(), 1: Gaps()}
        self.consumers, self.shares = ConsumerGroupHistory(), ShareGroupHistory()
        self.processes: list[JavaProcess] = []
        self.is_finished = False
        self.replaced_count = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        self._tool(
            "kafka-configs", "--alter", "--entity-type", "groups",
            "--entity-name", self.share_group, "--add-config", "share.auto.offset.reset=earliest",
        )  # fmt: skip
        for _ in range(PROCESSES):
            self._add()

    def _add(self) -> None:
        number = len(self.processes)
        options = {
            "client": {**CLIENT_SETTINGS, "bootstrap.servers": self.world.bootstrap},
            "topic": self.source.topic,
            "group": self.group,
            "share_group": self.share_group,
        }
        self.processes.append(JavaProcess("ChaosGroups", number, self.world, options, self._note))

    def _tool(self, name: str, *words: str) -> str:
        return tools.java(name, "--bootstrap-server", self.world.bootstrap, *words, code=None)

    def _note(self, member: int, event: dict) -> None:
        with self._lock:
            kind = event["event"]
            self.consumers.note(member, event)
            self.shares.note(member, event)
            if kind == "read":
                self.gaps[0].moments.append(time.monotonic())
            elif kind == "told" and not event["error"]:
                self.gaps[1].moments.append(time.monotonic())
            elif kind == "failed":
                self.consumers.counts[event["what"]] += 1

    def replace_member(self) -> None:
        """Every other time killed: it cannot say that it leaves."""
        oldest = next(each for each in self.processes if not each.is_leaving)
        if self.replaced_count % 2:
            oldest.kill()
        else:
            oldest.leave()
        self.replaced_count += 1
        self._add()

    def look_after(self, struck, say) -> None:
        if self.is_finished:
            return
        for each in list(self.processes):
            if not each.is_leaving and each.process.poll() is not None:
                each.is_leaving = True
                self.wrong.append(
                    f"{each.name}: ended with {each.process.returncode}: {each.log_end()}"
                )
                self._add()

    def finish(self) -> None:
        """The source has finished."""
        self._wait(self._is_read, "the consumer group never comes to the end")
        self._wait(self._is_committed, "the consumer group keeps a lag", 0.5)
        self._wait(lambda: sum(self._share_lags().values()) == 0, "the share group keeps a lag", 1)
        self.is_finished = True
        for each in self.processes:
            each.leave()
        for each in self.processes:
            each.has_left(LEAVES_WITHIN_S)

    def _wait(self, is_so, words: str, every_s: float = 0.1) -> None:
        def is_so_now() -> bool:
            if is_so():
                return True
            time.sleep(every_s)
            return False

        try:
            wait_for(is_so_now, CAUGHT_UP_WITHIN_S, words)
        except AssertionError:
            self.wrong.append(
                f"{words} within {CAUGHT_UP_WITHIN_S:.0f} s: of {self.source.record_count} records"
                f" {self._positions()} read, {self.committed()} committed, lags of the share group"
                f" {self._share_lags()}"
            )

    def _positions(self) -> list[int]:
        with self._lock:
            return [self.consumers.position(n) for n in range(self.source.partitions)]

    def _is_read(self) -> bool:
        return sum(self._positions()) >= self.source.record_count

    def _is_committed(self) -> bool:
        return sum(self.committed().values()) >= self.source.record_count

    def committed(self) -> dict[int, int]:
        """By partition, of the consumer group."""
        consumer = Consumer({"bootstrap.servers": self.world.bootstrap, "group.id": self.group})
        every = [TopicPartition(self.source.topic, n) for n in range(self.source.partitions)]
        try:
            return {one.partition: max(one.offset, 0) for one in consumer.committed(every, 60)}
        finally:
            consumer.close()

    def _share_lags(self) -> dict[int, int]:
        """By partition; 1 of what is not known."""
        said = self._tool(SHARE_TOOL, "--describe", "--group", self.share_group)
        lags = dict.fromkeys(range(self.source.partitions), 1)
        for line in said.splitlines():
            cells = line.split()
            if len(cells) > 4 and cells[1] == self.source.topic and cells[4].isdigit():
                lags[int(cells[2])] = int(cells[4])
        return lags

    def check(self, rows: Rows) -> list[str]:
        wrong = self.consumers.judge(rows, self.committed())
        wrong += self.shares.judge(rows, DELIVERY_COUNT_LIMIT)
        return self.wrong + [f"{self.name}: {words}" for words in wrong]

    def describe(self) -> str:
        told = ", ".join(f"{n} {name}" for name, n in sorted(self.consumers.counts.items()))
        return (
            f"{self.name}: consumer group: {sum(self._positions())} records read; {told};"
            f" {self.replaced_count} processes replaced\n"
            f"{self.name}: share group: {self.shares.describe()}\n"
            f"{self.name}: most often: {self.shares.most_delivered()}\n"
            f"{self.name}: first words of each exception: {self.shares.words}"
        )

    def close(self) -> None:
        self.is_finished = True
        for each in self.processes:
            each.kill()

"""Producers through the faults: librdkafka's with a watcher, Java's, kcat's.

All are idempotent with acks=all. What they sent and were told goes into one history at the end
(`tell`), by the words of sim/history.py.
"""

import json
import os
import random
import shutil
import subprocess
import threading
import time
from abc import abstractmethod

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import history, tools
from harness.servers import die_with_parent

from .workloads import Gaps, Workload

PARTITIONS = 6
#: Seconds after which a client gives a silent broker up; the defaults are 30 and 60.
REQUEST_TIMEOUT_MS = 5000
Rows = dict[int, list[tuple[int, bytes]]]


class TopicWorkload(Workload):
    """Of one topic, made at the start. `record_count`: acknowledged so far."""

    partitions = PARTITIONS

    def __init__(self, world) -> None:
        super().__init__(world)
        self.bootstrap = world.bootstrap
        self.topic = f"chaos-{self.name}"

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        made = admin.create_topics([NewTopic(self.topic, self.partitions, 3)])
        made[self.topic].result(60)

    def remarks(self) -> str:
        """For the line about it."""
        return ""

    @property
    @abstractmethod
    def record_count(self) -> int: ...

    @abstractmethod
    def tell(self, heard) -> None:
        """What was sent, acknowledged and seen, to a sim.history.History."""

    def read_all(self) -> Rows:
        return history.read_all(self.bootstrap, self.topic, self.partitions, timeout_s=300)

    def check(self, rows: Rows) -> list[str]:
        """What the history does not know."""
        return list(self.wrong)


class TimedWriter(history.Writer):
    """Notes when each partition was acknowledged, and sends no more than `rate` per second."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int) -> None:
        timeouts = {
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
        }
        super().__init__(bootstrap, topic, partitions, settings=timeouts)
        self.rate = rate
        self.gaps = {partition: Gaps() for partition in range(partitions)}

    def _reporter(self, number: int):
        report = super()._reporter(number)

        def timed(error, message):
            report(error, message)
            if error is None:
                self.gaps[message.partition()].moments.append(time.monotonic())

        return timed

    def run(self) -> None:
        number, began = 0, time.monotonic()
        while not self.stopping.is_set() and not self.failed:
            due = int((time.monotonic() - began) * self.rate)
            while number < due and not self.stopping.is_set():
                try:
                    self.producer.produce(
                        self.topic,
                        self.value(number),
                        partition=number % self.partitions,
                        on_delivery=self._reporter(number),
                    )
                except BufferError:
                    # What could not be sent meanwhile is not made up for.
                    self.producer.poll(0.02)
                    began = time.monotonic() - number / self.rate
                    break
                number += 1
                self.sent_count = number
            self.producer.poll(0.005)


class RewindingWatcher(history.Watcher):
    """Reads the ends of all partitions, and now and then some of what it read before."""

    AGAIN_MAX = 2000
    ISOLATION = "read_uncommitted"

    def run(self) -> None:
        consumer = Consumer(
            {
                **history.CLIENT_SETTINGS,
                "isolation.level": self.ISOLATION,
                "bootstrap.servers": self.bootstrap,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
            }
        )
        rng = random.Random(1)
        at = dict.fromkeys(range(self.partitions), 0)
        consumer.assign([TopicPartition(self.topic, p, OFFSET_BEGINNING) for p in at])
        rewind_at = time.monotonic() + 5
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    self._note(message)
                    at[message.partition()] = message.offset()
            if time.monotonic() > rewind_at:
                back = rng.randrange(self.AGAIN_MAX)
                consumer.assign(
                    [TopicPartition(self.topic, p, max(end - back, 0)) for p, end in at.items()]
                )
                rewind_at = time.monotonic() + 5
        consumer.close()


class LibrdkafkaWriting(TopicWorkload):
    name = "librdkafka"

    def start(self) -> None:
        self.create_topic()
        rate = self.world.options.rate
        self.writer = TimedWriter(self.bootstrap, self.topic, self.partitions, rate)
        self.gaps = self.writer.gaps
        self.watcher = RewindingWatcher(self.bootstrap, self.topic, self.partitions)
        self.writer.start()
        self.watcher.start()

    @property
    def record_count(self) -> int:
        return len(self.writer.acked)

    def state(self) -> str:
        return self.writer.state()

    def finish(self) -> None:
        unanswered = self.writer.finish()
        if unanswered:
            self.wrong.append(f"{self.name}: {unanswered} records never got an answer")
        self.watcher.finish()
        self.wrong += self.writer.failed + self.watcher.wrong

    def close(self) -> None:
        for each in ("writer", "watcher"):
            if hasattr(self, each):
                getattr(self, each).stopping.set()

    def tell(self, heard) -> None:
        writer = self.writer
        for number in range(writer.sent_count):
            place = (self.topic, number % self.partitions)
            heard.send(place, self.name, [writer.value(number)])
        for number, (partition, offset) in writer.acked.items():
            heard.ack((self.topic, partition), offset, [writer.value(number)])
        for (partition, offset), value in self.watcher.seen.items():
            heard.see((self.topic, partition), offset, value)


class JavaWriting(TopicWorkload):
    """Kafka's VerifiableProducer: the numbers 0, 1, 2 ... and what became of each."""

    name = "java"
    silent_s = 3.0
    SETTINGS = (
        "enable.idempotence=true\nretries=2147483647\nacks=all\n"
        f"request.timeout.ms={REQUEST_TIMEOUT_MS}\nlinger.ms=2\nreconnect.backoff.max.ms=200\n"
    )
    RATE = 100

    def __init__(self, world) -> None:
        super().__init__(world)
        self.process: subprocess.Popen | None = None
        self.acked: dict[int, tuple[int, int]] = {}
        self.is_finished = False

    def start(self) -> None:
        self.create_topic()
        config = self.world.directory / f"{self.topic}.properties"
        config.write_text(self.SETTINGS)
        words = ["--bootstrap-server", self.bootstrap, "--topic", self.topic]
        words += ["--throughput", str(self.RATE), "--command-config", str(config)]
        self.process = java_process("VerifiableProducer", words)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for event in events(self.process):
            if event.get("name") == "producer_send_success":
                place = (event["partition"], event["offset"])
                if self.acked.setdefault(int(event["value"]), place) != place:
                    self.wrong.append(f"java: {event['value']} was acknowledged twice")
                self.gaps[0].moments.append(time.monotonic())
            elif event.get("name") == "producer_send_error":
                self.wrong.append(f"java: {event}")

    @property
    def record_count(self) -> int:
        return len(self.acked)

    def look_after(self, struck, say) -> None:
        if not self.is_finished and self.process.poll() is not None:
            self.is_finished = True
            self.wrong.append(f"java: the producer ended with {self.process.returncode}")

    def finish(self) -> None:
        self.is_finished = True
        self.process.terminate()
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.wrong.append("java: the producer does not end")
        self.thread.join(10)

    def close(self) -> None:
        end(self.process)

    def tell(self, heard) -> None:
        # It was told of every record what became of it, or something is wrong already.
        for number, (partition, offset) in sorted(self.acked.items()):
            place = (self.topic, partition)
            heard.send(place, self.name, [b"%d" % number])
            heard.ack(place, offset, [b"%d" % number])


class KcatWriting(TopicWorkload):
    """kcat again and again, some lines each time; its exit code says whether all arrived."""

    name = "kcat"
    silent_s = 30.0
    partitions = 1
    LINES = 20
    #: librdkafka's own, for a message.
    TIMEOUT_S = 60

    def __init__(self, world) -> None:
        super().__init__(world)
        self.sent: list[bytes] = []
        self.acked: set[bytes] = set()
        self.gave_up_count = 0
        self.stopping = threading.Event()
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.create_topic()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        settings = (
            "enable.idempotence=true",
            "acks=all",
            f"message.timeout.ms={self.TIMEOUT_S * 1000}",
            f"request.timeout.ms={REQUEST_TIMEOUT_MS}",
        )
        command = [shutil.which("kcat"), "-q", "-P", "-b", self.bootstrap, "-t", self.topic]
        command += ["-p", "0", *(word for each in settings for word in ("-X", each))]
        while not self.stopping.wait(0.5):
            first = len(self.sent)
            lines = [b"kcat-%d" % number for number in range(first, first + self.LINES)]
            self.sent += lines
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
            said, _ = self.process.communicate(b"\n".join(lines) + b"\n")
            if self.process.returncode == 0:
                self.acked.update(lines)
                self.gaps[0].moments.append(time.monotonic())
            elif b"brokers are down: terminating" in said:
                # It gives up when none can be connected to at the moment, whatever its retries.
                self.gave_up_count += 1
            elif not self.stopping.is_set():
                self.wrong.append(f"kcat ended with {self.process.returncode}: {said[-300:]!r}")

    @property
    def record_count(self) -> int:
        return len(self.acked)

    def remarks(self) -> str:
        return f"; it gave up {self.gave_up_count} times" * (self.gave_up_count > 0)

    def finish(self) -> None:
        self.stopping.set()
        self.thread.join(self.TIMEOUT_S + 10)

    def close(self) -> None:
        self.stopping.set()
        end(self.process)

    def tell(self, heard) -> None:
        heard.send((self.topic, 0), self.name, self.sent)

    def check(self, rows: Rows) -> list[str]:
        """It is not told where a record went."""
        there = {value for _, value in rows[0]}
        lost = sorted(self.acked - there)
        return self.wrong + [f"lost: kcat's {lost[:5]}, {len(lost)} in all"] * bool(lost)


def java_process(name: str, words: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        tools.java_command(name, *words),
        env={**os.environ, **tools.java_environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,
    )


def events(process: subprocess.Popen):
    """What one of Java's verifiable clients prints, until it ends."""
    with process.stdout as lines:
        for line in lines:
            # What it logs is among them, and the last may be cut off.
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def end(process: subprocess.Popen | None) -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()

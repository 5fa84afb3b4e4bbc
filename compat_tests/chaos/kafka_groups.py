"""Consumer groups through the faults, librdkafka's and Java's. They commit as they go.

`Progress` judges: where a member begins is never before what was committed, within an assignment it
reads forward only, and in the end everything was read by somebody and committed.
"""

import contextlib
import subprocess
import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaException, TopicPartition
from harness import history
from harness.brokers import wait_for

from .kafka_writers import REQUEST_TIMEOUT_MS, TopicWorkload, end, events, java_process
from .workloads import Workload

SESSION_TIMEOUT_MS = 6000
COMMIT_EVERY_S = 0.5
SLOW_COMMIT_S = 1.0
SETTLED_WITHIN_S = 30.0
CAUGHT_UP_WITHIN_S = 120


class Progress:
    """What a group was told, per partition. Its methods may be called from any thread."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.wrong: list[str] = []
        #: The highest offset whose commit was acknowledged.
        self.committed: dict[int, int] = defaultdict(int)
        #: Ranges [first, end) that were read.
        self.ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        #: Offsets whose commit took long, or got no answer: it may still be under way, and be
        #: carried out at any time, even after a later one was acknowledged.
        self.doubtful: dict[int, set[int]] = defaultdict(set)
        self.commit_count = self.failed_commit_count = self.assignment_count = 0
        self._lock = threading.Lock()

    def commit(self, partition: int, offset: int) -> None:
        with self._lock:
            self.commit_count += 1
            self.committed[partition] = max(self.committed[partition], offset)

    def doubt(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.doubtful[one.partition].add(one.offset)

    def begin(self, floor: int, partition: int, offset: int) -> None:
        """The first record that a member gets after an assignment; `floor`: what had been committed
        when it was told of the assignment."""
        if offset < floor and offset not in self.doubtful[partition]:
            self.wrong.append(
                f"backwards: {self.who} begins partition {partition} at {offset}, and {floor} was"
                " committed before"
            )

    def read(self, partition: int, first: int, end_offset: int) -> None:
        with self._lock:
            ranges = self.ranges[partition]
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], end_offset)
            else:
                ranges.append((first, end_offset))

    def go_back(self, partition: int, offset: int, position: int) -> None:
        self.wrong.append(
            f"non-monotonic poll: {self.who}, partition {partition}: {offset} comes when"
            f" {position} is next"
        )

    def position(self, partition: int) -> int:
        """Everything before it was read."""
        position = 0
        with self._lock:
            for first, end_offset in sorted(self.ranges[partition]):
                if first > position:
                    break
                position = max(position, end_offset)
        return position


class Member(threading.Thread):
    """One of librdkafka's; commits twice a second, and when partitions are taken from it."""

    def __init__(self, bootstrap: str, topic: str, group: str, progress: Progress, gap) -> None:
        super().__init__(daemon=True)
        self.progress, self.topic, self.gap = progress, topic, gap
        self.stopping = threading.Event()
        #: The next offset of what is ours; None before the first record.
        self.positions: dict[int, int | None] = {}
        self.floors: dict[int, int] = {}
        self.consumer = Consumer(
            {
                **history.CLIENT_SETTINGS,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 1000,
                "fetch.wait.max.ms": 100,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
            }
        )

    def run(self) -> None:
        self.consumer.subscribe(
            [self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        commit_at = time.monotonic() + COMMIT_EVERY_S
        while not self.stopping.is_set():
            self._note(self.consumer.consume(500, 0.1))
            if time.monotonic() > commit_at:
                self._commit(self.positions)
                commit_at = time.monotonic() + COMMIT_EVERY_S
        self.consumer.close()

    def _assigned(self, _, given) -> None:
        self.progress.assignment_count += 1
        for one in given:
            # Before librdkafka asks where to begin.
            self.floors[one.partition] = self.progress.committed[one.partition]
            self.positions[one.partition] = None

    def _revoked(self, _, taken) -> None:
        self._commit([one.partition for one in taken])
        self._lost(_, taken)

    def _lost(self, _, taken) -> None:
        for one in taken:
            self.positions.pop(one.partition, None)

    def _note(self, messages) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition not in self.positions:
                continue
            position = self.positions[partition]
            if position is None:
                self.progress.begin(self.floors[partition], partition, offset)
            elif offset < position:
                self.progress.go_back(partition, offset, position)
            self.positions[partition] = offset + 1
            self.progress.read(partition, offset, offset + 1)
            self.gap.moments.append(time.monotonic())

    def _commit(self, partitions) -> None:
        wanted = [
            TopicPartition(self.topic, partition, position)
            for partition in partitions
            if (position := self.positions.get(partition)) is not None
        ]
        if not wanted:
            return
        sent_at = time.monotonic()
        try:
            answers = self.consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            # It was fenced, or the coordinator is away: the next one says it again.
            self.progress.failed_commit_count += 1
            self.progress.doubt(wanted)
            return
        if time.monotonic() > sent_at + SLOW_COMMIT_S:
            self.progress.doubt(wanted)
        for one in answers:
            if one.error is None:
                self.progress.commit(one.partition, one.offset)


class GroupReading(Workload):
    """Reads a topic in a group; what all groups' judging needs."""

    name = "group"
    silent_s = 5.0

    def __init__(self, world, source: TopicWorkload) -> None:
        super().__init__(world)
        self.source = source
        self.group = f"chaos-{self.name}"
        self.progress = Progress(self.name)
        #: Partitions where a commit without an answer was carried out after the last one.
        self.overtaken_count = 0
        #: Answers that were behind, at the end.
        self.stale_count = 0
        self.is_finished = False

    def describe(self) -> str:
        progress = self.progress
        read = sum(progress.position(n) for n in range(self.source.partitions))
        return (
            f"{self.name}: {read} records read, {progress.commit_count} offsets committed,"
            f" {progress.failed_commit_count} commits refused or unanswered,"
            f" {progress.assignment_count} assignments; in the end {self.overtaken_count} times a"
            f" commit without an answer came last, {self.stale_count} stale answers"
        )

    def check(self, rows: dict[int, list]) -> list[str]:
        wrong = self.wrong + self.progress.wrong
        for partition, row in rows.items():
            position = self.progress.position(partition)
            if position != len(row):
                wrong.append(
                    f"unseen: {self.name} read partition {partition} up to {position} of {len(row)}"
                )
        behind = self._behind(rows)
        until = time.monotonic() + SETTLED_WITHIN_S
        while behind and time.monotonic() < until:
            # By a broker that was cut off and has not heard yet that it is no coordinator any more.
            self.stale_count += 1
            time.sleep(0.5)
            behind = self._behind(rows)
        return wrong + behind

    def _behind(self, rows: dict[int, list]) -> list[str]:
        """Partitions whose committed offset is not what it must be, in words."""
        wrong = []
        self.overtaken_count = 0
        for partition, offset in self._committed_now().items():
            least = self.progress.committed[partition]
            if offset < least and offset in self.progress.doubtful[partition]:
                self.overtaken_count += 1
            elif not least <= offset <= len(rows[partition]):
                wrong.append(
                    f"inconsistent offsets: {self.name}, partition {partition}: {offset} is"
                    f" committed, {least} was, and the end is {len(rows[partition])}"
                )
        return wrong

    def _committed_now(self) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.world.bootstrap, "group.id": self.group})
        every = [TopicPartition(self.source.topic, n) for n in range(self.source.partitions)]
        try:
            return {one.partition: max(one.offset, 0) for one in consumer.committed(every, 60)}
        finally:
            consumer.close()

    def wait_until_read(self) -> None:
        """Up to where the source was acknowledged; the source has finished."""

        def is_read() -> bool:
            read = sum(self.progress.position(n) for n in range(self.source.partitions))
            return read >= self.source.record_count

        try:
            wait_for(is_read, CAUGHT_UP_WITHIN_S, "")
        except AssertionError:
            self.wrong.append(f"{self.name} never comes to the end")

    def replace_member(self) -> None:
        """One leaves, another comes."""
        raise NotImplementedError


class LibrdkafkaGroup(GroupReading):
    """Two members."""

    name = "librdkafka-group"

    def __init__(self, world, source: TopicWorkload) -> None:
        super().__init__(world, source)
        self.members: list[Member] = []

    def _add(self) -> None:
        member = Member(
            self.world.bootstrap, self.source.topic, self.group, self.progress, self.gaps[0]
        )
        self.members.append(member)
        member.start()

    def start(self) -> None:
        self._add()
        self._add()

    def replace_member(self) -> None:
        self.members.pop(0).stopping.set()
        self._add()

    def finish(self) -> None:
        self.wait_until_read()
        self.close()
        for member in self.members:
            member.join(60)

    def close(self) -> None:
        for member in self.members:
            member.stopping.set()


class JavaGroup(GroupReading):
    """Kafka's VerifiableConsumer, which commits after each poll."""

    name = "java-group"

    def __init__(self, world, source: TopicWorkload) -> None:
        super().__init__(world, source)
        self.process: subprocess.Popen | None = None
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        words = ["--bootstrap-server", self.world.bootstrap, "--topic", self.source.topic]
        words += ["--group-id", self.group, "--session-timeout", str(SESSION_TIMEOUT_MS)]
        config = self.world.directory / "java-group.properties"
        config.write_text(f"request.timeout.ms={REQUEST_TIMEOUT_MS}\nheartbeat.interval.ms=1000\n")
        self.process = java_process("VerifiableConsumer", [*words, "--command-config", str(config)])
        thread = threading.Thread(target=self._read, args=[self.process], daemon=True)
        self.threads.append(thread)
        thread.start()

    def _read(self, process: subprocess.Popen) -> None:
        positions: dict[int, int | None] = {}
        floors: dict[int, int] = {}
        for event in events(process):
            kind = event.get("name")
            if kind == "partitions_assigned":
                self.progress.assignment_count += 1
                # A little late: what is committed meanwhile is by this member itself, and later.
                for one in event["partitions"]:
                    positions[one["partition"]] = None
                    floors[one["partition"]] = self.progress.committed[one["partition"]]
            elif kind == "records_consumed":
                for one in event["partitions"]:
                    self._note(positions, floors, one)
            elif kind == "offsets_committed":
                if not event["success"]:
                    self.progress.failed_commit_count += 1
                    continue
                for one in event["offsets"]:
                    self.progress.commit(one["partition"], one["offset"])

    def _note(self, positions: dict, floors: dict, one: dict) -> None:
        partition, first, last = one["partition"], one["minOffset"], one["maxOffset"]
        position = positions.get(partition)
        if position is None:
            self.progress.begin(floors.get(partition, 0), partition, first)
        elif first < position:
            self.progress.go_back(partition, first, position)
        if one["count"] != last - first + 1:
            self.wrong.append(f"gap: {self.name}, partition {partition}: {one}")
        positions[partition] = last + 1
        self.progress.read(partition, first, last + 1)
        self.gaps[0].moments.append(time.monotonic())

    def look_after(self, struck, say) -> None:
        if not self.is_finished and self not in struck and self.process.poll() is not None:
            say(f"the group's Java member ended with {self.process.returncode}; another is started")
            self.wrong.append(f"{self.name}: ended with {self.process.returncode}")
            self.start()

    def replace_member(self) -> None:
        """SIGKILL: it cannot say that it leaves."""
        end(self.process)
        self.start()

    def finish(self) -> None:
        self.wait_until_read()
        self.is_finished = True
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.close()
        for thread in self.threads:
            thread.join(10)

    def close(self) -> None:
        self.is_finished = True
        end(self.process)

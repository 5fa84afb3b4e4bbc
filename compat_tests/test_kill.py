"""SIGKILL under load, again and again: nothing acknowledged is lost, repeated or moved.

QUIRE_KILLS=50 for a long run; 5 otherwise. One port and one data directory throughout.
"""

import contextlib
import os
import random
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers
from harness.history import CLIENT_SETTINGS, Watcher, Writer, check, read_all

KILLS = int(os.environ.get("QUIRE_KILLS", "5"))
PARTITIONS = 4
COORDINATOR_IS_AWAY = ("NOT_COORDINATOR", "_WAIT_COORD", "COORDINATOR_LOAD_IN_PROGRESS")


@pytest.fixture
def crashing(scratch, name):
    one = servers.make_server(scratch / name("crashing")).start()
    yield one
    one.discard()


def create(server, topic, partitions):
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def wait_for_more(writer):
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 200, 60, "no load")


class Downtimes:
    """Kills and restarts, with the times that took."""

    def __init__(self, server):
        self.server = server
        self.ready_s = []
        self.served_s = []

    def crash(self, is_served):
        """`is_served()` once a client got something done after the restart."""
        self.server.kill()
        started = time.monotonic()
        self.server.start()
        self.ready_s.append(time.monotonic() - started)
        wait_for(is_served, 60, f"nothing done within 60 s of start {self.server.started_count}")
        self.served_s.append(time.monotonic() - started)

    def describe(self):
        ready, served = sorted(self.ready_s), sorted(self.served_s)
        return (
            f"ready in {ready[len(ready) // 2]:.2f} s (worst {ready[-1]:.2f}), "
            f"first acknowledgement in {served[len(served) // 2]:.2f} s (worst {served[-1]:.2f})"
        )


@pytest.mark.timeout(120 + 15 * KILLS)
def test_nothing_acknowledged_is_lost(crashing, topic):
    create(crashing, topic, PARTITIONS)
    writer = Writer(crashing.bootstrap, topic, PARTITIONS)
    watcher = Watcher(crashing.bootstrap, topic, PARTITIONS)
    writer.start()
    watcher.start()
    downtimes = Downtimes(crashing)
    started = time.monotonic()
    wait_for(lambda: len(writer.acked) > 200, 60, "no load")
    for _ in range(KILLS):
        time.sleep(random.uniform(0.05, 0.6))
        acked = len(writer.acked)
        downtimes.crash(lambda acked=acked: len(writer.acked) > acked + 50 or writer.failed)
        if writer.failed:
            break
    unanswered = writer.finish()
    watcher.finish()
    rows = read_all(crashing.bootstrap, topic, PARTITIONS)
    wrong = check(writer, watcher, rows)
    figures.add(
        f"SIGKILL {len(downtimes.ready_s)} times in {time.monotonic() - started:.0f} s: "
        f"{writer.sent_count} records sent, {len(writer.acked)} acknowledged, {len(wrong)} wrong, "
        f"{watcher.read_count} read meanwhile; {downtimes.describe()}"
    )
    assert wrong[:20] == []
    assert unanswered == 0
    assert len(writer.acked) == writer.sent_count == sum(map(len, rows.values()))


def once_up(ask, *arguments, **named):
    """Asks until the group's coordinator is up again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask(*arguments, **named)
        except KafkaException as error:
            known = error.args[0].retriable() or error.args[0].name() in COORDINATOR_IS_AWAY
            if not known or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.mark.timeout(120 + 15 * KILLS)
def test_committed_offsets_and_configs_survive(crashing, topic, name):
    """What the coordinators and the catalogue acknowledged is there after a crash, too."""
    create(crashing, topic, 1)
    group = name("group")
    settings = {**CLIENT_SETTINGS, "bootstrap.servers": crashing.bootstrap, "group.id": group}
    partition = TopicPartition(topic, 0)
    for round_number in range(min(KILLS, 10)):
        consumer = Consumer(settings)
        producer = Producer({**CLIENT_SETTINGS, "bootstrap.servers": crashing.bootstrap})
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(60) == 0
        row = TopicPartition(topic, 0, round_number + 1, metadata=f"round {round_number}")
        once_up(consumer.commit, offsets=[row], asynchronous=False)
        create(crashing, f"{topic}-{round_number}", 2)
        crashing.kill()
        consumer.close()
        crashing.start()
        consumer = Consumer(settings)
        (found,) = once_up(consumer.committed, [partition], 20)
        assert (found.offset, found.metadata) == (round_number + 1, f"round {round_number}")
        topics = consumer.list_topics(timeout=20).topics
        for earlier in range(round_number + 1):
            assert len(topics[f"{topic}-{earlier}"].partitions) == 2
        assert consumer.get_watermark_offsets(partition, 20) == (0, round_number + 1)
        consumer.close()


class Transactions:
    """Transactions of five records, alternately committed and aborted; notes each outcome."""

    def __init__(self, bootstrap, topic, transactional_id):
        self.topic = topic
        self.settings = {
            **CLIENT_SETTINGS,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 30_000,
            "linger.ms": 0,
        }
        self.outcomes = {}  # number -> committed, aborted or unknown
        self.producer = None

    def reopen(self):
        """A new producer under the same id: fences the old one, ends what it left open."""
        self.producer = Producer(self.settings)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.producer.init_transactions(10)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def one(self, number, before_end):
        """One transaction; `before_end()` runs when its records are written and it is open."""
        self.producer.begin_transaction()
        for step in range(5):
            self.producer.produce(self.topic, b"%d.%d" % (number, step), partition=step % 2)
        self.producer.flush(30)
        before_end()
        committing = number % 3 != 2
        end = self.producer.commit_transaction if committing else self.producer.abort_transaction
        for _ in range(20):
            try:
                end(10)
                self.outcomes[number] = "committed" if committing else "aborted"
                return
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    with contextlib.suppress(KafkaException):
                        self.producer.abort_transaction(10)
                    break
                if not error.args[0].retriable():
                    break
        self.outcomes[number] = "unknown"
        self.reopen()


@pytest.mark.timeout(120 + 30 * KILLS)
def test_transactions_stay_whole(crashing, topic, name):
    create(crashing, topic, 2)
    work = Transactions(crashing.bootstrap, topic, name("tx"))
    work.reopen()
    kills = 0
    while kills < KILLS:
        number = len(work.outcomes)
        # Every third time the crash comes between the records and the end of their transaction.
        crash_inside = number % 3 == 1

        def crash(inside=crash_inside):
            if inside:
                crashing.kill()
                crashing.start()

        work.one(number, crash)
        kills += crash_inside
    work.one(len(work.outcomes), lambda: None)
    work.reopen()  # ends whatever is still open, so that the last stable offset is the end
    rows = read_all(crashing.bootstrap, topic, 2, "read_committed")
    seen = {}
    for values in rows.values():
        for _, value in values:
            number, _, step = value.partition(b".")
            seen.setdefault(int(number), []).append(int(step))
    for number, outcome in work.outcomes.items():
        steps = sorted(seen.get(number, []))
        if outcome == "committed":
            assert steps == [0, 1, 2, 3, 4], (number, steps)
        elif outcome == "aborted":
            assert steps == [], (number, steps)
        else:
            assert steps in ([], [0, 1, 2, 3, 4]), (number, steps)
    counts = {
        kind: list(work.outcomes.values()).count(kind) for kind in set(work.outcomes.values())
    }
    figures.add(f"SIGKILL {kills} times inside transactions: {counts}, each whole or absent")
    assert counts.get("committed", 0) > kills / 2


def test_clean_stop_and_start(crashing, topic):
    """SIGTERM: exit code 0, soon, and the next start serves the same."""
    create(crashing, topic, PARTITIONS)
    writer = Writer(crashing.bootstrap, topic, PARTITIONS)
    watcher = Watcher(crashing.bootstrap, topic, PARTITIONS)
    writer.start()
    watcher.start()
    for _ in range(2):
        wait_for_more(writer)
        started = time.monotonic()
        code = crashing.stop()
        if servers.target() == "quire":
            assert code == 0
            figures.add(f"SIGTERM under load: ended in {time.monotonic() - started:.2f} s")
        crashing.start()
    wait_for_more(writer)
    assert writer.finish() == 0
    watcher.finish()
    assert check(writer, watcher, read_all(crashing.bootstrap, topic, PARTITIONS)) == []

"""Optimistic locks through stock producers, by headers alone, and the helper library over both
Python clients."""

import sqlite3
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from harness import tools
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

from quire_locks import Client, SqliteStore, TransactionContext
from quire_locks.confluent_transport import ConfluentTransport
from quire_locks.kafka_python_transport import KafkaPythonTransport

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def topic(admin, name):
    made = name("locks")
    settings = {"quire.locks": "optional"}
    admin.create_topics([NewTopic(made, 1, config=settings)])[made].result(30)
    return made


def locked(position, *names):
    return [
        ("quire.position", b"%d" % position),
        *[("quire.lock.write", lock) for lock in names],
    ]


def send(producer, topic, headers):
    """(error code or 0, offset) of each, in order, of records that are sent together."""
    placed = []
    for one in headers:
        producer.produce(
            topic,
            b"v",
            headers=one,
            partition=0,
            on_delivery=lambda error, message: placed.append(
                (error.code() if error else 0, message.offset())
            ),
        )
    assert producer.flush(30) == 0
    return placed


def test_librdkafka_is_taken_and_refused(server, topic):
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "linger.ms": 0, "batch.num.messages": 1}
    )
    assert send(producer, topic, [locked(0, b"x")]) == [(0, 0)]
    ((code, _),) = send(producer, topic, [locked(0, b"x")])
    assert code == KafkaError.INVALID_RECORD
    assert send(producer, topic, [locked(1, b"x")]) == [(0, 1)]


def test_scenario_11_librdkafka_tells_culprits_from_innocents(server, topic):
    """200 records in one batch, of which 10 are to blame: nothing is written."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 200})
    assert send(producer, topic, [locked(0, b"x")]) == [(0, 0)]
    headers = [locked(1, b"%d" % n) if n % 20 else locked(0, b"x") for n in range(200)]
    codes = [code for code, _ in send(producer, topic, headers)]
    assert [n for n, code in enumerate(codes) if code == KafkaError.INVALID_RECORD] == list(
        range(0, 200, 20)
    )
    assert codes.count(KafkaError._INVALID_DIFFERENT_RECORD) == 190
    assert send(producer, topic, [locked(1, b"y")]) == [(0, 1)]


def test_an_idempotent_producer_goes_on_after_a_refusal(server, topic):
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
        }
    )
    headers = [locked(0, b"%d" % n) if n != 3 else locked(0, b"0") for n in range(8)]
    placed = send(producer, topic, headers)
    assert sorted(code for code, _ in placed) == [0] * 7 + [KafkaError.INVALID_RECORD]
    assert sorted(offset for code, offset in placed if not code) == list(range(7))


def test_kafka_python_hears_why(server, topic):
    producer = KafkaProducer(
        bootstrap_servers=server.bootstrap, enable_idempotence=False, linger_ms=0, batch_size=0
    )
    send = producer.send(topic, b"v", headers=locked(0, b"x"), partition=0)
    assert send.get(30).offset == 0
    with pytest.raises(InvalidRecordError) as caught:
        producer.send(topic, b"v", headers=locked(0, b"x"), partition=0).get(30)
    assert "LOCK_CONFLICT position=0 conflict=0 lock=x" in str(caught.value)
    producer.close()


def test_java_hears_why(server, topic, tmp_path):
    """Kafka's console producer with headers in front of the values, a batch each."""
    text = "quire.position:0,quire.lock.write:{}\tv\n".format
    said = tools.java(
        "kafka-console-producer", "--bootstrap-server", server.bootstrap, "--topic", topic,
        "--property", "parse.headers=true", "--producer-property", "linger.ms=0",
        "--producer-property", "batch.size=0", "--sync",
        input_text=text("x") + text("x") + text("y"), code=None,
    )  # fmt: skip
    assert "LOCK_CONFLICT position=0 conflict=0 lock=x" in said


def apply(db, record):
    db.execute("CREATE TABLE IF NOT EXISTS counter (value INTEGER)")
    db.execute("INSERT INTO counter VALUES (?)", (int(record.value),))


class Next(TransactionContext):
    """One more than the largest: right only if nobody was quicker."""

    def execute(self, draft, db):
        draft.write_lock(b"counter")
        try:
            (largest,) = db.execute("SELECT max(value) FROM counter").fetchone()
        except sqlite3.OperationalError:
            largest = 0
        draft.value = b"%d" % (largest + 1)
        return True


TRANSPORTS = {
    "confluent-kafka": lambda server, topic: ConfluentTransport(
        {"bootstrap.servers": server.bootstrap}, topic
    ),
    "kafka-python": lambda server, topic: KafkaPythonTransport(
        {"bootstrap_servers": server.bootstrap}, topic
    ),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_programs_count_together(server, topic, tmp_path, transport):
    paths = [tmp_path / f"{n}.db" for n in range(2)]
    counted = []

    def program(path):
        made = TRANSPORTS[transport](server, topic)
        with Client(made, SqliteStore(path), apply) as client:
            futures = [client.submit(Next()) for _ in range(15)]
            counted.extend(future.result(60) for future in futures)
            barrier.wait(60)
            client.wait_applied(0)

    barrier = threading.Barrier(2)
    programs = [threading.Thread(target=program, args=(path,)) for path in paths]
    for one in programs:
        one.start()
    for one in programs:
        one.join(90)
    assert len(counted) == 30
    assert max(one.attempts for one in counted) > 1, "they were in each other's way"
    for path in paths:
        db = sqlite3.connect(path)
        assert db.execute("SELECT value FROM counter").fetchall() == [(n + 1,) for n in range(30)]
        db.close()


def test_locks_and_compaction_are_not_for_one_topic(admin, topic):
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([resource]).values()
    with pytest.raises(KafkaException, match=r"quire\.locks=optional cannot be kept"):
        future.result(30)

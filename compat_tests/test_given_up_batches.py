"""librdkafka gives up what is on its way by an abort, and numbers what comes next as if that had
never been written (2.16; `epoch_base_msgid` in rdkafka_partition.c). If it was, its answer being
lost, the next transaction's batch has the numbers of a batch that is in the log. Nothing of that
may be taken for committed without being there, whatever its size: Kafka 4.3 does, if it is the same
as that of the one given up."""

import contextlib

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import history, servers
from harness.slow_proxy import SlowProxy

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="Kafka 4.3 loses the records")

CALL_S = 20
TOPIC = "given-up"
GIVEN_UP = 3


@pytest.fixture
def line():
    """What clients send goes through at once, what they are told when the line allows."""
    made = SlowProxy((servers.HOST, 0), answers_only=True)
    yield made
    made.close()


@pytest.fixture
def server(scratch, line):
    settings = {"advertised.listeners": f"PLAINTEXT://{line.address}"}
    made = servers.QuireServer(scratch / "given-up", settings)
    made.start()
    line.target = (servers.HOST, made.port)
    admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(CALL_S)
    yield made
    made.discard()


def end(call):
    """Whatever is asked again is asked again."""
    for _ in range(5):
        try:
            return call(CALL_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    raise AssertionError("it never ended")


def write(producer, count):
    """What was answered: the values, in one transaction."""
    told = []

    def on_delivery(error, message):
        if error is None:
            told.append(message.value())

    producer.begin_transaction()
    for number in range(count):
        producer.produce(TOPIC, b"new %d" % number, partition=0, on_delivery=on_delivery)
    end(producer.commit_transaction)
    return told


@pytest.mark.parametrize("count", [GIVEN_UP, 1])
def test_what_has_the_numbers_of_what_was_given_up(server, line, count):
    settings = {
        **history.CLIENT_SETTINGS,
        "bootstrap.servers": line.address,
        "transactional.id": "gives-up",
        "linger.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }
    producer = Producer(settings)
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"first", partition=0)
    producer.flush(CALL_S)
    line.delay_ms = 30_000
    for _ in range(GIVEN_UP):
        producer.produce(TOPIC, b"given up", partition=0)
    producer.flush(0.5)
    line.reset()  # it is in the log, and nobody was told
    with contextlib.suppress(KafkaException):  # gives up what it has, and cannot say so yet
        producer.abort_transaction(1)
    line.delay_ms = 0
    line.reset()
    end(producer.abort_transaction)
    with pytest.raises(KafkaException) as caught:
        write(producer, count)
    if caught.value.args[0].fatal():
        producer = Producer(settings)
        producer.init_transactions(CALL_S)
    else:
        assert caught.value.args[0].txn_requires_abort()
        end(producer.abort_transaction)
    told = write(producer, count)
    assert told == [b"new %d" % number for number in range(count)]
    (rows,) = history.read_all(server.bootstrap, TOPIC, 1, "read_committed").values()
    assert [value for _, value in rows] == told

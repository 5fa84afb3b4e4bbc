"""What operators have of transactions: `kafka-transactions` of Kafka 4.3, and `kafka-configs`, with
producers of librdkafka. A transaction hangs if a partition has it and its coordinator has not:
here because nobody was asked, as of brokers before Kafka 3.6."""

import re
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from harness import tools
from harness.raw import Connection, batch

pytestmark = pytest.mark.timeout(600)

VERIFICATION = "transaction.partition.verification.enable"
TRANSACTIONAL = 0x10
TWO_HOURS_MS = 7_200_000


@pytest.fixture
def run(server):
    def call(*arguments, **options):
        at = ("--bootstrap-server", server.bootstrap)
        return rows(tools.java("kafka-transactions", *at, *arguments, **options))

    return call


def rows(said):
    """The table that the tool writes, its head left out."""
    lines = [line.split("\t") for line in said.splitlines() if "\t" in line]
    return [[cell.strip() for cell in line if cell.strip()] for line in lines[1:]]


@pytest.fixture
def producer(server, name):
    def make(transactional_id, **settings):
        config = {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
        }
        made = Producer(config | settings, logger=None)
        made.init_transactions(30)
        return made

    return make


def committed(server, topic, group):
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            break
        values.append(message.value())
    consumer.close()
    return values


def test_list_describe_and_force_terminate(server, topic, name, run, producer):
    with Connection(server.port) as raw:
        assert raw.create_topic(topic) == 0
    first, second = name("first"), name("second")
    done, opened = producer(first), producer(second)
    done.begin_transaction()
    done.produce(topic, b"committed")
    done.commit_transaction(30)
    opened.begin_transaction()
    opened.produce(topic, b"open")
    opened.flush(30)
    time.sleep(1.1)

    of_both = re.escape(name("x").rsplit("-x-")[0]) + "-.*"
    listed = run("list", "--transactional-id-pattern", of_both)
    assert {(row[0], row[3]) for row in listed} == {
        (first, "CompleteCommit"), (second, "Ongoing"),
    }  # fmt: skip
    assert run("list", "--transactional-id-pattern", second[:-1]) == []
    listed = run("list", "--duration-filter", "1000", "--transactional-id-pattern", of_both)
    assert second in {row[0] for row in listed}
    tools_said = run("list", "--transactional-id-pattern", "(", code=None)
    assert tools_said == []

    [described] = run("describe", "--transactional-id", second)
    _, shown, producer_id, epoch, state, timeout = described[:6]
    assert (shown, state, timeout, described[-1]) == (second, "Ongoing", "60000", f"{topic}-0")
    producers = run("describe-producers", "--topic", topic, "--partition", "0")
    mine = next(row for row in producers if row[0] == producer_id)
    assert mine[1] == epoch
    assert mine[5] in ("1", "2"), "behind the first transaction, perhaps before its marker"
    assert run("find-hanging", "--topic", topic) == []

    said = tools.java(
        *("kafka-transactions", "--bootstrap-server", server.bootstrap),
        *("forceTerminateTransaction", "--transactionalId", second),
    )
    assert "Exception" not in said, said
    [described] = run("describe", "--transactional-id", second)
    assert described[4] == "Empty"
    with pytest.raises(KafkaException) as caught:
        opened.commit_transaction(30)
    assert caught.value.args[0].fatal()
    assert committed(server, topic, name("group")) == [b"committed"]


def test_find_hanging_and_abort(start_server, topic, name):
    """Of a server of its own: for a moment nobody verifies."""
    server = start_server()
    at = ("--bootstrap-server", server.bootstrap)

    def run(*arguments):
        return rows(tools.java("kafka-transactions", *at, *arguments))

    broker = ("--entity-type", "brokers", "--entity-default", "--alter", "--add-config")
    tools.java("kafka-configs", *at, *broker, f"{VERIFICATION}=false")
    with Connection(server.port) as raw:
        assert raw.create_topic(topic) == 0
        error, producer_id, epoch = raw.init_producer_id(name("hangs"))
        assert error == 0
        options = {"attributes": TRANSACTIONAL, "producer_id": producer_id, "producer_epoch": epoch}
        then_ms = int(time.time() * 1000) - TWO_HOURS_MS
        old = batch([b"hangs"], base_sequence=0, timestamp_ms=then_ms, **options)
        assert raw.produce(topic, old, transactional_id=name("hangs")).error == "NONE"
        tools.java("kafka-configs", *at, *broker, f"{VERIFICATION}=true")

        [found] = run("find-hanging", "--topic", topic)
        assert found[:4] == [topic, "0", str(producer_id), str(epoch)]
        assert found[5] == "0", "where it began"
        said = tools.java(
            *("kafka-transactions", *at, "abort", "--topic", topic, "--partition", "0"),
            *("--start-offset", found[5]),
        )
        assert "Exception" not in said, said
        assert run("find-hanging", "--topic", topic) == []
        plain = raw.produce(topic, batch([b"after"]))
        assert plain.error == "NONE"
        # And it cannot happen again.
        late = batch([b"late"], base_sequence=1, **options)
        assert raw.produce(topic, late, transactional_id=name("late")).error != "NONE"
    assert committed(server, topic, name("group")) == [b"after"]

"""Transactions of Kafka's Java clients, and `kafka-transactions`.

Each test is run with the client of Kafka 4.3, which speaks the second version of the protocol
(transaction.version 2: partitions are added by Produce, an epoch for each transaction), and with
that of 3.9, which speaks the first.
"""

import random
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import kafka_java, raw, servers, tools
from harness.line_tool import ToolError

pytestmark = pytest.mark.timeout(300)

PARTITIONS = [0, 1, 2]
SETTINGS = {
    # How late a transaction's timeout may be noticed.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    # A transaction that hangs cannot come about where partitions ask the coordinator first.
    "transaction.partition.verification.enable": "false",
    "log.cleaner.backoff.ms": "1000",
}
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(scratch):
    """A server of this module's own, for its settings and its kills."""
    one = servers.make_server(scratch / "transactions", SETTINGS).start()
    yield one
    one.discard()


@pytest.fixture(scope="module", params=["4.3", "3.9"])
def tool(request, scratch, broker):
    directory = scratch / f"transactions-{request.param}"
    one = kafka_java.transaction_tool(directory, broker.bootstrap, is_old=request.param == "3.9")
    yield one
    one.kill()


@pytest.fixture
def three(broker, topic):
    """The name of a topic with three partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result(30)
    return topic


@pytest.fixture
def opened(tool, name):
    """opened(id) -> the name in `tool` of a producer that has begun no transaction yet."""

    def make(transactional_id, **settings):
        producer = name("producer")
        words = {"transactional.id": transactional_id, "linger.ms": "0", **settings}
        tool.producer(name=producer, settings=words)
        tool.init(name=producer)
        return producer

    return make


def read(tool, topic, isolation="read_committed"):
    """(values by partition, ends by partition)."""
    answer = tool.read(topic=topic, partitions=PARTITIONS, isolation=isolation)
    return (
        [answer["values"][str(number)] for number in PARTITIONS],
        [answer["ends"][str(number)] for number in PARTITIONS],
    )


def read_until(tool, topic, ends):
    """The committed values by partition, once readers see so far: a commit is answered when it is
    decided, and its markers come a moment later."""
    deadline = time.monotonic() + 20
    while (found := read(tool, topic))[1] != ends:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found[0]


def send(tool, producer, topic, *values, partitions=PARTITIONS):
    return tool.send(name=producer, topic=topic, partitions=partitions, values=list(values))


def test_all_partitions_or_none(tool, opened, three, name):
    producer = opened(name("id"))
    committed, everything = [], []
    for number in range(6):
        values = [f"{number}.{step}" for step in range(5)]
        tool.begin(name=producer)
        send(tool, producer, three, *values)
        everything += values
        if number in (1, 5):
            tool.abort(name=producer)
        else:
            tool.commit(name=producer)
            committed += values
    # Six markers, each at an offset of its own.
    ends = [6 * 5 + 6] * 3
    assert read_until(tool, three, ends) == [committed] * 3
    assert read(tool, three, "read_uncommitted") == ([everything] * 3, ends)


def test_open_transaction_holds_readers(tool, opened, three, name):
    producer, other = opened(name("id")), opened(name("other"))
    tool.begin(name=other)
    send(tool, other, three, "before")
    tool.commit(name=other)
    tool.begin(name=producer)
    send(tool, producer, three, "open", partitions=[0, 1])
    tool.begin(name=other)
    send(tool, other, three, "behind")
    tool.commit(name=other)
    held = [["before"], ["before"], ["before", "behind"]]
    assert read_until(tool, three, [2, 2, 4]) == held
    tool.commit(name=producer)
    told = [["before", "open", "behind"]] * 2 + [["before", "behind"]]
    assert read_until(tool, three, [6, 6, 4]) == told


def test_offsets_are_part_of_it(tool, opened, three, name):
    producer, group = opened(name("id")), name("group")
    at = {"group": group, "topic": three, "partition": 1}

    def committed():
        return tool.committed(**at)["offset"]

    assert committed() == -1
    tool.begin(name=producer)
    send(tool, producer, three, "a")
    tool.offsets(name=producer, offset=7, **at)
    tool.commit(name=producer)
    assert committed() == 7
    tool.begin(name=producer)
    tool.offsets(name=producer, offset=9, **at)
    # Not a word of the old offset while the new one may still come.
    with pytest.raises(ToolError) as raised:
        tool.committed(**at, timeout_ms=1000)
    assert raised.value.name == "TimeoutException"
    tool.abort(name=producer)
    assert committed() == 7
    # Nothing but offsets.
    tool.begin(name=producer)
    tool.offsets(name=producer, offset=11, **at)
    tool.commit(name=producer)
    assert committed() == 11


def test_second_producer_of_the_id_fences_the_first(tool, opened, three, name):
    transactional_id = name("id")
    first = opened(transactional_id)
    tool.begin(name=first)
    send(tool, first, three, "done")
    tool.commit(name=first)
    tool.begin(name=first)
    send(tool, first, three, "fenced")
    second = opened(transactional_id)
    # What the first had open was aborted by that, and there is no way back for it.
    with pytest.raises(ToolError) as raised:
        tool.commit(name=first)
    assert "ProducerFencedException" in (raised.value.name, raised.value.cause)
    tool.begin(name=second)
    send(tool, second, three, "second")
    tool.commit(name=second)
    with pytest.raises(ToolError) as raised:
        tool.begin(name=first)
    assert "ProducerFencedException" in (raised.value.name, raised.value.cause)
    assert read_until(tool, three, [6, 6, 6]) == [["done", "second"]] * 3


def test_timeout_aborts(tool, opened, three, name):
    producer = opened(name("id"), **{"transaction.timeout.ms": "1000"})
    tool.begin(name=producer)
    started = time.monotonic()
    send(tool, producer, three, "late")
    assert read_until(tool, three, [2, 2, 2]) == [[]] * 3
    assert 0.9 < time.monotonic() - started < 10
    with pytest.raises(ToolError) as raised:
        tool.commit(name=producer)
    # Of two clients the newer one's epoch was raised for it (KIP-890), the older one's against it.
    is_new = tool.started["version"].startswith("4.")
    assert raised.value.name == (
        "InvalidTxnStateException" if is_new else "ProducerFencedException"
    )
    again = opened(name("id"))
    tool.begin(name=again)
    send(tool, again, three, "in time")
    tool.commit(name=again)
    assert read_until(tool, three, [4, 4, 4]) == [["in time"]] * 3


def test_kills_of_the_server(tool, opened, broker, three, name):
    """Every transaction that was said to be committed is there once, in all partitions, with its
    offset; none of those said to be aborted."""
    producer, group = opened(name("id"), **{"transaction.timeout.ms": "30000"}), name("group")
    noted = len(tool.events)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    tool.flood(name=producer, topic=three, partitions=PARTITIONS, group=group, seed=seed)
    for _ in range(3):
        before = len(tool.events)
        deadline = time.monotonic() + 60
        while len(tool.events) < before + 20:
            assert time.monotonic() < deadline, "no transaction ends"
            time.sleep(0.01)
        time.sleep(random.random() / 10)
        broker.kill()
        broker.start()
    last = tool.stop()["last"]
    told = {each["number"]: each["event"] for each in tool.events[noted:]}
    assert sorted(told) == list(range(1, last + 1))
    committed = [number for number, event in told.items() if event == "committed"]
    expected = [[str(number) for number in committed for _ in range(2)]] * 3
    deadline = time.monotonic() + 20
    # The last marker may have to come yet.
    while (values := read(tool, three)[0]) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert values == expected
    offset = tool.committed(group=group, topic=three, partition=0)["offset"]
    assert offset == committed[-1]


# The command.


@pytest.fixture
def java(broker):
    def run(*arguments, **options):
        command = ("kafka-transactions", "--bootstrap-server", broker.bootstrap)
        return tools.java(*command, *arguments, **options)

    return run


def table(text):
    """Rows of one of Kafka's tables by the names of its columns."""
    rows = [
        [word.strip() for word in line.split("\t")] for line in text.splitlines() if "\t" in line
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def described(java, transactional_id):
    (row,) = table(java("describe", "--transactional-id", transactional_id))
    return row


def producers(java, topic, partition):
    said = java("describe-producers", "--topic", topic, "--partition", str(partition))
    return table(said)


@pytest.mark.parametrize("tool", ["4.3"], indirect=True)
def test_list_and_describe(java, tool, opened, three, name):
    transactional_id = name("id")
    # Ten commands of Java's are started while it is open.
    producer = opened(transactional_id, **{"transaction.timeout.ms": "300000"})
    started_ms = time.time() * 1000
    tool.begin(name=producer)
    send(tool, producer, three, "open", partitions=[0, 2])

    def listed(*filters):
        return {row["TransactionalId"]: row for row in table(java("list", *filters))}

    assert listed()[transactional_id]["TransactionState"] == "Ongoing"
    assert transactional_id not in listed("--duration-filter", "3600000")
    assert listed("--transactional-id-pattern", "nobody.*") == {}
    said = java("list", "--transactional-id-pattern", "*", code=1)
    assert "INVALID_REGULAR_EXPRESSION" in said

    row = described(java, transactional_id)
    found = (row["TransactionState"], row["ProducerEpoch"], row["TransactionTimeoutMs"])
    assert found == ("Ongoing", "0", "300000")
    assert abs(int(row["CurrentTransactionStartTimeMs"]) - started_ms) < 20_000
    assert sorted(row["TopicPartitions"].split(",")) == [f"{three}-0", f"{three}-2"]
    said = java("describe", "--transactional-id", "nobody", code=1)
    assert "transactionalId `nobody` failed because the ID could not be found" in said

    (state,) = producers(java, three, 0)
    assert abs(int(state.pop("LastTimestamp")) - started_ms) < 20_000
    assert state.pop("ProducerId") == row["ProducerId"]
    assert state.pop("CurrentTransactionStartOffset") == "0"
    assert set(state.values()) - {""} == {"0", "-1"}, state
    assert (state["ProducerEpoch"], state["LastSequence"]) == ("0", "0")
    assert state["LatestCoordinatorEpoch"] == "-1"
    assert producers(java, three, 1) == []
    assert table(java("find-hanging", "--topic", three, "--max-transaction-timeout", "0")) == []
    tool.abort(name=producer)


@pytest.mark.parametrize("tool", ["4.3"], indirect=True)
def test_force_terminate(java, tool, opened, three, name):
    transactional_id = name("id")
    producer = opened(transactional_id)
    tool.begin(name=producer)
    send(tool, producer, three, "open", partitions=[0])
    java("forceTerminateTransaction", "--transactionalId", transactional_id)
    row = described(java, transactional_id)
    assert (row["TransactionState"], row["ProducerEpoch"]) == ("Empty", "2")
    assert row["CurrentTransactionStartTimeMs"] == row["TransactionDurationMs"] == "None"
    assert row["TopicPartitions"] == ""
    assert read_until(tool, three, [2, 0, 0]) == [[]] * 3
    (state,) = producers(java, three, 0)
    assert (state["ProducerEpoch"], state["LastSequence"]) == ("1", "-1")
    assert int(state["LatestCoordinatorEpoch"]) >= 0
    assert state["CurrentTransactionStartOffset"] == "None"
    with pytest.raises(ToolError) as raised:
        tool.commit(name=producer)
    assert raised.value.name == "ProducerFencedException"


@pytest.mark.parametrize("tool", ["4.3"], indirect=True)
def test_hanging(java, tool, broker, three, name):
    """Data of a transaction of which no coordinator knows: found, and aborted by hand."""
    transactional_id = name("id")
    with raw.Connection(broker.port) as connection:
        error, producer_id, epoch = connection.init_producer_id(transactional_id)
        assert error == 0
        batch = raw.batch(
            [b"hanging"],
            attributes=0x10,
            timestamp_ms=int(time.time() * 1000) - HOUR_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
        )

        def produced():
            options = {"partition": 1, "transactional_id": transactional_id}
            return connection.produce(three, batch, **options).error

        # A topic is answered for a moment before its leader is there.
        while (error := produced()) == "NOT_LEADER_OR_FOLLOWER":
            time.sleep(0.05)
        assert error == "NONE"
    (row,) = table(java("find-hanging", "--topic", three))
    assert (row["Topic"], row["Partition"]) == (three, "1")
    assert (row["ProducerId"], row["ProducerEpoch"]) == (str(producer_id), str(epoch))
    assert (row["CoordinatorEpoch"], row["StartOffset"]) == ("-1", "0")
    assert row["Duration(min)"] in ("60", "61")
    java("abort", "--topic", three, "--partition", "1", "--start-offset", "0")
    assert table(java("find-hanging", "--topic", three)) == []
    (state,) = producers(java, three, 1)
    assert state["CurrentTransactionStartOffset"] == "None"
    assert read_until(tool, three, [0, 2, 0]) == [[]] * 3

"""Both transports against a real server: facts, bounds, what is read, and what a refusal is.

That over kafka-python is imported late, and here: the library warns of itself."""

import queue
import warnings

import pytest

from quire.testing import SyncServer
from quire_locks import HistoryGoneError, Outcome
from quire_locks.confluent_transport import ConfluentTransport
from quire_locks.context import Draft

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka")


def over_confluent(at):
    return ConfluentTransport({"bootstrap.servers": at}, "t")


def over_kafka_python(at):
    with warnings.catch_warnings(action="ignore"):
        from quire_locks.kafka_python_transport import KafkaPythonTransport
    return KafkaPythonTransport({"bootstrap_servers": at}, "t")


@pytest.fixture(params=[over_confluent, over_kafka_python])
def transport(request):
    with SyncServer() as server:
        server.create_topic("t", partitions=2, config={"quire.locks": "optional"})
        made = request.param(server.bootstrap_servers)
        yield made
        made.close()


def send(transport, partition, position, value=b"v"):
    draft = Draft()
    draft.write_lock(b"x")
    draft.header("mine", b"1")
    answers = queue.Queue()
    headers = draft.headers(position, b"id" * 8)
    transport.send(partition, b"k", value, headers, answers.put)
    return answers.get(timeout=30)


def read_to(transport, partition, end):
    records = []
    for _ in range(200):
        fetched = transport.poll(10, 0.1)
        records += fetched.records
        if fetched.ends.get(partition, 0) >= end:
            return records
    raise AssertionError(f"{records} is all that was read")


def test_what_a_client_asks_for(transport):
    facts = transport.facts()
    assert (facts.name, facts.partition_count) == ("t", 2)
    assert (facts.locks, facts.locks_per_record_max) == ("optional", 64)
    assert transport.facts().topic_id == facts.topic_id
    assert transport.bounds(1) == (0, 0)
    answer = send(transport, 1, 0)
    assert (answer.outcome, answer.offset) == (Outcome.WRITTEN, 0)
    assert send(transport, 1, 0).outcome is Outcome.REFUSED
    assert send(transport, 1, 1).offset == 1
    assert send(transport, 0, 0).offset == 0, "the same name in another partition"
    assert send(transport, 0, 1, bytes(2 << 20)).outcome is Outcome.FAILED
    assert transport.bounds(1) == (0, 2)
    transport.assign({1: 0})
    first, second = read_to(transport, 1, 2)
    assert (first.partition, first.offset, first.key, first.value) == (1, 0, b"k", b"v")
    assert (first.txn_id, second.offset) == (b"id" * 8, 1)
    assert ("mine", b"1") in first.headers
    transport.seek(1, 1)
    assert [one.offset for one in read_to(transport, 1, 2)] == [1]


def test_what_is_not_there_any_more_is_told(transport):
    transport.assign({1: 5})
    with pytest.raises(HistoryGoneError):
        read_to(transport, 1, 6)

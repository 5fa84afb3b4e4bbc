"""Both transports against a real server: facts, bounds, what is read, and what a refusal is.

That over kafka-python is imported late, and here: the library warns of itself."""

import contextlib
import queue
import time
import warnings

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from quire.testing import SyncServer
from quire_locks import HistoryGoneError, LocksError, Outcome
from quire_locks.confluent_transport import ConfluentTransport, _answer
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
        made.server = server
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


def test_what_was_rolled_back_is_read_over_by_both(transport):
    """Who follows a partition over one library applies what one over the other does."""
    at = transport.server.bootstrap_servers
    producer = Producer({"bootstrap.servers": at, "transactional.id": "plain"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"never happened", partition=1)
    producer.flush(30)
    producer.abort_transaction(30)
    assert send(transport, 1, 2, b"real").outcome is Outcome.WRITTEN
    transport.assign({1: 0})
    assert [one.value for one in read_to(transport, 1, 3)] == [b"real"]


def test_what_no_resend_mends_is_the_same_for_both():
    """Else one client tells at once that it is not taken, and the other tries until its deadline
    and then says that it may be written."""
    with warnings.catch_warnings(action="ignore"):
        from kafka.errors import UnknownError, for_code

        from quire_locks.kafka_python_transport import _refused
    for code in range(1, 130):
        kind = for_code(code)
        if kind is not UnknownError:
            told = _refused(kind()).outcome
            assert told is _answer(KafkaError(code), -1).outcome, kind.__name__


def test_a_topic_that_is_made_anew_ends_who_follows_it(transport):
    """Its records are another log's: nothing of them may reach the database."""
    for n in range(2):
        assert send(transport, 1, n, b"old").outcome is Outcome.WRITTEN
    transport.assign({1: 0})
    assert [one.value for one in read_to(transport, 1, 2)] == [b"old"] * 2
    admin = AdminClient({"bootstrap.servers": transport.server.bootstrap_servers})
    admin.delete_topics(["t"])["t"].result(30)
    transport.server.create_topic("t", partitions=2, config={"quire.locks": "optional"})
    producer = Producer({"bootstrap.servers": transport.server.bootstrap_servers})
    for _ in range(4):
        producer.produce("t", b"another log's", partition=1)
    assert producer.flush(30) == 0
    found, until = [], time.monotonic() + 10
    with contextlib.suppress(LocksError):
        while not found and time.monotonic() < until:
            found += transport.poll(10, 0.1).records
    assert not found

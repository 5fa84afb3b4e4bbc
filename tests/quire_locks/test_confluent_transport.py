"""Both transports against a real server: facts, bounds, what is read, and what a refusal is.

That over kafka-python is imported late, and here: the library warns of itself."""

import queue
import socket
import sqlite3
import time
import warnings
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from quire.testing import SyncServer
from quire_locks import (
    Client,
    HistoryGoneError,
    LocksError,
    Outcome,
    SqliteStore,
    TransactionContext,
)
from quire_locks.confluent_transport import ConfluentTransport, _answer
from quire_locks.context import Draft
from tests.broker.conftest import produce_request
from wire.kafka.headers import encode_request
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

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
        made.address = server.bootstrap_servers
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


def wait_for_end(transport, partition, end):
    """The marker of a transaction comes a little later than the answer to its end."""
    until = time.monotonic() + 10
    while transport.bounds(partition)[1] < end and time.monotonic() < until:
        time.sleep(0.01)


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


TRANSPORTS = pytest.mark.parametrize("over", [over_confluent, over_kafka_python])


def admin(server):
    return AdminClient({"bootstrap.servers": server.bootstrap_servers})


def test_both_name_a_topic_by_the_same_id():
    """Else a database that followed it over one library is refused over the other, as that of a
    topic that was made anew."""
    with SyncServer() as server:
        server.create_topic("t", config={"quire.locks": "optional"})
        ids = set()
        for over in (over_confluent, over_kafka_python):
            with closing(over(server.bootstrap_servers)) as made:
                ids.add(made.facts().topic_id)
    assert len(ids) == 1


def test_a_header_that_is_no_utf_8_ends_nobody(transport):
    """The broker takes such a name, as Kafka's does, from anybody who may write: whoever applies
    the partition could go no further, now or after a restart."""
    record = Record(0, 0, None, b"theirs", [("\udcff", b"1"), ("quire.lock.append", b"y")])
    data = build_batch([record], base_timestamp=1_700_000_000_000)
    address = transport.address.split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=30) as sent:
        sent.sendall(encode_request(produce_request(("t", 1, data)), 9, 1, "raw"))
        assert sent.recv(4)
    assert send(transport, 1, 1).outcome is Outcome.WRITTEN
    transport.assign({1: 0})
    if not isinstance(transport, ConfluentTransport):
        # The library cannot be brought to read the record: that is told, with its place.
        with pytest.raises(LocksError, match="t-1 from 0 on"):
            read_to(transport, 1, 2)
        return
    assert [one.value for one in read_to(transport, 1, 2)] == [b"theirs", b"v"]


@TRANSPORTS
def test_a_topic_that_is_not_there_is_an_error_of_the_library(over):
    with (
        SyncServer() as server,
        closing(over(server.bootstrap_servers)) as made,
        pytest.raises(LocksError, match=r"topic|Unknown"),
    ):
        made.facts()


@TRANSPORTS
def test_a_topic_that_was_deleted_is_not_made_anew_by_who_writes(over):
    """It would have no locks, and its program would go on."""
    with SyncServer() as server:
        server.create_topic("t", config={"quire.locks": "required"})
        asked, outcomes = admin(server), []
        with closing(over(server.bootstrap_servers)) as made:
            assert send(made, 0, 0).outcome is Outcome.WRITTEN
            asked.delete_topics(["t"])["t"].result(30)
            for _ in range(2):
                outcomes.append(send(made, 0, 1).outcome)
                time.sleep(1)
            topics = asked.list_topics(timeout=30).topics
    assert "t" not in topics
    assert Outcome.WRITTEN not in outcomes


@TRANSPORTS
def test_a_topic_that_is_made_anew_while_a_program_runs_is_another_log(tmp_path, over):
    """The new one is longer than what was applied of the old."""

    class Write(TransactionContext):
        def execute(self, draft, db):
            draft.write_lock(b"x")
            draft.value = b"mine"
            return True

    def apply(db, record):
        db.execute("INSERT INTO seen VALUES (?)", (record.value,))

    db = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    db.execute("CREATE TABLE seen (value BLOB)")
    settings = {"quire.locks": "optional"}
    with SyncServer() as server:
        server.create_topic("t", config=settings)
        made = over(server.bootstrap_servers)
        with Client(made, SqliteStore(tmp_path / "a.db"), apply) as client:
            client.submit(Write()).result(30)
            asked = admin(server)
            asked.delete_topics(["t"])["t"].result(30)
            asked.create_topics([NewTopic("t", 1, config=settings)])["t"].result(30)
            with closing(over_confluent(server.bootstrap_servers)) as other:
                for position in range(4):
                    assert send(other, 0, position, b"theirs").outcome is Outcome.WRITTEN
            with pytest.raises(LocksError):
                client.submit(Write(), deadline_seconds=10).result(30)
    assert db.execute("SELECT * FROM seen").fetchall() == [(b"mine",)]


def values_over(over, address, end):
    with closing(over(address)) as made:
        made.assign({0: 0})
        return [one.value for one in read_to(made, 0, end)]


def test_both_apply_the_same_records():
    """Of a topic with optional locks, which takes transactions of those who use none: what was
    aborted is applied by all programs or by none, or their databases are not the same."""
    with SyncServer() as server:
        server.create_topic("t", config={"quire.locks": "optional"})
        at = server.bootstrap_servers
        theirs = Producer({"bootstrap.servers": at, "transactional.id": "theirs"})
        theirs.init_transactions(30)
        theirs.begin_transaction()
        theirs.produce("t", b"aborted", partition=0)
        assert theirs.flush(30) == 0
        theirs.abort_transaction(30)
        with closing(over_confluent(at)) as made:
            wait_for_end(made, 0, 2)
            assert send(made, 0, 2).offset == 2
        assert values_over(over_confluent, at, 3) == values_over(over_kafka_python, at, 3)


def test_each_record_is_in_a_batch_of_its_own(transport):
    """A batch is refused whole: of a burst, half of which is to blame, the others are written."""
    answers = queue.Queue()
    for n in range(40):
        draft = Draft()
        draft.write_lock(b"%d" % (n // 2))
        transport.send(1, None, b"v", draft.headers(0, b"%d" % n), answers.put)
    outcomes = [answers.get(timeout=30).outcome for _ in range(40)]
    assert [outcomes.count(one) for one in (Outcome.WRITTEN, Outcome.REFUSED)] == [20, 20]


def test_what_ends_with_a_marker_is_read_to_its_end(transport):
    """Else who was refused would wait for the marker's offset for ever."""
    theirs = Producer({"bootstrap.servers": transport.address, "transactional.id": "theirs"})
    theirs.init_transactions(30)
    theirs.begin_transaction()
    theirs.produce("t", b"v", partition=1)
    theirs.commit_transaction(30)
    transport.assign({1: 0})
    assert [one.value for one in read_to(transport, 1, 2)] == [b"v"]


def test_what_was_rolled_back_is_read_over_by_both(transport):
    """Who follows a partition over one library applies what one over the other does."""
    at = transport.server.bootstrap_servers
    producer = Producer({"bootstrap.servers": at, "transactional.id": "plain"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"never happened", partition=1)
    producer.flush(30)
    producer.abort_transaction(30)
    wait_for_end(transport, 1, 2)
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

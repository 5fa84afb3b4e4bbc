"""quire_locks with its data in a real PostgreSQL: the store by itself, and two programs that share
one database while that is killed."""

import contextlib
import threading

import psycopg
import pytest
from confluent_kafka.admin import NewTopic
from harness.postgres import Postgres

from quire_locks import Client, LocksError, LogRecord, OtherLogError, TransactionContext
from quire_locks.confluent_transport import ConfluentTransport
from quire_locks.postgres_store import PostgresStore

pytestmark = pytest.mark.timeout(180)

RECORD = LogRecord(0, 4, None, b"v", ())


@pytest.fixture(scope="module")
def postgres():
    made = Postgres().start()
    yield made
    made.discard()


@pytest.fixture
def conninfo(postgres, request):
    """Of a database of the test's own."""
    database = f"d{abs(hash(request.node.name))}"
    with psycopg.connect(postgres.conninfo, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {database}")
    return postgres.conninfo.replace("dbname=postgres", f"dbname={database}")


@pytest.fixture
def store(conninfo):
    made = PostgresStore(conninfo)
    made.open("t", "id-1", [0, 1])
    with psycopg.connect(conninfo) as db:
        db.execute("CREATE TABLE kept (value bytea)")
    yield made
    made.close()


def keep(db, record):
    db.execute("INSERT INTO kept VALUES (%s)", (record.value,))


def count(db):
    return db.execute("SELECT count(*) FROM kept").fetchone()[0]


def test_position_and_data_move_together(store):
    assert store.position(0) == 0
    assert store.apply(0, 0, 5, [RECORD], keep)
    assert not store.apply(0, 0, 5, [RECORD], keep), "somebody was quicker"
    assert (store.position(0), store.position(1)) == (5, 0)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (5, 1)


def test_a_snapshot_stands_still_and_is_not_written_to(store):
    with store.snapshot(0) as (db, position):
        store.apply(0, 0, 6, [RECORD], keep)
        assert (position, count(db)) == (0, 0)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            keep(db, RECORD)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (6, 1)


def test_who_commits_himself_is_told(store):
    def commits(db, record):
        keep(db, record)
        db.execute("COMMIT")

    with pytest.raises(LocksError, match="must not commit"):
        store.apply(0, 0, 5, [RECORD], commits)


def test_an_error_rolls_all_of_it_back(store):
    def fails(db, record):
        keep(db, record)
        raise KeyError

    with pytest.raises(KeyError):
        store.apply(0, 0, 5, [RECORD], fails)
    assert store.position(0) == 0
    assert store.apply(0, 0, 5, [RECORD], keep)
    with store.snapshot(0) as (db, _):
        assert count(db) == 1


def test_another_topic_of_that_name_is_refused(store, conninfo):
    again = PostgresStore(conninfo)
    with pytest.raises(OtherLogError):
        again.open("t", "id-2", [0])
    again.open("t", "id-1", [0])
    with pytest.raises(OtherLogError):
        again.position(9)
    again.close()


def test_of_two_that_apply_at_once_one_does(store, conninfo):
    """The second waits for the first's row, and then finds the position changed."""
    second = PostgresStore(conninfo)
    second.open("t", "id-1", [0])
    is_inside, results = threading.Event(), []

    def slow(db, record):
        keep(db, record)
        other.start()
        is_inside.set()
        other.join(0.3)
        assert other.is_alive(), "it did not wait"

    def quick():
        is_inside.wait(30)
        results.append(second.apply(0, 0, 5, [RECORD], keep))

    other = threading.Thread(target=quick)
    assert store.apply(0, 0, 5, [RECORD], slow)
    other.join(30)
    assert results == [False]
    with store.snapshot(0) as (db, _):
        assert count(db) == 1
    second.close()


def apply(db, record):
    """Fails if it is applied twice."""
    db.execute("INSERT INTO counter VALUES (%s)", (int(record.value),))


class Next(TransactionContext):
    """One more than the largest: right only if nobody was quicker."""

    def execute(self, draft, db):
        (largest,) = db.execute("SELECT coalesce(max(value), 0) FROM counter").fetchone()
        draft.write_lock(b"counter")
        draft.value = b"%d" % (largest + 1)
        return True


def test_scenario_22_two_programs_on_one_database_that_is_killed(
    server, admin, name, conninfo, postgres
):
    topic = name("locks")
    admin.create_topics([NewTopic(topic, 1, config={"quire.locks": "required"})])[topic].result(30)
    with psycopg.connect(conninfo) as db:
        db.execute("CREATE TABLE counter (value integer PRIMARY KEY)")
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                Client(
                    ConfluentTransport({"bootstrap.servers": server.bootstrap}, topic),
                    PostgresStore(conninfo),
                    apply,
                )
            )
            for _ in range(2)
        ]
        _count_together(clients, postgres)
    with psycopg.connect(conninfo) as db:
        values = db.execute("SELECT value FROM counter ORDER BY value").fetchall()
    assert values == [(n + 1,) for n in range(40)]


def _count_together(clients, postgres):
    futures = [clients[n % 2].submit(Next(), deadline_seconds=120) for n in range(40)]
    futures[0].result(60)
    postgres.stop()
    postgres.start()
    done = [future.result(120) for future in futures]
    assert len({one.offset for one in done}) == 40
    for client in clients:
        client.wait_applied(0)

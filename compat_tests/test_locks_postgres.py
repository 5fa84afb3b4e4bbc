"""quire_locks on a real PostgreSQL: one position for data and place, snapshots that stand still,
crashes of the database, and two programs that share it."""

import asyncio
import contextlib
import threading
import time

import psycopg
import pytest
from confluent_kafka.admin import NewTopic

from quire_locks import (
    AsyncClient,
    Client,
    LocksError,
    LogRecord,
    OtherLogError,
    TransactionContext,
)
from quire_locks.confluent_transport import ConfluentTransport
from quire_locks.postgres_store import PostgresStore

pytestmark = pytest.mark.timeout(120)

RECORD = LogRecord(0, 4, None, b"7", ())


@pytest.fixture
def counter(postgres):
    """An empty table of what was counted."""
    with psycopg.connect(postgres.conninfo) as db:
        db.execute("DROP TABLE IF EXISTS counter")
        db.execute("CREATE TABLE counter (record BIGINT PRIMARY KEY, value BIGINT)")
    return postgres.conninfo


@pytest.fixture
def store(counter, name):
    made = PostgresStore(counter)
    made.open(name(), "id-1", [0, 1])
    yield made
    made.close()


def keep(db, record):
    """Fails if it is applied twice."""
    db.execute("INSERT INTO counter VALUES (%s, %s)", (record.offset, int(record.value)))


def count(db):
    return db.execute("SELECT count(*) FROM counter").fetchone()[0]


def test_position_and_data_move_together(store):
    assert store.apply(0, 0, 5, [RECORD], keep)
    assert not store.apply(0, 0, 5, [RECORD], keep), "somebody was quicker"
    assert (store.position(0), store.position(1)) == (5, 0)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (5, 1)


def test_a_snapshot_stands_still_and_is_not_written_to(store):
    with store.snapshot(0) as (db, position):
        assert store.apply(0, 0, 5, [RECORD], keep)
        assert (position, count(db)) == (0, 0)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (5, 1)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            db.execute("DELETE FROM counter")
    assert store.position(0) == 5


def goes_on_after_an_error(db, record):
    keep(db, record)
    with contextlib.suppress(psycopg.errors.UniqueViolation):
        keep(db, record)
    # What PostgreSQL would answer a COMMIT now is ROLLBACK, and no error.


@pytest.mark.parametrize(
    "function",
    [lambda db, _: db.execute("COMMIT"), goes_on_after_an_error],
    ids=["commits", "goes on after an error"],
)
def test_who_ends_the_transaction_himself_is_told(store, function):
    with pytest.raises(LocksError, match="must not commit"):
        store.apply(0, 0, 5, [RECORD], function)


def test_an_error_rolls_all_of_it_back(store):
    def fails(db, record):
        keep(db, record)
        raise KeyError

    with pytest.raises(KeyError):
        store.apply(0, 0, 5, [RECORD], fails)
    assert store.position(0) == 0
    assert store.apply(0, 0, 5, [RECORD], keep)


def test_of_two_who_apply_at_once_one_does(store):
    barrier = threading.Barrier(2)
    done = []

    def one():
        barrier.wait(30)
        done.append(store.apply(0, 0, 5, [RECORD], keep))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [False, True]
    assert store.position(0) == 5


def test_another_topic_of_that_name_is_refused(store, counter):
    again = PostgresStore(counter)
    with pytest.raises(OtherLogError, match="id-2"):
        again.open(store._topic, "id-2", [0])
    with pytest.raises(OtherLogError):
        store.position(9)
    again.close()


def test_an_address_without_a_server_is_told():
    store = PostgresStore("host=127.0.0.1 port=1 dbname=none", reconnect_seconds=0.0)
    with pytest.raises(psycopg.OperationalError):
        store.position(0)


def test_a_crash_in_the_middle_of_a_transaction_applies_once(postgres, store):
    """The connection is gone with the transaction; the store connects again and does it anew."""
    calls = []

    def crashes(db, record):
        keep(db, record)
        calls.append(record)
        if len(calls) == 1:
            postgres.kill()
            postgres.start()

    assert store.apply(0, 0, 5, [RECORD], crashes)
    assert len(calls) == 2
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (5, 1)


class Next(TransactionContext):
    """One more than the largest: right only if nobody was quicker."""

    def execute(self, draft, db):
        draft.write_lock(b"counter")
        (largest,) = db.execute("SELECT coalesce(max(value), 0) FROM counter").fetchone()
        draft.value = b"%d" % (largest + 1)
        return True


@pytest.fixture
def locked_topic(admin, name):
    made = name("locks")
    admin.create_topics([NewTopic(made, 1, config={"quire.locks": "required"})])[made].result(30)
    return made


def test_scenario_22_two_programs_on_one_database_that_crashes(
    server, postgres, counter, locked_topic
):
    counted = []

    def program():
        transport = ConfluentTransport({"bootstrap.servers": server.bootstrap}, locked_topic)
        with Client(transport, PostgresStore(counter), keep) as client:
            for _ in range(20):
                counted.append(submit_until_it_is_over(client))
            both.wait(60)
            client.wait_applied(0)

    both = threading.Barrier(2)
    programs = [threading.Thread(target=program) for _ in range(2)]
    for one in programs:
        one.start()
    while len(counted) < 10 and any(one.is_alive() for one in programs):
        time.sleep(0.01)
    postgres.kill()
    postgres.start()
    for one in programs:
        one.join(90)
    assert len(counted) == 40
    with psycopg.connect(counter) as db:
        rows = db.execute("SELECT value FROM counter ORDER BY record").fetchall()
    assert rows == [(n + 1,) for n in range(40)]


def submit_until_it_is_over(client):
    """What `execute` reads while the database crashes is an error of the caller's: nothing was
    sent, so he begins anew."""
    while True:
        try:
            return client.submit(Next()).result(60)
        except psycopg.OperationalError:
            continue


def test_two_programs_of_asyncio_count_together(server, counter, locked_topic):
    def client():
        transport = ConfluentTransport({"bootstrap.servers": server.bootstrap}, locked_topic)
        return AsyncClient(transport, PostgresStore(counter), keep)

    async def main():
        async with client() as one, client() as two:
            done = await asyncio.gather(*[who.submit(Next()) for who in (one, two) * 10])
            await one.wait_applied(0)
            return done

    done = asyncio.run(main())
    assert sorted(one.offset for one in done) == list(range(20))
    assert max(one.attempts for one in done) > 1, "they were in each other's way"
    with psycopg.connect(counter) as db:
        rows = db.execute("SELECT value FROM counter ORDER BY record").fetchall()
    assert rows == [(n + 1,) for n in range(20)]

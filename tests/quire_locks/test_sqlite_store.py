"""SqliteStore: one position for data and place, snapshots that stand still, no others commit."""

import sqlite3
import threading

import pytest

from quire_locks import LocksError, LogRecord, OtherLogError, SqliteStore

RECORD = LogRecord(0, 4, None, b"v", ())


@pytest.fixture
def store(tmp_path):
    made = SqliteStore(tmp_path / "a.db")
    made.open("t", "id-1", [0, 1])
    yield made
    made.close()


def keep(db, record):
    db.execute("CREATE TABLE IF NOT EXISTS kept (value BLOB)")
    db.execute("INSERT INTO kept VALUES (?)", (record.value,))


def count(db):
    return db.execute("SELECT count(*) FROM kept").fetchone()[0]


def test_position_and_data_move_together(store):
    assert store.position(0) == 0
    assert store.apply(0, 0, 5, [RECORD], keep)
    assert not store.apply(0, 0, 5, [RECORD], keep), "somebody was quicker"
    assert (store.position(0), store.position(1)) == (5, 0)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (5, 1)


def test_a_snapshot_stands_still(store):
    store.apply(0, 0, 5, [RECORD], keep)
    with store.snapshot(0) as (db, position):
        store.apply(0, 5, 6, [RECORD], keep)
        assert (position, count(db)) == (5, 1)
    with store.snapshot(0) as (db, position):
        assert (position, count(db)) == (6, 2)


def test_a_snapshot_is_not_written_to(store):
    store.apply(0, 0, 5, [RECORD], keep)
    with store.snapshot(0) as (db, _), pytest.raises(sqlite3.OperationalError):
        db.execute("DELETE FROM kept")


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
    assert store.apply(0, 0, 5, [], keep)


def test_another_topic_of_that_name_is_refused(store, tmp_path):
    again = SqliteStore(tmp_path / "a.db")
    again.open("t", "id-1", [0])
    with pytest.raises(OtherLogError):
        again.open("t", "id-2", [0])
    with pytest.raises(OtherLogError):
        again.position(9)
    again.close()


def test_who_commits_himself_loses_no_record(store):
    """`with db:` commits at its end, and with it the position of records that were not applied:
    after the next start nobody would miss them."""

    def commits(db, record):
        with db:
            keep(db, record)

    second = LogRecord(0, 5, None, b"second", ())
    with pytest.raises((LocksError, sqlite3.DatabaseError)):
        store.apply(0, 0, 6, [RECORD, second], commits)
    assert store.position(0) == 0


def test_a_database_that_somebody_writes_to_is_waited_for_at_the_start(tmp_path):
    """It is not in WAL mode yet."""
    other = sqlite3.connect(tmp_path / "b.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (value BLOB)")
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, other.execute, ("COMMIT",))
    timer.start()
    made = SqliteStore(tmp_path / "b.db")
    try:
        made.open("t", "id-1", [0])
        assert made.position(0) == 0
    finally:
        timer.join()
        made.close()
        other.close()


def test_one_store_is_not_for_two_topics(store):
    """As of a program that gives it to two clients: each would move the other's position."""
    with pytest.raises(LocksError):
        store.open("u", "id-9", [0])
    assert store.apply(0, 0, 5, [RECORD], keep)
    assert store.position(0) == 5

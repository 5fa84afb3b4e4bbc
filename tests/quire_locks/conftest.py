"""A log in memory with the broker's own table of locks, a transport to it that can lose answers,
and a bank: accounts that must not fall below zero."""

import sqlite3
import struct
import threading

import pytest

from broker.log.locks.lock_headers_core import BatchLocks, RecordLocks, lock_of
from broker.log.locks.lock_table_core import LockTable
from quire_locks import Answer, LogRecord, Outcome, TopicFacts, TransactionContext
from quire_locks.context import APPEND, POSITION, READ, WRITE
from quire_locks.transport import Fetched

ACCOUNTS = 8
START = 100
_MOVE = struct.Struct(">iii")


class MemoryLog:
    """One partition."""

    def __init__(self, topic_id="one"):
        self.facts = TopicFacts("bank", topic_id, 1, "optional", 64)
        self.lock = threading.Condition()
        self.records = []
        self.first = 0
        self.table = LockTable(30_000, -1)

    def append(self, partition, key, value, headers):
        with self.lock:
            offset = len(self.records)
            position = int(dict(headers)[POSITION])
            tested = tuple(lock_of(lock) for name, lock in headers if name in (READ, WRITE))
            marked = tuple(lock_of(lock) for name, lock in headers if name in (WRITE, APPEND))
            batch = BatchLocks((RecordLocks(0, position, tested, marked),), 0)
            if self.table.conflicts(batch, offset):
                return Answer(Outcome.REFUSED)
            self.table.mark_batch(batch, offset)
            self.records.append(LogRecord(partition, offset, key, value, tuple(headers)))
            self.lock.notify_all()
            return Answer(Outcome.WRITTEN, offset)


class MemoryTransport:
    """`on_send(times)` may say that the answer of a send is lost, or is another."""

    def __init__(self, log, on_send=lambda times: None):
        self.log = log
        self.on_send = on_send
        self.sends = 0
        self.cursor = 0

    def facts(self):
        return self.log.facts

    def topic_id(self):
        return self.log.facts.topic_id

    def bounds(self, partition):
        with self.log.lock:
            return self.log.first, len(self.log.records)

    def assign(self, positions):
        self.cursor = positions[0]

    def seek(self, partition, offset):
        self.cursor = offset

    def poll(self, records_max, timeout_s):
        log, fetched = self.log, Fetched()
        with log.lock:
            if self.cursor >= len(log.records):
                log.lock.wait(timeout_s)
            for record in log.records[self.cursor : self.cursor + records_max]:
                fetched.add(record)
            self.cursor += len(fetched.records)
        return fetched

    def send(self, partition, key, value, headers, done):
        self.sends += 1
        lost = self.on_send(self.sends)
        if lost == "before":
            done(Answer(Outcome.UNKNOWN))
            return
        answer = self.log.append(partition, key, value, headers)
        done(Answer(Outcome.UNKNOWN) if lost == "after" else answer)

    def close(self):
        pass


class Transfer(TransactionContext):
    """READs nothing else than the two accounts that it WRITEs."""

    def __init__(self, source, target, amount):
        self.source, self.target, self.amount = source, target, amount
        self.conflicts = 0
        self.told = []

    def execute(self, draft, db):
        balance = balances(db).get(self.source, START)
        if balance < self.amount:
            return False
        for account in (self.source, self.target):
            draft.write_lock(b"acct/%d" % account)
        draft.value = _MOVE.pack(self.source, self.target, self.amount)
        return True

    def on_conflict(self, attempts):
        self.conflicts += 1

    def on_completion(self, completion):
        self.told.append(completion)


def make_tables(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)")
        db.execute("CREATE TABLE IF NOT EXISTS done (offset INTEGER PRIMARY KEY, txn_id BLOB)")
        for account in range(ACCOUNTS):
            db.execute("INSERT OR IGNORE INTO account VALUES (?, ?)", (account, START))
    db.close()


def apply(db, record):
    """Fails if it is applied twice."""
    source, target, amount = _MOVE.unpack(record.value)
    db.execute("INSERT INTO done VALUES (?, ?)", (record.offset, record.txn_id))
    for account, delta in ((source, -amount), (target, amount)):
        db.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (delta, account))


def balances(db):
    return dict(db.execute("SELECT id, balance FROM account"))


@pytest.fixture
def bank(tmp_path):
    """bank(name) -> the path of a database with the bank's tables."""

    def make(name="bank"):
        path = tmp_path / f"{name}.db"
        make_tables(path)
        return path

    return make


def look(path, query="SELECT id, balance FROM account"):
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()

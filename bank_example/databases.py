"""Where tellers keep their accounts: each in an SQLite file of his own, or several in a PostgreSQL
that they share. `mark` is what stands for a value in a query."""

import sqlite3

import psycopg

from bank_example.bank import ACCOUNTS, START
from quire_locks import SqliteStore
from quire_locks.postgres_store import PostgresStore

ACCOUNT_TABLE = "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)"
#: Any number: two who begin at once make the table one after the other.
TABLE_LOCK = 7_201


class SqliteDatabase:
    mark = "?"

    def __init__(self, path):
        self.name = str(path)

    def make_tables(self):
        """In one transaction, so that nobody finds half of the accounts."""
        db = self._connect()
        db.execute("BEGIN IMMEDIATE")
        db.execute(ACCOUNT_TABLE)
        for account in range(ACCOUNTS):
            db.execute("INSERT OR IGNORE INTO account VALUES (?, ?)", (account, START))
        db.execute("COMMIT")
        db.close()

    def store(self):
        return SqliteStore(self.name)

    def look(self):
        """(position, balances) of one moment; None before a teller has begun, who may have been
        killed before he had a position."""
        db = self._connect()
        try:
            db.execute("BEGIN")
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            return _look(db) if {"account", "quire_position"} <= names else None
        finally:
            db.close()

    def _connect(self):
        return sqlite3.connect(self.name, isolation_level=None, timeout=30)


class PostgresDatabase:
    mark = "%s"
    name = "PostgreSQL"

    def __init__(self, conninfo):
        self._conninfo = conninfo

    def make_tables(self):
        """As of SqliteDatabase."""
        insert = "INSERT INTO account VALUES (%s, %s) ON CONFLICT DO NOTHING"
        with psycopg.connect(self._conninfo) as db:
            db.execute("SELECT pg_advisory_xact_lock(%s)", (TABLE_LOCK,))
            db.execute(ACCOUNT_TABLE)
            db.cursor().executemany(insert, [(account, START) for account in range(ACCOUNTS)])

    def store(self):
        return PostgresStore(self._conninfo)

    def look(self):
        """As of SqliteDatabase."""
        with psycopg.connect(self._conninfo) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            found = db.execute("SELECT to_regclass('account'), to_regclass('quire_position')")
            return _look(db) if all(found.fetchone()) else None


def _look(db):
    row = db.execute("SELECT next_offset FROM quire_position").fetchone()
    return (row[0] if row else 0), dict(db.execute("SELECT id, balance FROM account").fetchall())

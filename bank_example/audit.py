"""Judges the tellers' databases by the log: each is what the records up to its position make; no
account is ever below 0; no transfer is there twice; and no record should have been refused."""

import subprocess
import sys
from pathlib import Path

import psycopg

from bank_example.bank import ACCOUNTS, START, TOPIC, deltas
from bank_example.databases import PostgresDatabase, SqliteDatabase
from quire_locks.confluent_transport import ConfluentTransport

POLL_SECONDS = 1.0


class NotNowError(Exception):
    """The log could not be read, as while the server starts."""


def read_log(listen, end):
    transport = ConfluentTransport({"bootstrap.servers": listen}, TOPIC)
    try:
        transport.assign({0: 0})
        records, reached = [], 0
        while reached < end:
            fetched = transport.poll(500, POLL_SECONDS)
            records += fetched.records
            reached = max(reached, fetched.ends.get(0, 0))
        return [record for record in records if record.offset < end]
    finally:
        transport.close()


def audit(folder, listen, postgres=None):
    """What is wrong, in words; and how many transfers there were. `postgres`: the conninfo of the
    tellers who share one. NotNowError."""
    databases = [SqliteDatabase(path) for path in sorted(folder.glob("teller-*.db"))]
    databases += [PostgresDatabase(postgres)] if postgres else []
    try:
        found = {one.name: one.look() for one in databases}
    except psycopg.OperationalError as error:
        raise NotNowError(str(error)) from error
    seen = {name: one for name, one in found.items() if one is not None}
    records = read_log(listen, max((position for position, _ in seen.values()), default=0))
    wrong = [f"{name}: {text}" for name, one in seen.items() for text in _replayed(records, *one)]
    if len({record.txn_id for record in records}) != len(records):
        wrong.append("a transfer is in the log twice")
    quire = str(Path(sys.executable).parent / "quire")
    command = [quire, "locks", "validate", TOPIC, "--bootstrap-server", listen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout:
        raise NotNowError(done.stderr.strip())
    if done.returncode:
        wrong.append(done.stdout + done.stderr)
    return wrong, len(records)


def _replayed(records, position, balances):
    made = dict.fromkeys(range(ACCOUNTS), START)
    for record in records:
        if record.offset >= position:
            break
        for account, delta in deltas(record):
            made[account] += delta
        if min(made.values()) < 0:
            yield f"an account is below 0 at {record.offset}"
    if made != balances:
        yield f"its balances at {position} are not what the log makes"
    if sum(balances.values()) != ACCOUNTS * START:
        yield "its sum is not what was there at first"

"""Judges the tellers' databases by the log: each is what the records up to its position make; no
account is ever below 0; no transfer is there twice; and no record should have been refused."""

import sqlite3
import subprocess
import sys
from pathlib import Path

from bank_example.bank import ACCOUNTS, START, TOPIC, deltas
from quire_locks.confluent_transport import ConfluentTransport

POLL_SECONDS = 1.0


class NotNowError(Exception):
    """The log could not be read, as while the server starts."""


def look(database):
    """(position, balances) of one moment; None of a teller that has not begun, or was killed before
    it had a position."""
    db = sqlite3.connect(database, isolation_level=None, timeout=30)
    try:
        db.execute("BEGIN")
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not {"account", "quire_position"} <= names:
            return None
        ((position,),) = db.execute("SELECT next_offset FROM quire_position").fetchall() or [(0,)]
        return position, dict(db.execute("SELECT id, balance FROM account"))
    finally:
        db.close()


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


def audit(folder, listen):
    """What is wrong, in words; and how many transfers there were. NotNowError."""
    found = {path.name: look(path) for path in sorted(folder.glob("teller-*.db"))}
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

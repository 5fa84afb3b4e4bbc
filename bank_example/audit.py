"""Judges the tellers' databases by the log: each is what the records up to its position make; no
account is ever below 0; no transfer is there twice; and no record should have been refused."""

import sqlite3
import subprocess
import sys
from pathlib import Path

from bank_example.bank import ACCOUNTS, START, TOPIC, deltas
from quire_locks.confluent_transport import ConfluentTransport

POLL_SECONDS = 1.0


def look(database):
    """(position, balances) of one moment."""
    db = sqlite3.connect(database, isolation_level=None, timeout=30)
    db.execute("BEGIN")
    ((position,),) = db.execute("SELECT next_offset FROM quire_position").fetchall()
    balances = dict(db.execute("SELECT id, balance FROM account"))
    db.close()
    return position, balances


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
    """What is wrong, in words; and how many transfers there were."""
    seen = {path.name: look(path) for path in sorted(folder.glob("teller-*.db"))}
    records = read_log(listen, max(position for position, _ in seen.values()))
    wrong = [f"{name}: {text}" for name, one in seen.items() for text in _replayed(records, *one)]
    if len({record.txn_id for record in records}) != len(records):
        wrong.append("a transfer is in the log twice")
    quire = str(Path(sys.executable).parent / "quire")
    command = [quire, "locks", "validate", TOPIC, "--bootstrap-server", listen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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

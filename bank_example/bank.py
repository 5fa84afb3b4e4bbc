"""What the bank does: transfers that no account's balance forbids, and how they are applied."""

import random
import struct

from quire_locks import TransactionContext

TOPIC = "bank"
ACCOUNTS = 20
START = 100
_TRANSFER = struct.Struct(">iii")


def make_tables(db):
    """In one transaction, so that nobody finds half of the accounts."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)")
    for account in range(ACCOUNTS):
        db.execute("INSERT OR IGNORE INTO account VALUES (?, ?)", (account, START))
    db.execute("COMMIT")


class Transfer(TransactionContext):
    def __init__(self):
        self.source, self.target = random.sample(range(ACCOUNTS), 2)
        self.amount = random.randint(1, START)

    def execute(self, draft, db):
        query = "SELECT balance FROM account WHERE id = ?"
        (balance,) = db.execute(query, (self.source,)).fetchone()
        if balance < self.amount:
            return False
        # Who gets money does not depend on how much he has.
        draft.write_lock(b"account/%d" % self.source)
        draft.append_lock(b"account/%d" % self.target)
        draft.value = _TRANSFER.pack(self.source, self.target, self.amount)
        return True


def deltas(record):
    """((account, what is added), …) of a record."""
    source, target, amount = _TRANSFER.unpack(record.value)
    return (source, -amount), (target, amount)


def apply(db, record):
    for account, delta in deltas(record):
        db.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (delta, account))

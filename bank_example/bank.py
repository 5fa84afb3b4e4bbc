"""What the bank does: transfers that no account's balance forbids, and how they are applied."""

import random
import struct

from quire_locks import TransactionContext

TOPIC = "bank"
ACCOUNTS = 20
START = 100
_TRANSFER = struct.Struct(">iii")


class Transfer(TransactionContext):
    def __init__(self, mark):
        """`mark`: as of the database."""
        self.query = f"SELECT balance FROM account WHERE id = {mark}"
        self.source, self.target = random.sample(range(ACCOUNTS), 2)
        self.amount = random.randint(1, START)

    def execute(self, draft, db):
        (balance,) = db.execute(self.query, (self.source,)).fetchone()
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


def applier(mark):
    """The function that applies a record to a database with that mark."""
    update = f"UPDATE account SET balance = balance + {mark} WHERE id = {mark}"

    def apply(db, record):
        for account, delta in deltas(record):
            db.execute(update, (delta, account))

    return apply

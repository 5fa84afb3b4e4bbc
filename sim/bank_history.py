"""The books of a simulated bank: what its tellers were told, and what the log may say.

Accounts hold balances that may not fall below a limit. All is decided by optimistic locks: a move
of money READs the limit and WRITEs both accounts, a new limit READs all accounts and WRITEs the
limit, a deposit APPENDs to an account. Whoever applies the log in its order judges each record:
- *overdrawn*: a balance is below the limit, though its sender looked: he was let in wrongly;
- *made money*: the balances are not what was there and was deposited.
At the end, from one reading of all of it:
- *twice*: a transaction is in the log twice, or what a customer asked for once, whatever the
  transactions' ids;
- *unlocked*: between a record's position and its place there is one that wrote a lock which it
  tested; this needs no knowledge of how the broker keeps its table;
- *lost*: a transaction that a teller was told of is not there;
- *unwanted*: one that he was told is not there, is.
And by an idempotent teller:
- *own*: his batch was refused for a conflict, and is in the log from a try before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sim.history import Violation

ACCOUNTS = 5
START = 50
LIMIT = b"limit"


class Order(NamedTuple):
    """What a record says: money from one account to another, a deposit (no source), or a limit
    (neither)."""

    source: int
    target: int
    amount: int

    def to_bytes(self) -> bytes:
        return b"%d %d %d" % self

    @classmethod
    def of(cls, data: bytes) -> Order:
        return cls(*map(int, data.split()))

    @property
    def is_limit(self) -> bool:
        return self.target < 0

    @property
    def is_deposit(self) -> bool:
        return self.source < 0 <= self.target


class Entry(NamedTuple):
    """A record of the bank's partition."""

    offset: int
    #: What the customer's order is called; each is to be carried out once.
    purpose: bytes
    txn_id: bytes
    position: int
    order: Order
    tested: frozenset[bytes]
    marked: frozenset[bytes]


def account(number: int) -> bytes:
    return b"acct/%d" % number


@dataclass(slots=True)
class Ledger:
    """What one teller has applied: a toy database with its position."""

    position: int = 0
    limit: int = 0
    balances: list[int] = field(default_factory=lambda: [START] * ACCOUNTS)
    deposited: int = 0

    def allows(self, order: Order) -> bool:
        """Whether its sender may send it, as things stand."""
        if order.is_limit:
            return min(self.balances) >= order.amount
        return order.is_deposit or self.balances[order.source] - order.amount >= self.limit

    def apply(self, entry: Entry) -> None:
        """Violation."""
        order = entry.order
        if not self.allows(order):
            raise Violation(
                "overdrawn",
                f"{entry.offset}: {order} decided at {entry.position}; {self.balances} not below"
                f" {self.limit}",
            )
        if order.is_limit:
            self.limit = order.amount
        else:
            self.balances[order.target] += order.amount
            if order.is_deposit:
                self.deposited += order.amount
            else:
                self.balances[order.source] -= order.amount
        if sum(self.balances) != START * ACCOUNTS + self.deposited:
            raise Violation("made money", f"{entry.offset}: {self.balances}")


@dataclass(slots=True)
class BankHistory:
    committed: dict[bytes, int] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)

    def check(self, entries: list[Entry]) -> None:
        """All of the log. Violation."""
        ledger = Ledger()
        offsets: dict[bytes, int] = {}
        purposes: dict[bytes, int] = {}
        last_marked: dict[bytes, int] = {}
        for entry in entries:
            ledger.apply(entry)
            if entry.txn_id in offsets:
                raise Violation("twice", f"{entry} and at {offsets[entry.txn_id]}")
            if entry.purpose in purposes:
                raise Violation(
                    "twice", f"{entry}: asked for once, and at {purposes[entry.purpose]}"
                )
            offsets[entry.txn_id] = purposes[entry.purpose] = entry.offset
            for lock in sorted(entry.tested):
                if last_marked.get(lock, -1) >= entry.position:
                    raise Violation("unlocked", f"{entry}: {lock!r} at {last_marked[lock]}")
            last_marked.update(dict.fromkeys(entry.marked, entry.offset))
        for txn_id, offset in self.committed.items():
            if offsets.get(txn_id) != offset:
                found = offsets.get(txn_id)
                raise Violation("lost", f"{txn_id!r} was at {offset}, and is at {found}")
        for txn_id in self.given_up:
            if txn_id in offsets:
                raise Violation("unwanted", f"{txn_id!r} is at {offsets[txn_id]}")

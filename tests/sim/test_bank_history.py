"""The books of the simulated bank: each of their words is said when it has to be."""

import pytest

from sim.bank import entry_of, headers_of
from sim.bank_history import ACCOUNTS, START, BankHistory, Entry, Ledger, Order
from sim.history import Violation
from wire.kafka.records.record import Record


def entry(offset, order, *, position=None, txn_id=None, purpose=None):
    """As it is read from the log, of a sender who had applied all before it, unless it is said."""
    position = offset if position is None else position
    txn_id = b"t-%d" % offset if txn_id is None else txn_id
    headers = headers_of(order, position, txn_id)
    purpose = b"o-%d" % offset if purpose is None else purpose
    return entry_of(offset, Record(0, 0, purpose, order.to_bytes(), headers))


def kind(function, *arguments):
    with pytest.raises(Violation) as caught:
        function(*arguments)
    return caught.value.kind


FINE = [
    entry(0, Order(0, 1, 30)),
    entry(1, Order(-1, 0, 5)),
    entry(2, Order(-1, -1, 10)),
    entry(3, Order(2, 3, START - 10)),
]


def test_a_bank_in_order():
    bank = BankHistory(committed={b"t-0": 0, b"t-3": 3}, given_up={b"other"})
    bank.check(FINE)
    ledger = Ledger()
    for one in FINE:
        ledger.apply(one)
    assert sum(ledger.balances) == ACCOUNTS * START + 5
    assert ledger.limit == min(ledger.balances) == 10


def test_overdrawn():
    ledger = Ledger()
    ledger.apply(entry(0, Order(0, 1, START)))
    assert kind(ledger.apply, entry(1, Order(0, 1, 1))) == "overdrawn"
    assert kind(ledger.apply, entry(1, Order(-1, -1, 1))) == "overdrawn"


@pytest.mark.parametrize(
    ("order", "is_free"),
    [
        (Order(0, 2, 1), False),  # it WRITEs what was written
        (Order(-1, -1, 0), False),  # it READs all accounts
        (Order(2, 3, 1), True),
        (Order(-1, 0, 1), True),  # a deposit tests none
    ],
)
def test_unlocked(order, is_free):
    entries = [entry(0, Order(0, 1, 1)), entry(1, order, position=0)]
    if is_free:
        BankHistory().check(entries)
    else:
        assert kind(BankHistory().check, entries) == "unlocked"


def test_a_deposit_counts_for_those_who_look():
    entries = [entry(0, Order(-1, 0, 1)), entry(1, Order(0, 1, 1), position=0)]
    assert kind(BankHistory().check, entries) == "unlocked"


def test_twice_lost_and_unwanted():
    assert kind(BankHistory().check, [FINE[0], entry(1, Order(2, 3, 1), txn_id=b"t-0")]) == "twice"
    # Asked for once, and done under two ids.
    assert kind(BankHistory().check, [FINE[0], entry(1, Order(2, 3, 1), purpose=b"o-0")]) == "twice"
    assert kind(BankHistory(committed={b"t-9": 9}).check, FINE) == "lost"
    assert kind(BankHistory(committed={b"t-0": 1}).check, FINE) == "lost"
    assert kind(BankHistory(given_up={b"t-1"}).check, FINE) == "unwanted"


def test_what_an_entry_is():
    assert entry(4, Order(0, 1, 2), position=3) == Entry(
        4, b"o-4", b"t-4", 3, Order(0, 1, 2), frozenset({b"limit", b"acct/0", b"acct/1"}),
        frozenset({b"acct/0", b"acct/1"}),
    )  # fmt: skip

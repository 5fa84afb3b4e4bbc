"""What is judged of transactions: for each word a history that is refused, and one beside it that
passes."""

import pytest

from sim.history import Violation
from sim.transactions.decided import Decided, Marker
from sim.transactions.history import Fetched, TxnHistory

P0, P1 = ("txn", 0), ("txn", 1)


def made(*, ask=True, told=None, ack=True):
    """One transaction: x0 and x1 in one partition, y in the other."""
    history = TxnHistory()
    txn = history.begin("id")
    for partition, values in ((P0, [b"x0", b"x1"]), (P1, [b"y"])):
        history.send(txn, partition, values)
        if ack:
            history.ack(txn, partition, 0, values)
    if ask:
        history.ask(txn)
    if told is not None:
        history.tell(txn, is_committed=told)
    return history, txn


def log(values, fate, *, log_start=0, producer=(1, 0), markers=()):
    found = Decided(log_start)
    for offset, value in values.items():
        found.values[offset] = value
        if fate != "plain":
            found.fates[offset] = fate
            found.producers[offset] = producer
    found.end = max(values, default=-1) + 2
    found.markers += markers
    return found


def logs(fate0, fate1):
    return {P0: log({0: b"x0", 1: b"x1"}, fate0), P1: log({0: b"y"}, fate1)}


def refused(word, call, *args, **options):
    with pytest.raises(Violation) as caught:
        call(*args, **options)
    assert caught.value.kind == word, caught.value


@pytest.mark.parametrize(("told", "fate"), [(True, True), (False, False), (None, True)])
def test_all_or_nothing(told, fate):
    history, txn = made(told=told)
    assert history.check(logs(fate, fate)) == {txn: fate}


def test_nobody_asked_and_it_is_aborted():
    history, txn = made(ask=False)
    assert history.check(logs(False, False)) == {txn: False}


def test_torn():
    history, _ = made()
    refused("torn", history.check, logs(True, False))
    history, _ = made(ack=False)
    assert history.check({P0: log({0: b"x0"}, True), P1: log({0: b"y"}, True)})
    history, txn = made(ack=False)
    # Acknowledged as a duplicate, so that nobody knows where.
    history.ack(txn, P0, -1, [b"x0", b"x1"])
    refused("torn", history.check, {P0: log({0: b"x0"}, True), P1: log({0: b"y"}, True)})


def test_lost():
    history, _ = made(told=True)
    refused("lost", history.check, logs(False, False))
    history, _ = made(told=True)
    refused("lost", history.check, {P0: log({0: b"x0"}, True), P1: log({0: b"y"}, True)})
    history, _ = made(told=True)
    assert history.check({P0: log({1: b"x1"}, True, log_start=1), P1: log({0: b"y"}, True)})


def test_undead():
    for options in ({"told": False}, {"ask": False}):
        history, _ = made(**options)
        refused("undead", history.check, logs(True, True))


def test_open():
    history, _ = made()
    refused("open", history.check, logs(None, None))


def test_duplicated_and_reordered():
    history, _ = made(ack=False)
    refused("duplicated", history.check, {P0: log({0: b"x0", 1: b"x0"}, True)})
    history, _ = made(ack=False)
    refused("reordered", history.check, {P0: log({0: b"x1", 1: b"x0"}, True)})


def test_dirty_reads():
    history, _ = made(ask=False)
    history.see(P0, 0, b"x0", committed=False)
    refused("dirty", history.see, P0, 0, b"x0", committed=True)
    history, _ = made(told=False)
    refused("dirty", history.see, P0, 0, b"x0", committed=True)
    for told in (True, None):
        history, _ = made(told=told)
        history.see(P0, 0, b"x0", committed=True)


def test_a_tombstone_is_known_by_its_offset():
    history, txn = made(told=False)
    history.ack(txn, ("keyed", 0), 7, [None])
    refused("dirty", history.read, ("keyed", 0), 7, None)
    history.read(("keyed", 0), 8, None)
    history.read(("keyed", 0), 9, b"of somebody else")


def test_phantom_and_diverging():
    history, _ = made()
    refused("phantom", history.see, P1, 5, b"x0", committed=False)
    refused("phantom", history.see, P0, 5, b"z", committed=False)
    refused("diverging", history.see, P0, 1, b"x0", committed=False)


def test_backwards():
    history, _ = made()
    history.stable("reader of a", P0, 5, 9, 0)
    history.stable("reader of b", P0, 4, 9, 0)
    refused("backwards", history.stable, "reader of a", P0, 4, 9, 0)
    refused("backwards", history.stable, "reader of a", P0, 7, 6, 0)
    refused("backwards", history.stable, "reader of c", P0, 3, 6, 4)


def test_backwards_over_a_take_over():
    history, _ = made()
    history.stable("reader of a", P0, 5, 9, 0, epoch=1)
    history.stable("reader of b", P0, 6, 9, 0, epoch=2)
    refused("backwards", history.stable, "reader of c", P0, 5, 9, 0, epoch=3)
    history.stable("other of b", P0, 7, 9, 0, epoch=2)
    # One that was deposed cannot have known more than its successor.
    history.stable("other of a", P0, 6, 9, 0, epoch=1)
    refused("backwards", history.stable, "third of a", P0, 7, 9, 0, epoch=1)


def test_contradicted():
    history, txn = made(told=True)
    history.tell(txn, is_committed=True)
    refused("contradicted", history.tell, txn, is_committed=False)


def test_stale_marker():
    def marked(*epochs):
        markers = [Marker(2 + n, 1, 0, True, epoch) for n, epoch in enumerate(epochs)]
        return {P0: log({0: b"x0", 1: b"x1"}, True, markers=markers), P1: log({0: b"y"}, True)}

    assert made()[0].check(marked(1, 1, 3))
    refused("stale marker", made()[0].check, marked(1, 3, 1))


def test_what_fetches_gave():
    def fetched(start, end, *offsets):
        history, _ = made()
        history.fetched[P0].append(Fetched("reader", start, end, frozenset(offsets)))
        return history

    assert fetched(0, 3, 0, 1).check(logs(True, True))
    assert fetched(0, 1, 0).check(logs(True, True))
    assert fetched(0, 3).check(logs(False, False))
    refused("hidden", fetched(0, 3, 0).check, logs(True, True))
    refused("shown", fetched(0, 3, 0).check, logs(False, False))
    start = {P0: log({1: b"x1"}, True, log_start=1), P1: log({0: b"y"}, True)}
    assert fetched(0, 3, 0, 1).check(start)


def test_plain_records_are_seen_by_all():
    history = TxnHistory()
    history.send(None, P0, [b"p"])
    history.ack(None, P0, 0, [b"p"])
    history.fetched[P0].append(Fetched("reader", 0, 1, frozenset()))
    refused("hidden", history.check, {P0: log({0: b"p"}, "plain")})


def offsets(*told):
    history = TxnHistory()
    fates = {}
    for number, each in enumerate(told):
        txn = history.begin("id")
        txn.offset = number
        if each != "never asked":
            history.ask(txn)
        if isinstance(each, bool):
            history.tell(txn, is_committed=each)
        fates[txn] = each if isinstance(each, bool) else None
    return history, fates


def test_offsets_are_those_of_the_last_committed_transaction():
    history, fates = offsets(True, False)
    history.check_offset("id", 0, fates)
    refused("wrong offset", history.check_offset, "id", 1, fates)
    refused("wrong offset", history.check_offset, "id", -1, fates)
    history, fates = offsets(True, None, "never asked")
    history.check_offset("id", 0, fates)
    history.check_offset("id", 1, fates)
    refused("wrong offset", history.check_offset, "id", 2, fates)
    history, fates = offsets(None, True)
    refused("wrong offset", history.check_offset, "id", 0, fates)


def test_offsets_as_they_are_read():
    history, _ = offsets(True, False, "never asked", None)
    assert history.offset_floor("id") == 0
    assert history.offset_floor("other") == -1
    history.offset_seen("id", 0, 0)
    history.offset_seen("id", 3, 0)
    refused("backwards", history.offset_seen, "id", -1, 0)
    refused("dirty", history.offset_seen, "id", 1, 0)
    refused("dirty", history.offset_seen, "id", 2, 0)

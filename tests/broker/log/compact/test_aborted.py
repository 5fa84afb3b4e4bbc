"""The transactions of a pass, and an aborted index that contradicts the markers."""

import pytest

from broker.log.compact.aborted import TransactionPass
from broker.log.compact.steps import CompactionError
from broker.log.transactions.aborted_index import AbortedTransaction
from tests.broker.log.compact.logs import marker_in, marker_of, parse_header, transactional
from wire.kafka.records.control import EndTransactionMarker


def data(base, producer_id=7):
    return parse_header(transactional(base, producer_id, (b"a", b"1")))


def end(transactions, base, *, committed, producer_id=7):
    batch = marker_of(base, producer_id, committed=committed)
    return transactions.end(parse_header(batch), marker_in(batch))


def test_data_is_judged_by_the_entry_that_covers_it():
    first, second = AbortedTransaction(7, 2, 5, 2), AbortedTransaction(7, 8, 9, 8)
    transactions = TransactionPass([second])
    transactions.add_aborted([first])
    assert [transactions.is_aborted(data(base)) for base in (0, 1)] == [False, False]
    assert end(transactions, 1, committed=True)
    assert transactions.is_aborted(data(2))
    assert not transactions.is_aborted(data(3, producer_id=8))
    assert transactions.is_aborted(data(4))
    assert end(transactions, 5, committed=False)
    assert not transactions.is_aborted(data(6))
    assert end(transactions, 7, committed=True)
    assert transactions.take_aborted() == [first]
    assert not end(transactions, 9, committed=False)  # nothing of the second was seen
    assert transactions.take_aborted() == []


def test_markers_end_what_was_seen_of_their_producer():
    transactions = TransactionPass()
    assert not end(transactions, 0, committed=False)
    assert not end(transactions, 1, committed=True)
    transactions.is_aborted(data(2))
    assert not end(transactions, 3, committed=True, producer_id=8)
    assert end(transactions, 4, committed=True)
    assert not end(transactions, 5, committed=True)


def test_a_header_that_was_left_is_data():
    """Of aborted data, too, and though its entry is gone."""
    transactions = TransactionPass()
    assert not transactions.is_aborted(data(0)._replace(record_count=0))
    assert end(transactions, 1, committed=False)
    assert not transactions.end(parse_header(marker_of(2, 7, committed=False)), None)


def test_a_header_that_was_left_keeps_its_marker():
    """It says that its producer is in a transaction: whoever replays it without the marker finds
    that open for ever."""
    transactions = TransactionPass()
    assert not transactions.is_aborted(data(0)._replace(record_count=0))
    assert end(transactions, 1, committed=True)
    entry = AbortedTransaction(7, 2, 3, 2)
    transactions.add_aborted([entry])
    assert transactions.is_aborted(data(2)._replace(record_count=0))
    assert end(transactions, 3, committed=False)
    assert transactions.take_aborted() == [entry]


def test_an_index_without_an_aborted_transaction_is_seen():
    transactions = TransactionPass()
    transactions.is_aborted(data(0))
    transactions.is_aborted(data(1)._replace(record_count=0))
    with pytest.raises(CompactionError, match="offset 2: producer 7 aborts data that the"):
        end(transactions, 2, committed=False)


def test_an_index_with_a_committed_transaction_is_seen():
    transactions = TransactionPass([AbortedTransaction(7, 0, 3, 0)])
    transactions.is_aborted(data(0))
    with pytest.raises(CompactionError, match="offset 2: producer 7 commits what"):
        end(transactions, 2, committed=True)
    transactions = TransactionPass([AbortedTransaction(7, 0, 3, 0)])
    transactions.is_aborted(data(0))
    with pytest.raises(CompactionError, match="offset 2: an abort marker of producer 7"):
        transactions.end(data(2), EndTransactionMarker(False, 0))


def test_an_entry_covers_nothing_behind_its_last_offset():
    """Also where the marker is not in the log any more."""
    transactions = TransactionPass([AbortedTransaction(7, 0, 2, 0)])
    assert [transactions.is_aborted(data(base)) for base in (0, 1, 3)] == [True, True, False]
    assert end(transactions, 4, committed=True)

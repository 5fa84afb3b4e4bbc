"""Both tables of EndTxn, written down here once more, row by row, and who is asking."""

from __future__ import annotations

import pytest

from broker.transactions.types import TV1, TV2, TxnState
from tests.broker.transactions.conftest import TxnDriver, in_state
from wire.kafka.errors import ErrorCode as E

S = TxnState
BUMP_COMMIT, BUMP_ABORT = "commit, next epoch", "abort, next epoch"

TV1_ROWS = [
    (S.EMPTY, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
    (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE),
    (S.PREPARE_ABORT, E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
    (S.COMPLETE_COMMIT, E.NONE, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, E.NONE),
]
# state: commit of a retry, commit of the current epoch, abort of a retry, abort of the current one
TV2_ROWS = [
    (S.EMPTY, E.PRODUCER_FENCED, E.INVALID_TXN_STATE, E.PRODUCER_FENCED, S.PREPARE_ABORT),
    (S.ONGOING, E.PRODUCER_FENCED, S.PREPARE_COMMIT, E.PRODUCER_FENCED, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS,
     E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS,
     E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
    (S.COMPLETE_COMMIT, E.NONE, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE, S.PREPARE_ABORT),
    (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE, E.NONE, S.PREPARE_ABORT),
]  # fmt: skip


def check(driver, expected, version, *, epoch=5):
    """The one request that was sent came to this; `epoch`: the id's before it."""
    txn = driver.txn
    if isinstance(expected, S):
        assert not driver.answers, "not before it is stored"
        assert txn.state is expected
        assert txn.epoch == epoch + (version == TV2)
        assert txn.version == version
        driver.store()
        result, needs_barrier = driver.last
        assert (result.error, result.producer_id, result.epoch) == (E.NONE, 7, txn.epoch)
        assert not needs_barrier
    else:
        result, needs_barrier = driver.last
        assert result.error is expected
        assert not driver.unstored
        assert needs_barrier == (expected is not E.CONCURRENT_TRANSACTIONS)
        has_ids = expected is E.NONE
        assert (result.producer_id, result.epoch) == ((7, epoch) if has_ids else (-1, -1))


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("row", TV1_ROWS, ids=[row[0].name for row in TV1_ROWS])
def test_tv1_table(row, is_commit):
    driver = in_state(row[0], version=TV1)
    driver.end(7, 5, is_commit, TV1)
    check(driver, row[1] if is_commit else row[2], TV1)


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("row", TV2_ROWS, ids=[row[0].name for row in TV2_ROWS])
def test_tv2_table(row, column):
    driver = in_state(row[0])
    is_current = column % 2 == 1
    driver.end(7, 5 if is_current else 4, is_commit=column < 2)
    check(driver, row[1 + column], TV2)


@pytest.mark.parametrize("state", S)
def test_tv1_other_epochs_are_fenced_before_anything_else(state):
    for epoch in (4, 6):
        driver = in_state(state)
        driver.txn.pending = 1
        driver.end(7, epoch, True, TV1)
        check(driver, E.PRODUCER_FENCED, TV1)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_stranger_is_told_so(state, version):
    driver = in_state(state)
    driver.end(8, 5, True, version)
    check(driver, E.INVALID_PRODUCER_ID_MAPPING, version)
    driver = in_state(state)
    driver.end(-1, -1, True, version)
    check(driver, E.INVALID_PRODUCER_ID_MAPPING, version)


@pytest.mark.parametrize("state", S)
def test_tv2_other_epochs_are_fenced(state):
    for epoch in (3, 6):
        driver = in_state(state)
        driver.end(7, epoch, True)
        check(driver, E.PRODUCER_FENCED, TV2)


@pytest.mark.parametrize("state", S)
def test_tv2_what_is_on_its_way_is_waited_for_first_of_all(state):
    """Whoever asks: it may be the one that this makes the current one (KAFKA-18464)."""
    for who in ((7, 5), (7, 4), (7, 6), (8, 0)):
        driver = in_state(state)
        driver.txn.pending = 1
        driver.end(*who, True)
        check(driver, E.CONCURRENT_TRANSACTIONS, TV2)


@pytest.mark.parametrize(("state", "is_commit"), [(S.COMPLETE_COMMIT, True), (S.COMPLETE_ABORT, 0)])
def test_a_retry_after_an_end_of_version_1_is_fenced(state, is_commit):
    """That end raised no epoch: who has the one before was fenced."""
    for version in (0, TV1):
        driver = in_state(state, version=version)
        driver.end(7, 4, is_commit)
        check(driver, E.PRODUCER_FENCED, TV2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_retry_over_a_change_of_producer_ids(is_commit):
    done = S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT
    driver = in_state(done, epoch=0, previous_producer_id=6)
    driver.end(6, 32_766, is_commit)
    check(driver, E.NONE, TV2, epoch=0)
    driver.end(6, 32_765, is_commit)
    assert driver.last[0].error is E.INVALID_PRODUCER_ID_MAPPING
    # One transaction later it is no retry any more.
    driver = in_state(done, epoch=1, previous_producer_id=6)
    driver.end(6, 32_766, is_commit)
    assert driver.last[0].error is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_the_next_producer_id_may_come_before_the_markers_are_written(state):
    driver = in_state(state, epoch=32_767, next_producer_id=8)
    driver.end(8, 0, False)
    assert driver.last[0].error is E.CONCURRENT_TRANSACTIONS
    driver.end(8, 1, False)
    assert driver.last[0].error is E.PRODUCER_FENCED


def test_an_unknown_id():
    driver = TxnDriver()
    driver.end(7, 5, True)
    assert driver.last[0].error is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.last[1], "another coordinator may know it by now"

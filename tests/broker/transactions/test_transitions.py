"""The table of transitions, written down here once more: what is not in it cannot be made."""

from __future__ import annotations

import pytest

from broker.transactions import transitions
from broker.transactions.types import TV1, TV2, TxnState
from tests.broker.transactions.conftest import T0, P, in_state

S = TxnState
RESTING = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}

MOVES = {
    "bump": lambda txn: transitions.bump(txn, 1, T0, is_named=False),
    "bump_again": lambda txn: transitions.bump_again(txn, 1, T0),
    "rotate": lambda txn: transitions.rotate(txn, 99, 1, T0, is_named=False),
    "add": lambda txn: transitions.add(txn, P, TV2, T0),
    "commit": lambda txn: prepare(txn, True, TV1),
    "commit, raised": lambda txn: prepare(txn, True, TV2),
    "abort": lambda txn: prepare(txn, False, TV1),
    "abort, raised": lambda txn: prepare(txn, False, TV2),
    "fence": lambda txn: transitions.fence(txn, version=TV2, next_producer_id=-1, now_ms=T0),
    "complete": lambda txn: transitions.complete(txn, T0),
}
#: By the move: where from, where to, by how much the epoch goes up (None: another producer id).
TABLE = {
    "bump": (RESTING, {S.EMPTY}, 1),
    "bump_again": (RESTING, {S.EMPTY}, 0),
    "rotate": (RESTING, {S.EMPTY}, None),
    "add": (RESTING | {S.ONGOING}, {S.ONGOING}, 0),
    "commit": ({S.ONGOING}, {S.PREPARE_COMMIT}, 0),
    "commit, raised": ({S.ONGOING}, {S.PREPARE_COMMIT}, 1),
    "abort": (RESTING | {S.ONGOING}, {S.PREPARE_ABORT}, 0),
    "abort, raised": (RESTING | {S.ONGOING}, {S.PREPARE_ABORT}, 1),
    "fence": ({S.ONGOING}, {S.PREPARE_ABORT}, 1),
    "complete": ({S.PREPARE_COMMIT, S.PREPARE_ABORT}, {S.COMPLETE_COMMIT, S.COMPLETE_ABORT}, 0),
}


def prepare(txn, is_commit, version):
    transitions.prepare(txn, is_commit=is_commit, version=version, next_producer_id=-1, now_ms=T0)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("move", MOVES)
def test_table(move, state):
    sources, targets, raised = TABLE[move]
    txn = in_state(state).txn
    if state not in sources:
        with pytest.raises(AssertionError):
            MOVES[move](txn)
        return
    MOVES[move](txn)
    assert txn.state in targets
    if raised is None:
        assert (txn.producer_id, txn.epoch, txn.previous_producer_id) == (99, 0, 7)
    else:
        assert (txn.producer_id, txn.epoch) == (7, 5 + raised)
    if move == "complete":
        assert (txn.state is S.COMPLETE_COMMIT) == (state is S.PREPARE_COMMIT)
    has_partitions = txn.state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    assert (txn.partitions == P) == (has_partitions and (state is S.ONGOING or move == "add"))


def test_an_exhausted_epoch_needs_another_producer_id():
    for move in ("bump", "commit, raised", "fence"):
        state = S.EMPTY if move == "bump" else S.ONGOING
        with pytest.raises(AssertionError):
            MOVES[move](in_state(state, epoch=32_766).txn)
    with pytest.raises(AssertionError):
        transitions.fence(in_state(S.ONGOING).txn, version=TV2, next_producer_id=9, now_ms=T0)


def test_what_lacks_a_marker_is_not_complete():
    txn = in_state(S.PREPARE_COMMIT).txn
    txn.unmarked = frozenset({("t", 0)})
    with pytest.raises(AssertionError):
        transitions.complete(txn, T0)

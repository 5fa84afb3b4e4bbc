"""Records of `__transaction_state`: Kafka's bytes, and values there and back."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transactions.records import StoredTxn, parse_record, txn_record, txn_tombstone
from broker.transactions.types import TxnSnapshot, TxnState
from wire.kafka.errors import WireError

SNAPSHOT = TxnSnapshot(
    transactional_id="tx",
    producer_id=42,
    previous_producer_id=-1,
    next_producer_id=-1,
    epoch=3,
    timeout_ms=60_000,
    state=TxnState.ONGOING,
    partitions=frozenset({("t", 0), ("t", 2)}),
    updated_ms=1_700_000_000_000,
    started_ms=1_699_999_999_999,
    version=0,
)
KEY = "000000027478"
#: As Kafka 4.3 writes them (the same that the codec is held to).
V0 = (
    "0000000000000000002a00030000ea6001000000010001740000000200000000000000020000018bcfe56800"
    "0000018bcfe567ff"
)
V1 = (
    "0001000000000000002a00030000ea6001020274030000000000000002000000018bcfe568000000018bcfe567ff00"
)


def test_bytes_are_kafkas():
    key, value = txn_record(SNAPSHOT)
    assert (key.hex(), value.hex()) == (KEY, V1)
    assert txn_tombstone("tx") == (bytes.fromhex(KEY), None)
    for data in (V0, V1):
        assert parse_record(bytes.fromhex(KEY), bytes.fromhex(data)) == StoredTxn("tx", SNAPSHOT)


def test_tags_are_written():
    """Without the previous and the next id who loads this fences a producer that is alive."""
    tagged = dataclasses.replace(SNAPSHOT, previous_producer_id=41, next_producer_id=43, version=2)
    _, value = txn_record(tagged)
    tags = bytes.fromhex("03000800000000000000290108000000000000002b02020002")
    assert value == bytes.fromhex(V1)[:-1] + tags


def test_partitions_are_null_only_while_there_was_no_transaction():
    none = dataclasses.replace(SNAPSHOT, partitions=frozenset())
    at = len(bytes.fromhex("0001000000000000002a00030000ea6001"))
    for state in TxnState:
        _, value = txn_record(dataclasses.replace(none, state=state))
        assert value[at] == (0 if state is TxnState.EMPTY else 1)


def test_tombstone_and_unknown_keys():
    assert parse_record(bytes.fromhex(KEY), None) == StoredTxn("tx", None)
    assert parse_record(b"\x00\x01abc", b"?") is None


@pytest.mark.parametrize("state", [6, 7, 8, -1])
def test_states_that_nobody_writes(state):
    data = bytearray.fromhex(V1)
    data[16] = state & 0xFF
    with pytest.raises(WireError, match="state"):
        parse_record(bytes.fromhex(KEY), bytes(data))


longs = st.integers(-1, 2**63 - 1)


@given(
    st.builds(
        TxnSnapshot,
        st.text(min_size=1, max_size=20), longs, longs, longs, st.integers(0, 32_767),
        st.integers(0, 2**31 - 1), st.sampled_from(TxnState),
        st.frozensets(st.tuples(st.sampled_from(["a", "b", "ü"]), st.integers(0, 9))),
        longs, longs, st.integers(0, 2),
    )
)  # fmt: skip
def test_there_and_back(snapshot):
    if snapshot.state is TxnState.EMPTY:
        snapshot = dataclasses.replace(snapshot, partitions=frozenset())
    stored = parse_record(*txn_record(snapshot))
    assert stored == StoredTxn(snapshot.transactional_id, snapshot)

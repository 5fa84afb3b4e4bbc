"""The chain document: order is kept, damage is named, nothing is lost in a round trip."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.ownership import Incarnation
from broker.log.life.chain import Chain, ChainFormatError
from broker.log.life.ledger_info import LedgerInfo
from broker.log.life.retention import new_log_start, roll_age_ms, roll_jitter_ms


def chain_of(*sizes, open_last=False, now=1000):
    """Ledgers of so many records, one byte and one millisecond each."""
    chain, offset = Chain().with_epoch(0), 0
    for number, size in enumerate(sizes):
        last = None if open_last and number == len(sizes) - 1 else offset + size - 1
        chain = chain.with_ledger(
            LedgerInfo(
                number, offset, 0, now, last, size, size, max_timestamp=now + offset + size - 1
            )
        )
        offset += size
    return chain


@given(st.lists(st.integers(1, 50), max_size=8), st.booleans())
def test_round_trip(sizes, open_last):
    chain = chain_of(*sizes, open_last=open_last)
    assert Chain.from_bytes(chain.to_bytes()) == chain


def test_the_owner_is_kept_and_released():
    owner = Incarnation(3, "0f" * 16)
    held = chain_of(2).with_epoch(5, owner)
    assert Chain.from_bytes(held.to_bytes()) == held
    assert json.loads(held.to_bytes())["owner"] == {"broker": 3, "incarnation": "0f" * 16}
    released = Chain.from_bytes(held.released().to_bytes())
    assert (released.owner, released.leader_epoch) == (None, 5)
    with pytest.raises(AssertionError, match="closed"):
        chain_of(2, open_last=True).released()


def test_a_document_older_than_the_owner_is_read():
    document = json.loads(chain_of(2).to_bytes())
    del document["owner"]
    assert Chain.from_bytes(json.dumps(document).encode()) == chain_of(2)


@pytest.mark.parametrize("owner", [3, "b", {"broker": 3}, {"broker": "3", "incarnation": "0"},
                                   {"broker": 3, "incarnation": 0}])  # fmt: skip
def test_a_damaged_owner_is_named(owner):
    document = json.loads(chain_of(2).to_bytes()) | {"owner": owner}
    with pytest.raises(ChainFormatError, match="damaged"):
        Chain.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize("dropped", [-1, 1])
def test_more_dropped_than_was_archived_is_damage(dropped):
    document = json.loads(chain_of(2).to_bytes()) | {"dropped": dropped}
    with pytest.raises(ChainFormatError, match="dropped"):
        Chain.from_bytes(json.dumps(document).encode())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.booleans(), st.data())
def test_log_start_drops_exactly_what_is_wholly_before_it(sizes, open_last, data):
    chain = chain_of(*sizes, open_last=open_last)
    start = data.draw(st.integers(0, sum(sizes)))
    after = chain.with_log_start(start)
    assert after.log_start_offset == start
    for info in chain.ledgers:
        gone = not info.is_open and info.end_offset <= start
        assert (info.ledger_id in after.deleting) == gone
        assert (info in after.ledgers) != gone
    assert after.closed_end_offset == chain.closed_end_offset


def test_a_successor_needs_a_final_predecessor():
    chain = chain_of(3, open_last=True)
    with pytest.raises(AssertionError):
        chain.with_ledger(LedgerInfo(9, 3, 0, 0))
    with pytest.raises(AssertionError):
        chain_of(3).with_ledger(LedgerInfo(9, 4, 0, 0))


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"format": 2}',
        json.dumps({**json.loads(chain_of(2, 3).to_bytes()), "leader_epoch": "1"}).encode(),
        chain_of(2, 3).to_bytes().replace(b'"base":2', b'"base":1'),
        chain_of(2, 3).to_bytes().replace(b'"last":1', b'"last":null'),
    ],
)
def test_damage_is_named(damage):
    with pytest.raises(ChainFormatError):
        Chain.from_bytes(damage)


@given(
    st.lists(st.integers(1, 50), max_size=8),
    st.integers(-1, 120),
    st.integers(-1, 300),
    st.integers(900, 1500),
)
def test_retention_keeps_the_limits_and_no_less(sizes, retention_bytes, retention_ms, now_ms):
    chain = chain_of(*sizes)
    start = new_log_start(
        chain,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        open_size_bytes=0,
        now_ms=now_ms,
    )
    kept = chain.with_log_start(start).ledgers
    if retention_bytes >= 0 and kept:
        # Kafka keeps at least retention.bytes: dropping one more ledger would go below it.
        assert sum(info.size_bytes for info in kept[1:]) < retention_bytes
    if retention_ms >= 0 and kept:
        assert kept[0].max_timestamp >= now_ms - retention_ms
    if retention_bytes < 0 and retention_ms < 0:
        assert kept == chain.ledgers


def test_roll_age_lets_a_short_retention_act():
    assert roll_age_ms(604_800_000, -1) == 604_800_000
    assert roll_age_ms(604_800_000, 60_000) == 15_000
    assert roll_age_ms(5_000, 60_000) == 5_000
    assert roll_age_ms(604_800_000, 10) == 1_000


def test_a_short_compaction_lag_does_not_make_a_ledger_of_each_record():
    assert roll_age_ms(604_800_000, -1, 60_000) == 60_000
    assert roll_age_ms(604_800_000, -1, 1) == 1_000
    assert roll_age_ms(500, -1, 1) == 500, "who sets segment.ms wants that"
    assert roll_age_ms(604_800_000, 10, 60_000) == 1_000


def test_jitter_spreads_rolls_below_its_limit():
    found = [roll_jitter_ms(60_000, 1_000, ledger_id) for ledger_id in range(5_000)]
    assert found == [roll_jitter_ms(60_000, 1_000, ledger_id) for ledger_id in range(5_000)]
    assert (min(found), max(found)) == (0, 999)
    for start in range(0, 1_000, 100):
        assert 350 < sum(start <= one < start + 100 for one in found) < 650
    assert {roll_jitter_ms(60_000, 0, ledger_id) for ledger_id in range(9)} == {0}
    assert max(roll_jitter_ms(5, 2**63 - 1, ledger_id) for ledger_id in range(99)) == 4

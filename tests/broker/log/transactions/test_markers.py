"""Markers as batches: built once for all partitions of a transaction, a batch of its own in each;
and what our own have built keeps its place behind what waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.checking import TURN_NS_MAX
from broker.log.transactions.markers import marker_batch, marker_of
from tests.broker.log.transactions.conftest import make_batch
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import check_crc, iter_records, parse_header
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch

NOW_MS = 1_700_000_000_000


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 2),
            st.integers(NOW_MS, NOW_MS + 2),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_a_kept_batch_is_the_one_that_would_be_built(asked):
    for producer_id, epoch, committed, coordinator_epoch, now_ms in asked:
        marker = EndTransactionMarker(committed, coordinator_epoch)
        batch, header = marker_batch(producer_id, epoch, committed, coordinator_epoch, now_ms)
        assert batch == build_end_transaction_batch(
            marker, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=now_ms
        )
        assert header == parse_header(batch)
        assert check_crc(batch, header)
        assert marker_of(header, batch) == marker


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
async def test_each_partition_has_bytes_of_its_own(world, time_type, autojump_clock):
    """Offsets and append times are written into the batch: the next one must not have them."""
    world.config.message_timestamp_type = time_type
    for pid in (7, 8):
        world.put(pid=pid, epoch=1, sequence=0)
    ends = [world.end(pid, commit=True, epoch=1) for pid in (7, 8, 7)]
    await world.settle()
    offsets = [append.base_offset for (append,) in ends]
    assert offsets == [2, 3, 4]
    headers, _, _ = await world.fetch(0)
    assert [header.base_offset for header in headers] == [0, 1, 2, 3, 4]
    assert [header.producer_id for header in headers[2:]] == [7, 8, 7]
    got = await world.log.read(0, 1 << 20)
    data, at = memoryview(b"".join(got.parts)), 0
    for header in headers:
        batch = data[at : at + header.size]
        assert check_crc(batch, header)
        assert list(iter_records(batch, header, size_max=1 << 20))
        at += header.size


async def test_a_marker_does_not_overtake_what_is_not_checked_yet(world, autojump_clock):
    """The turn's time for checks is used up: a producer's batch waits, and the marker behind it
    would end the transaction before it."""
    world.put(pid=7, epoch=0, sequence=0)
    await world.settle()
    checks = world.shared.checks
    checks._left_ns = 0
    world.log.append_nowait(make_batch(1), lambda _: None)
    assert world.log._line.is_waiting
    done = world.end(7, commit=True)
    world.log.append_nowait(make_batch(1), done.append, internal=True, origin=None)
    assert not done
    assert world.log.next_offset == 1, "both wait in line"
    checks._left_ns = TURN_NS_MAX
    world.nursery.start_soon(checks.run)
    await world.settle()
    assert [(append.error, append.base_offset) for append in done] == [
        (ErrorCode.NONE, 2),
        (ErrorCode.NONE, 3),
    ]


@pytest.mark.parametrize(("count", "pid", "epoch"), [(0, -1, -1), (1, 7, -1)])
async def test_numbers_that_no_batch_may_have_are_refused(world, count, pid, epoch, autojump_clock):
    """A coordinator passes on what a client has said of itself."""
    done = []
    records = make_batch(count, pid=pid, epoch=epoch)
    world.log.append_nowait(records, done.append, internal=True, origin=None)
    await world.settle()
    assert [append.error for append in done] == [ErrorCode.INVALID_RECORD]
    assert world.log.next_offset == 0

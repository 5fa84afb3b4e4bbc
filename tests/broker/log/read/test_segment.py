"""What is looked for in one ledger, beside what tests of a partition read."""

import sys

import pytest

from broker.log.life.ledger_info import LedgerInfo
from broker.log.read.segment import Segment, _some_spans
from broker.log.settings import LogSettings
from wire.kafka.errors import WireError
from wire.kafka.records.batch import build_batch, parse_header, records_data
from wire.kafka.records.record import Record


def spans_of(batch, **changes):
    header = parse_header(batch)._replace(**changes)
    return _some_spans(header, bytes(records_data(batch, header, size_max=1 << 30)))


def test_headers_of_records_are_passed_by():
    """A search for a time stood at a quarter of a million of them for 160 ms."""
    records = [
        Record(0, 0, b"k", b"v", [("", None)] * 250_000),
        Record(1, 5, b"k", None),
    ]
    found, steps = spans_of(build_batch(records, base_timestamp=10)), []
    sys.setprofile(lambda *_: steps.append(1))
    try:
        rows = list(found)
    finally:
        sys.setprofile(None)
    assert [span[3:5] for some in rows for span in some] == [(0, 0), (5, 1)]
    assert len(steps) < 200


@pytest.mark.parametrize(("count", "size"), [(1000, 10), (100, 100_000)])
def test_records_come_in_steps(count, size):
    batch = build_batch([Record(n, 0, b"k" * size, b"") for n in range(count)], base_timestamp=0)
    found = list(spans_of(batch))
    assert sum(map(len, found)) == count
    assert all(len(some) <= 256 for some in found)
    assert all(len(some) == 1 or len(some) * size <= (256 << 10) + size for some in found)


def test_damage_is_told():
    batch = build_batch([Record(n, 0, b"k", b"") for n in range(3)], base_timestamp=0)
    with pytest.raises(WireError, match="record 3: cut_short"):
        list(spans_of(batch, record_count=4))


async def test_what_is_not_compressed_is_looked_at_where_it_lies():
    """A copy of a batch of a hundred megabytes would hold the loop for 40 ms."""
    info = LedgerInfo(ledger_id=1, base_offset=0, leader_epoch=0, created_ms=0)
    batch = build_batch([Record(n, 0, b"k", b"v" * 1000) for n in range(3)], base_timestamp=0)
    header = parse_header(batch)
    data = await Segment(info, None, LogSettings())._unpacked(memoryview(batch), header)
    assert memoryview(data).obj is batch
    assert [span[4:6] for some in _some_spans(header, data) for span in some] == [
        (n, b"k") for n in range(3)
    ]

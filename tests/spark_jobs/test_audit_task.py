"""A piece of an audit: payloads of copies are compared, and content is looked at once."""

from broker.log.append.entry_format import FLAG_CONTINUES, KIND_BATCHES, KIND_INDEX, pack_header
from broker.log.read.offset_index import OffsetIndex
from spark_jobs.audit_task import Copies, content_fault
from tests.pyspark_quire.in_memory import batch


def entry(body, kind=KIND_BATCHES, flags=0, count=3):
    return memoryview(pack_header(kind, 0, count, flags) + bytes(body))


def test_copies_of_other_content_are_found():
    copies = Copies(is_ours=False)
    for bookie, payload in (("a", b"one"), ("b", b"one"), ("c", b"two"), ("d", b"one.")):
        copies.add(bookie, 5, memoryview(payload))
    copies.add("a", 6, memoryview(b"two"))
    assert [each[:2] for each in copies.differing] == [(5, "c"), (5, "d")]
    assert copies.unreadable == []
    assert copies.size_bytes == 16


def test_content_is_looked_at():
    good = entry(bytes(batch(0, 2)) + bytes(batch(2, 1)))
    assert content_fault(good) is None
    damaged = bytearray(batch(0, 1))
    damaged[-1] ^= 1
    assert "offset 0" in content_fault(entry(damaged))
    assert content_fault(memoryview(b"short")) is not None
    assert content_fault(entry(b"not a batch at all, but long enough" * 3)) is not None
    assert content_fault(entry(damaged, flags=FLAG_CONTINUES)) is None, "a part of a batch"
    assert content_fault(entry(OffsetIndex().to_bytes(), KIND_INDEX)) is None
    assert content_fault(entry(b"an index", KIND_INDEX)) is not None


def test_content_is_told_once_of_the_first_copy():
    copies = Copies(is_ours=True)
    for bookie in "ab":
        copies.add(bookie, 1, memoryview(b"no entry of ours"))
    assert [each[:2] for each in copies.unreadable] == [(1, "a")]
    assert copies.differing == []

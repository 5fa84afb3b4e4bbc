"""What a log with transactions says, by batches as a broker would store them."""

from sim.transactions.decided import Marker, committed, decide, parse
from wire.kafka.messages.fetch import AbortedTransaction
from wire.kafka.records.batch import build_batch
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch
from wire.kafka.records.record import Record


class Log:
    def __init__(self):
        self.end = 0
        self.data = b""

    def batch(self, *values, producer_id=-1):
        self.data += build_batch(
            [Record(n, 0, None, value) for n, value in enumerate(values)],
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=producer_id >= 0,
        )
        self.end += len(values)
        return self

    def marker(self, producer_id, *, committed, coordinator_epoch=1):
        self.data += build_end_transaction_batch(
            EndTransactionMarker(committed, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=1,
            timestamp_ms=0,
            base_offset=self.end,
        )
        self.end += 1
        return self


def mixed():
    """Producer 1 aborts a0, then commits a1; producer 2 commits b0 over both; p is in none."""
    log = Log().batch(b"a0", b"a0'", producer_id=1).batch(b"b0", producer_id=2).batch(b"p")
    log.marker(1, committed=False).batch(b"a1", producer_id=1)
    return log.marker(2, committed=True).marker(1, committed=True, coordinator_epoch=2)


def test_markers_decide():
    log = mixed()
    found = decide(0, parse(log.data))
    assert found.end == log.end == 8
    assert found.values == {0: b"a0", 1: b"a0'", 2: b"b0", 3: b"p", 5: b"a1"}
    assert found.fates == {0: False, 1: False, 2: True, 5: True}
    assert [offset for offset in found.values if found.is_visible(offset)] == [2, 3, 5]
    assert found.markers == [
        Marker(4, 1, 1, False, 1), Marker(6, 2, 1, True, 1), Marker(7, 1, 1, True, 2),
    ]  # fmt: skip


def test_what_no_marker_ends_is_open():
    found = decide(0, parse(Log().batch(b"a", producer_id=1).data))
    assert found.fates == {0: None}
    assert not found.is_visible(0)


def test_below_the_log_start_nothing_counts():
    found = decide(1, parse(mixed().data))
    assert sorted(found.values) == [1, 2, 3, 5]
    assert found.fates[1] is False


def values(log, *aborted):
    return [record.value for _, record in committed(parse(log.data), aborted)]


def test_a_consumer_drops_what_is_listed_until_its_marker():
    first = AbortedTransaction(producer_id=1, first_offset=0)
    assert values(mixed(), first) == [b"b0", b"p", b"a1"]


def test_a_list_in_any_order_is_the_same():
    log = mixed().batch(b"b1", producer_id=2).marker(2, committed=False)
    first = AbortedTransaction(producer_id=1, first_offset=0)
    later = AbortedTransaction(producer_id=2, first_offset=8)
    assert values(log, later, first) == values(log, first, later) == [b"b0", b"p", b"a1"]


def test_without_its_row_aborted_data_is_shown():
    assert values(mixed()) == [b"a0", b"a0'", b"b0", b"p", b"a1"]


def test_a_control_batch_that_was_emptied_says_nothing():
    log = Log().batch(b"a", producer_id=1)
    log.data += build_batch(
        [], base_offset=1, producer_id=1, is_transactional=True, is_control=True,
        last_offset_delta=0,
    )  # fmt: skip
    found = decide(0, parse(log.data))
    assert (found.fates, found.markers, found.end) == ({0: None}, [], 2)

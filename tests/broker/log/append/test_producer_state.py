"""Producer state: Kafka's rules one by one, bounds, snapshots and replays."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.producer_refusals import NOTES_MAX
from broker.log.append.producer_snapshot import PART_PRODUCERS_MAX
from broker.log.append.producer_state import (
    BATCHES_KEPT_MAX,
    PRODUCER_EXPIRATION_MS,
    STEP_PRODUCERS,
    Duplicate,
    ProducerInfo,
    ProducerState,
)
from broker.log.append.producer_store import Room
from broker.log.settings import LogSettings
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import BatchHeader, TimestampType, build_batch, parse_header
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch

SEQUENCE_MAX = 2**31 - 1
NOW = 1_700_000_000_000


def batch(first, count=1, *, pid=7, epoch=0, transactional=False, timestamp=NOW, append_time=False):
    """The header of a producer's batch. A batch without records has the same header."""
    return parse_header(
        build_batch(
            [],
            last_offset_delta=count - 1,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=first,
            is_transactional=transactional,
            max_timestamp=timestamp,
            timestamp_type=TimestampType(append_time),
        )
    )


def marker(pid=7, epoch=0):
    return parse_header(
        build_end_transaction_batch(
            EndTransactionMarker(committed=True, coordinator_epoch=1),
            producer_id=pid,
            producer_epoch=epoch,
            timestamp_ms=NOW,
        )
    )


def end(state, *, pid=7, epoch=0, coordinator_epoch=1, version=0, now_ms=NOW):
    """A marker, checked and appended; gives its offset."""
    facts = EndTransactionMarker(committed=True, coordinator_epoch=coordinator_epoch)
    header = marker(pid, epoch)
    state.check_marker(header, facts, version)
    offset = state.end_offset
    state.append(header, offset, now_ms, marker=facts)
    return offset


def end_refused(state, **options):
    before = parts_of(state)
    with pytest.raises(KafkaError) as caught:
        end(state, **options)
    assert parts_of(state) == before
    return caught.value.code


def parts_of(state):
    """Of a snapshot, encoded."""
    return [part() for part in state.snapshot()]


@pytest.fixture
def state():
    return ProducerState(producers_max=100)


def put(state: ProducerState, header: BatchHeader, now_ms: int = NOW, **options) -> int:
    """Check and append, as the log does; gives the base offset."""
    assert state.check(header, now_ms) is None
    offset = state.end_offset
    state.append(header, offset, now_ms, **options)
    return offset


def refused(state: ProducerState, header: BatchHeader, now_ms: int = NOW, **options) -> ErrorCode:
    before = parts_of(state)
    with pytest.raises(KafkaError) as caught:
        state.check(header, now_ms, **options)
    assert str(header.producer_id) in str(caught.value)
    assert parts_of(state) == before
    return caught.value.code


def test_in_sequence(state):
    offsets = [put(state, batch(first, 10)) for first in range(0, 100, 10)]
    assert offsets == list(range(0, 100, 10))
    assert list(state.producers()) == [ProducerInfo(7, 0, 99, NOW, -1, -1)]


def test_not_idempotent(state):
    header = batch(-1, pid=-1, epoch=-1)
    for _ in range(2):
        assert state.check(header, NOW) is None
        state.append(header, 5, NOW)
    assert len(state) == 0


def test_last_five_are_duplicates_and_older_ones_too(state):
    batches = [batch(first, 3) for first in range(0, 30, 3)]
    offsets = [put(state, each) for each in batches]
    for each, offset in list(zip(batches, offsets, strict=True))[-BATCHES_KEPT_MAX:]:
        assert state.check(each, NOW) == Duplicate(offset, -1)
    for each in batches[:-BATCHES_KEPT_MAX]:
        assert refused(state, each) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    # Other boundaries than any batch that was sent: not a retry.
    for first, count in ((16, 2), (15, 6), (14, 2), (12, 6), (28, 3), (0, 30), (29, 1)):
        assert refused(state, batch(first, count)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(31)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_unknown_producer_begins_anywhere_but_nothing_before_is_a_duplicate(state):
    """A gap that was never filled must not be answered as if it were in the log."""
    for first in range(100, 120, 2):
        put(state, batch(first, 2, epoch=3))
    assert refused(state, batch(98, 2, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(0, 2, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(99, 2, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(100, 2, epoch=3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_sequence_wraps(state):
    put(state, batch(SEQUENCE_MAX - 4, 4))
    offset = put(state, batch(SEQUENCE_MAX, 3))  # MAX, 0, 1
    assert state.check(batch(SEQUENCE_MAX, 3), NOW) == Duplicate(offset, -1)
    put(state, batch(2, 1))
    assert refused(state, batch(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for first in range(3, 9):
        put(state, batch(first))
    assert refused(state, batch(SEQUENCE_MAX, 3)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refused(state, batch(SEQUENCE_MAX - 4, 4)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refused(state, batch(SEQUENCE_MAX - 5, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_exactly_at_the_end_then_zero(state):
    put(state, batch(SEQUENCE_MAX, 1))
    assert refused(state, batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, batch(0))


def test_epochs(state):
    put(state, batch(0, epoch=2))
    assert refused(state, batch(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, batch(0, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, batch(1, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, batch(0, epoch=3))
    put(state, batch(1, epoch=3))
    assert refused(state, batch(0, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_log_append_time_of_a_duplicate(state):
    put(state, batch(0, append_time=True, timestamp=NOW + 5))
    put(state, batch(1), log_append_time_ms=NOW + 6)  # a header from before the patch
    put(state, batch(2))
    assert state.check(batch(0), NOW) == Duplicate(0, NOW + 5)
    assert state.check(batch(1), NOW) == Duplicate(1, NOW + 6)
    assert state.check(batch(2), NOW) == Duplicate(2, -1)


def test_transaction(state):
    put(state, batch(0, 2, pid=1))
    first = put(state, batch(0, 2, transactional=True))
    put(state, batch(0, 1, pid=8, transactional=True))
    put(state, batch(2, 2, transactional=True))
    assert state.first_open_transaction_offset == first
    assert refused(state, batch(4)) is ErrorCode.INVALID_TXN_STATE
    assert [each.transaction_start_offset for each in state.producers()] == [-1, 4, 2]
    end(state, coordinator_epoch=6)
    assert state.first_open_transaction_offset == 4
    assert end_refused(state, coordinator_epoch=5) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    put(state, batch(4))  # after a marker of the same epoch the sequence goes on
    end(state, pid=8, epoch=1)  # KIP-890: with the next epoch it begins anew
    assert refused(state, batch(1, pid=8, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert end_refused(state, pid=8) is ErrorCode.INVALID_PRODUCER_EPOCH
    put(state, batch(0, pid=8, epoch=1))
    assert state.first_open_transaction_offset is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_whose_epoch_a_marker_has(state, version):
    """The producer's own of versions 0 and 1, the next one of version 2; an administrator's abort
    is of version 0."""
    put(state, batch(0, epoch=3, transactional=True))
    assert end_refused(state, epoch=2, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
    if version < 2:
        end(state, epoch=3, version=version)
        put(state, batch(1, epoch=3, transactional=True))  # the sequence goes on
    else:
        assert end_refused(state, epoch=3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert state.transaction_start(7) == 0
        end(state, epoch=3, version=0)


def test_marker_retry_same_epoch_after_lost_reply(state):
    """KAFKA-19999: refused, the coordinator would send it for ever."""
    put(state, batch(0, epoch=3, transactional=True))
    end(state, epoch=4, version=2)
    end(state, epoch=4, version=2)
    put(state, batch(0, epoch=4, transactional=True))
    assert end_refused(state, epoch=4, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_zombie_coordinator_marker_52(state):
    end(state, coordinator_epoch=6)
    put(state, batch(0, transactional=True))
    assert end_refused(state, coordinator_epoch=5) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert state.transaction_start(7) >= 0
    end(state, coordinator_epoch=6)
    end(state, coordinator_epoch=7)


def test_sequence_zero_after_every_tv2_transaction(state):
    for epoch in range(4):
        put(state, batch(0, 2, epoch=epoch, transactional=True))
        put(state, batch(2, 2, epoch=epoch, transactional=True))
        end(state, epoch=epoch + 1, version=2)
        late = batch(4, epoch=epoch, transactional=True)
        assert refused(state, late) is ErrorCode.INVALID_PRODUCER_EPOCH
        odd = batch(4, epoch=epoch + 1, transactional=True)
        assert refused(state, odd) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_first_batch_of_a_producer_that_is_not_known(state):
    """KAFKA-18202: of version 2 it is number 0; otherwise it may be any."""
    state.check_first(batch(0, transactional=True), NOW)
    with pytest.raises(KafkaError) as caught:
        state.check_first(batch(3, transactional=True), NOW)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, batch(3, transactional=True))
    state.check_first(batch(4, transactional=True), NOW)


def test_the_first_batch_of_a_producer_that_has_expired(state):
    """And was not swept yet: as of one that is not known, unless its transaction is open."""
    put(state, batch(0, pid=8, transactional=True))
    put(state, batch(0))
    later = NOW + PRODUCER_EXPIRATION_MS
    state.check_first(batch(5, epoch=1, transactional=True), later - 1)  # `check` refuses it
    state.check_first(batch(0, epoch=1, transactional=True), later)
    state.check_first(batch(1, pid=8, transactional=True), later)
    with pytest.raises(KafkaError) as caught:
        state.check_first(batch(5, epoch=1, transactional=True), later)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_always_finds_room(state):
    """A transaction that cannot end would hold back every reader."""
    small = ProducerState(producers_max=1)
    put(small, batch(0, pid=1, transactional=True))
    end(small, pid=2)
    end(small, pid=1)
    assert small.first_open_transaction_offset is None


def test_a_control_batch_without_a_record_says_nothing(state):
    """What compaction left of a marker."""
    put(state, batch(0, transactional=True))
    state.append(marker(epoch=5), state.end_offset, NOW)
    assert state.transaction_start(7) == 0
    assert [each.producer_epoch for each in state.producers()] == [0]
    assert state.end_offset == 2


def test_only_the_epoch_of_the_transaction_is_in_it(state):
    put(state, batch(0, epoch=3, transactional=True))
    assert state.is_in_transaction(batch(1, epoch=3))
    assert not state.is_in_transaction(batch(0, epoch=4))
    assert not state.is_in_transaction(batch(0, pid=8, epoch=3))
    end(state, epoch=3)
    assert not state.is_in_transaction(batch(1, epoch=3))


def test_batches_without_sequence(state):
    """Offsets that a group coordinator writes for a transaction: an epoch, but no sequence."""
    put(state, batch(-1, epoch=2, transactional=True))
    put(state, batch(-1, epoch=2, transactional=True))
    assert state.first_open_transaction_offset == 0
    assert refused(state, batch(-1, epoch=1, transactional=True)) is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    put(state, batch(0, epoch=2, transactional=True))


def test_expire(state):
    put(state, batch(0, pid=1), NOW)
    put(state, batch(0, pid=2, transactional=True), NOW)
    put(state, batch(0, pid=3), NOW + 500)
    put(state, batch(0, pid=4), NOW - 200)  # the clock went back: late, but never early
    assert state.expire(NOW + 999, 1000) == 0
    assert state.expire(NOW + 1000, 1000) == 1
    assert [each.producer_id for each in state.producers()] == [2, 3, 4]
    assert state.expire(NOW + 10_000, 1000) == 2
    assert [each.producer_id for each in state.producers()] == [2]
    assert state.check(batch(50, pid=1), NOW) is None


def test_expired_but_not_swept(state):
    put(state, batch(0, epoch=5))
    put(state, batch(0, pid=8, epoch=5, transactional=True))
    later = NOW + PRODUCER_EXPIRATION_MS
    assert refused(state, batch(9, epoch=5), later - 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(batch(0, epoch=5), later) == Duplicate(0, -1)
    late = batch(9, epoch=2, transactional=True)
    assert state.check_unasked(late, later) is None, "its coordinator is asked"
    with pytest.raises(KafkaError, match="has epoch 5"):
        state.check_unasked(late, later - 1)
    put(state, batch(9, epoch=2), later)
    assert refused(state, batch(8, epoch=2), later) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(9, pid=8, epoch=5), later) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_who_is_known_is_never_forgotten_for_others():
    """10,000 other ids: an old producer's retry is still a duplicate, and new ones are refused."""
    state = ProducerState(producers_max=10_000, hot_max=10)
    put(state, batch(0, pid=1))
    for pid in range(2, 10_001):
        put(state, batch(0, pid=pid))
    for pid in range(10_001, 10_100):
        assert code_of_new(state, pid) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert len(state) == 10_000
    assert state.check(batch(0, pid=1), NOW) == Duplicate(0, -1)
    put(state, batch(1, pid=1))
    assert refused(state, batch(5, pid=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def code_of_new(state, pid, now_ms=NOW):
    with pytest.raises(KafkaError) as caught:
        state.check(batch(0, pid=pid), now_ms)
    return caught.value.code


def test_who_is_expired_gives_its_place():
    state = ProducerState(producers_max=3, hot_max=1)
    state.expire(NOW, 1000)
    put(state, batch(0, pid=1, transactional=True))
    put(state, batch(0, pid=2))
    put(state, batch(0, pid=3), NOW + 1)
    assert code_of_new(state, 4, NOW + 999) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    put(state, batch(0, pid=4), NOW + 1000)
    assert [each.producer_id for each in state.producers()] == [1, 3, 4]
    assert code_of_new(state, 5, NOW + 1000) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    put(state, batch(0, pid=5), NOW + 1001)
    assert [each.producer_id for each in state.producers()] == [1, 4, 5]


def test_a_broker_has_room_for_so_many():
    room = Room(3)
    states = [ProducerState(producers_max=100, hot_max=1) for _ in range(2)]
    put(states[0], batch(0, pid=1))
    for state in states:
        state.enter(room)
    for pid in (2, 3):
        put(states[1], batch(0, pid=pid))
    assert (room.count, room.refused_count) == (3, 0)
    for state in states:
        assert code_of_new(state, 9) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert room.refused_count == 2
    put(states[0], batch(1, pid=1))  # who is known goes on
    states[1].leave()
    assert room.count == 1
    put(states[0], batch(0, pid=9))
    assert states[0].expire(NOW + 5000, 1000) == 2
    assert room.count == 0


def full_state(count=1):
    """Of so many producers, 1 and on; they expire after a second."""
    state = ProducerState(producers_max=count)
    state.enter(Room(100))
    state.expire(NOW, 1000)
    for pid in range(1, count + 1):
        put(state, batch(0, pid=pid))
    return state


def test_who_was_refused_begins_with_what_was_refused_first():
    """Five batches are in flight when the first is refused; the second must not be taken before
    it, though there is room by then."""
    state = full_state()
    for first in (0, 1):
        assert refused(state, batch(first)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    state.producers_max += 1  # there is room, but for the first
    for first in (2, 1):
        assert refused(state, batch(first)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for first in range(3):
        put(state, batch(first))


def test_who_was_refused_in_the_middle_goes_on_there():
    """Its past was forgotten; numbers wrap, and the retries come in any order."""
    state = full_state()
    for first in (1, SEQUENCE_MAX, 0):
        assert refused(state, batch(first)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    state.producers_max += 1
    assert refused(state, batch(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for first in (SEQUENCE_MAX, 0, 1):
        put(state, batch(first))


def test_a_new_epoch_of_who_was_refused_begins_at_0():
    state = full_state()
    assert refused(state, batch(3, epoch=1)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    state.producers_max += 1
    assert refused(state, batch(3, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, batch(0, epoch=2))


def test_batches_without_numbers_do_not_wait():
    state = full_state()
    offsets = batch(-1, transactional=True)
    assert refused(state, offsets) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused(state, batch(4)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    state.producers_max += 1
    put(state, offsets)


def test_a_refusal_is_remembered_as_long_as_a_producer():
    state = full_state()
    assert refused(state, batch(0)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    room = state._store.room
    assert refused(state, batch(1), NOW + 999) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert room.noted_count == 1
    put(state, batch(1), NOW + 2000)
    assert room.noted_count == 0


@pytest.mark.parametrize("noted_max", [NOTES_MAX, 7])
def test_more_that_were_refused_than_are_remembered_begin_at_0(noted_max):
    """Of a partition, and of a broker. However many they are their order is kept."""
    state = full_state()
    room = state._store.room
    room.noted_max = min(noted_max, room.noted_max)
    pids = range(100, 100 + noted_max + 50)
    for pid in pids:
        assert refused(state, batch(0, pid=pid)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert room.noted_count == noted_max
    later = NOW + 1000 - 1
    state.producers_max = 1000
    room.count_max = 1000
    for pid in pids:
        header = batch(1, pid=pid)
        assert refused(state, header, later) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for pid in pids:
        for first in range(2):
            put(state, batch(first, pid=pid), later)
    assert room.noted_count == 0
    assert refused(state, batch(1, pid=99), later) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(state, batch(1, pid=99), NOW + 1000)
    state.check(batch(1, pid=98), NOW + 1000)


def test_refusals_end_with_the_tenure():
    state = full_state()
    assert refused(state, batch(0)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    room = state._store.room
    state.leave()
    assert (room.count, room.noted_count) == (0, 0)


def test_a_replay_refuses_nobody():
    state = ProducerState(producers_max=2)
    state.enter(Room(1))
    for pid in range(5):
        state.append(batch(0, pid=pid), pid, NOW)
    assert len(state) == 5


def test_memory_per_producer():
    """Of those that are not hot: bytes, and what finds them."""
    state = ProducerState(producers_max=5000, hot_max=10)
    headers = [batch(first) for first in range(6)]
    tracemalloc.start()
    for pid in range(5000):
        for header in headers:
            put(state, header._replace(producer_id=10**6 + pid))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(state) == 5000
    assert size / 5000 < 400


def test_expiry_looks_at_the_oldest_alone():
    """However many there are; what is to go goes in steps."""
    state = ProducerState(producers_max=3 * STEP_PRODUCERS)
    for pid in range(2 * STEP_PRODUCERS + 5):
        put(state, batch(0, pid=pid), NOW + pid // 5)
    assert state.expire(NOW + 1000, 1000) == 5
    assert state.expire(NOW + 1000, 1000) == 0
    assert [state.expire(NOW + 99_999, 1000) for _ in range(3)] == [
        STEP_PRODUCERS, STEP_PRODUCERS, 0,
    ]  # fmt: skip


def replay(state, headers, now_ms):
    for header in headers:
        state.append(header, header.base_offset, now_ms)


def test_replay_of_what_is_known_changes_nothing(state):
    headers = []
    for first in range(0, 40, 4):
        header = batch(first, 4)
        headers.append(header._replace(base_offset=put(state, header)))
    before = parts_of(state)
    replay(state, headers, NOW + 99)
    assert parts_of(state) == before
    rebuilt = ProducerState(producers_max=100)
    replay(rebuilt, headers, NOW)
    assert parts_of(rebuilt) == before


def test_replay_of_a_compacted_log(state):
    """Batches are missing: those that are left are recognised, the gap is not."""
    for first in (0, 10, 50, 60):
        state.append(batch(first, 10), first, NOW)
    assert state.check(batch(10, 10), NOW) == Duplicate(10, -1)
    assert state.check(batch(60, 10), NOW) == Duplicate(60, -1)
    for first in (20, 30, 40):
        assert refused(state, batch(first, 10)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def _filled() -> ProducerState:
    state = ProducerState(producers_max=100)
    for pid in (5, 3, 4):
        for first in range(0, 14, 2):
            put(state, batch(first, 2, pid=pid, epoch=pid, transactional=pid == 3), NOW + pid)
    end(state, pid=5, epoch=6, coordinator_epoch=2)
    put(state, batch(14, 1, pid=4, epoch=4), NOW, log_append_time_ms=NOW)
    return state


def test_snapshot_round_trip():
    state = _filled()
    [data] = parts_of(state)
    assert len(data) == 18 + 3 * 51 + 10 * 24
    other = ProducerState(producers_max=100)
    put(other, batch(0, pid=99))
    other.restore([memoryview(data)])
    assert list(other.producers()) == list(state.producers())
    assert parts_of(other) == [data]
    assert other.end_offset == state.end_offset
    assert other.first_open_transaction_offset == state.first_open_transaction_offset == 14
    assert other.check(batch(14, 1, pid=4, epoch=4), NOW) == Duplicate(43, NOW)
    assert refused(other, batch(0, 2, pid=4, epoch=4)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert other.expire(NOW + 1005, 1000) == 2  # not the one with the open transaction
    empty = ProducerState(producers_max=1)
    empty.restore(parts_of(empty))
    assert len(empty) == 0


def test_restore_into_a_smaller_one_forgets_nobody():
    small = ProducerState(producers_max=1)
    small.restore(parts_of(_filled()))
    assert [each.producer_id for each in small.producers()] == [3, 5, 4]
    assert code_of_new(small, 99) is ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.parametrize("count", [0, 1, PART_PRODUCERS_MAX, PART_PRODUCERS_MAX + 1, 45_000])
def test_snapshots_of_many_come_in_parts(count):
    """Each fits an entry; together they are the state, and no part alone or doubled is."""
    state = ProducerState(producers_max=100_000, hot_max=7)
    header = batch(0)
    for pid in range(count):
        state.append(header._replace(producer_id=pid), pid, NOW + pid)
    parts = parts_of(state)
    assert len(parts) == max(-(-count // PART_PRODUCERS_MAX), 1)
    assert max(map(len, parts)) < LogSettings().entry_bytes_max
    other = ProducerState(producers_max=1)
    steps = sum(1 for _ in other.restoring(parts))
    assert steps == count // STEP_PRODUCERS
    assert other.end_offset == state.end_offset == count
    assert len(other) == count
    assert parts_of(other) == parts
    if count:
        assert other.check(batch(0, pid=count - 1), NOW) == Duplicate(count - 1, -1)


def test_a_snapshot_is_of_the_moment_in_which_it_was_taken():
    """Its parts are encoded later, when others have appended."""
    state = ProducerState(producers_max=100_000, hot_max=7)
    header = batch(0)
    for pid in range(PART_PRODUCERS_MAX + 10):
        state.append(header._replace(producer_id=pid), pid, NOW)
    before = parts_of(state)
    parts = state.snapshot()
    for pid in (0, PART_PRODUCERS_MAX, PART_PRODUCERS_MAX + 9):
        put(state, batch(1, pid=pid))
    put(state, batch(0, pid=99_999))
    assert [part() for part in parts] == before
    assert parts_of(state) != before


def test_parts_of_two_snapshots_are_none():
    first, second = _filled(), _filled()
    put(second, batch(0, pid=99))
    with pytest.raises(WireError, match="end offsets"):
        first.restore([*parts_of(first), *parts_of(second)])
    assert parts_of(first) == parts_of(_filled())


def test_snapshot_damage_is_seen():
    [data] = parts_of(_filled())
    state = ProducerState(producers_max=10)
    put(state, batch(0, pid=99))
    before = parts_of(state)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(WireError, match="producer snapshot"):
            state.restore([damaged])
    for size in range(len(data)):
        with pytest.raises(WireError, match="producer snapshot"):
            state.restore([data[:size]])
    with pytest.raises(WireError, match="fails its CRC"):
        state.restore([data + b"\0"])
    with pytest.raises(WireError, match="has version 2, not 1"):
        state.restore([b"\0\2" + data[2:]])
    assert parts_of(state) == before


@given(data=st.binary(max_size=200))
def test_snapshot_of_any_bytes(data):
    with pytest.raises(WireError):
        ProducerState(producers_max=10).restore([data])

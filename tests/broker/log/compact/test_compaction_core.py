"""What a pass leaves of a log, by scenario; random logs are in test_compaction_core_random.py."""

import pytest

from broker.log.compact.aborted import TransactionPass
from broker.log.compact.compaction_core import Filter
from broker.log.compact.key_map import OpenAddressingKeyMap
from broker.log.compact.steps import CompactionError, Work, run_inline
from broker.log.transactions.aborted_index import AbortedTransaction
from tests.broker.log.compact.logs import (
    BASE_MS,
    RETENTION_MS,
    SIZE_MAX,
    DictKeyMap,
    Ledger,
    batch_of,
    compact,
    copy_pass,
    headers,
    map_pass,
    marker_of,
    parse_header,
    read_committed,
    rows,
    rules_for,
    table,
    transactional,
)
from wire.kafka.records.batch import (
    DELETE_HORIZON_MASK,
    TimestampType,
    build_batch,
    iter_records,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

END = batch_of(10**6, (b"the end", b"of the log"))  # so that no other batch is a ledger's last


def log_of(*batches, **more):
    return [Ledger([*batches, END], **more)]


def offsets(ledgers):
    return [row.offset for row in rows(ledgers) if row.offset < 10**6]


def first_kept(ledgers, **more):
    """What became of the first batch."""
    return compact(ledgers, **more).kept[0]


def test_last_value_per_key_survives():
    batches = [batch_of(n, (b"key %d" % (n % 7), b"%d" % n)) for n in range(50)]
    after = compact(log_of(*batches)).ledgers
    assert offsets(after) == list(range(43, 50))
    assert table(rows(after)) == table(rows(log_of(*batches)))


def test_offsets_timestamps_headers_unchanged():
    records = [
        Record(0, 50, b"dead", b"x"),
        Record(1, -7, b"a", b"1", [("h", b"1"), ("h", None), ("\udcff", b"")]),
        Record(2, 0, b"dead", b"x"),
        Record(3, 10**15, b"b", b"", [("", b"")]),
    ]
    batch = build_batch(records, base_offset=10, base_timestamp=BASE_MS, leader_epoch=4)
    log = log_of(batch, batch_of(20, (b"dead", b"now")))
    after = compact(log).ledgers
    assert rows(after) == [row for row in rows(log) if row.offset not in (10, 12)]
    header = headers(after)[0]
    assert header.base_timestamp == BASE_MS - 7  # that of the first record left
    assert header.max_timestamp == BASE_MS + 10**15
    assert header.partition_leader_epoch == 4


def test_untouched_batch_copied_byte_for_byte():
    batch = batch_of(0, (b"a", b"1"), (b"b", b"2"), compression=Compression.GZIP)
    copied = compact(log_of(batch))
    assert copied.ledgers[0].batches == [batch, END]
    assert not copied.kept[0].is_changed
    assert isinstance(copied.kept[0].data, memoryview)  # of the source
    assert not copied.facts[0].is_changed


def test_thinned_batch_keeps_last_delta_and_sequence():
    batch = batch_of(
        5,
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        producer_id=9,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        leader_epoch=7,
    )
    log = log_of(batch, batch_of(8, (b"a", b"new"), (b"c", b"new")))
    before, after = headers(log)[0], headers(compact(log).ledgers)[0]
    assert (after.base_offset, after.last_offset, after.record_count) == (5, 7, 1)
    assert (after.base_sequence, after.last_sequence) == (2**31 - 2, before.last_sequence)
    assert (after.producer_id, after.producer_epoch, after.partition_leader_epoch) == (9, 2, 7)
    assert after.size < before.size


@pytest.mark.parametrize("codec", Compression)
def test_same_key_twice_in_one_compressed_batch(codec):
    batch = batch_of(0, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), compression=codec)
    after = compact(log_of(batch)).ledgers
    assert offsets(after) == [1, 2]
    assert headers(after)[0].compression is codec


def test_empty_key_empty_value_null_value():
    batch = batch_of(0, (b"", b"1"), (b"a", b""), (b"b", None), (b"", b"2"), (b"a", b""))
    copied = compact(log_of(batch))
    assert offsets(copied.ledgers) == [2, 3, 4]
    assert copied.kept[0].tombstones == 1
    later = compact(copied.ledgers, now_ms=BASE_MS + RETENTION_MS)
    assert offsets(later.ledgers) == [3, 4]  # an empty value is a value


def test_keyless_refused_with_index_and_dropped_if_older():
    """That a compacted topic refuses them is validation's; older ones vanish."""
    batch = batch_of(0, (None, b"1"), (b"a", b"2"), (None, None))
    copied = compact(log_of(batch))
    assert offsets(copied.ledgers) == [1]
    assert (copied.kept[0].records_dropped, copied.kept[0].tombstones) == (2, 0)


def test_tombstone_stamped_then_kept_then_dropped():
    log = log_of(batch_of(0, (b"a", b"1")), batch_of(1, (b"a", None), (b"b", b"2")))
    first = compact(log)
    assert offsets(first.ledgers) == [1, 2]
    horizon_ms = BASE_MS + RETENTION_MS
    assert first.kept[1].is_stamped
    assert first.kept[1].horizon_ms == first.facts[0].min_horizon_ms == horizon_ms
    header = headers(first.ledgers)[0]
    assert (header.delete_horizon_ms, header.max_timestamp) == (horizon_ms, BASE_MS + 1)
    assert rows(first.ledgers) == rows(log)[1:]  # the timestamps, too

    before = compact(first.ledgers, now_ms=horizon_ms - 1)
    assert before.ledgers == first.ledgers
    assert before.facts[0].min_horizon_ms == horizon_ms
    after = compact(first.ledgers, now_ms=horizon_ms)
    assert offsets(after.ledgers) == [2]
    assert after.facts[0].min_horizon_ms == -1
    assert headers(after.ledgers)[0].delete_horizon_ms == horizon_ms  # once set it stays


def test_tombstone_horizon_not_renewed_by_rewrites():
    log = log_of(batch_of(0, (b"a", None), (b"b", b"1"), (b"c", b"2")))
    log = compact(log).ledgers
    for now_ms in (BASE_MS + 1, BASE_MS + 2):
        key = b"b" if now_ms == BASE_MS + 1 else b"c"
        log = [*log, Ledger([batch_of(10**6 + now_ms - BASE_MS, (key, b"new"))])]
        copied = compact(log, now_ms=now_ms)
        log = copied.ledgers
        assert copied.kept[0].is_changed
        assert not copied.kept[0].is_stamped
        assert copied.kept[0].horizon_ms == BASE_MS + RETENTION_MS


def test_no_resurrection_when_crash_between_groups():
    """A pass that ends after its first group, whatever the reason, leaves the tombstone's ledger as
    it was: the tombstone has no horizon, so the value goes in the next pass and it stays."""
    log = [
        Ledger([batch_of(0, (b"other", b"1"), (b"other", b"2"))]),
        Ledger([batch_of(2, (b"a", b"old"), (b"b", b"1"))]),
        Ledger([batch_of(4, (b"a", None), (b"b", b"2"))]),
    ]
    for done in range(4):
        key_map = DictKeyMap()
        mapping = map_pass(log, key_map)
        rules = rules_for(log, last_mapped=mapping.last_mapped)
        left = copy_pass(log, rules, key_map, groups=[1, 1, 1], groups_done=done).ledgers
        stamped = [header.delete_horizon_ms is not None for header in headers(left)]
        assert any(stamped) == (done == 3)
        for now_ms in (BASE_MS + RETENTION_MS, BASE_MS + 9 * RETENTION_MS):
            left = compact(left, now_ms=now_ms).ledgers
            assert table(rows(left)) == {b"other": b"2", b"b": b"2"}


def test_group_given_up_ends_pass_without_stamps():
    """Whoever goes on behind a group that was given up brings the deleted value back: this is what
    the rule is for. `Filter` gives no horizon to what it did not come to."""
    log = [Ledger([batch_of(0, (b"a", b"old"))]), Ledger([batch_of(1, (b"a", None))])]
    whole = compact(log).ledgers
    broken = [log[0], whole[1]]  # the first group given up, the second written
    broken = copy_pass(
        broken, rules_for(log, now_ms=BASE_MS + RETENTION_MS), None, groups=[1, 1]
    ).ledgers
    assert table(rows(broken)) == {b"a": b"old"}, "the oracle sees the mistake"
    ended = copy_pass(log, rules_for(log), DictKeyMap(), groups=[1, 1], groups_done=0).ledgers
    assert ended == log


def test_bit6_from_producer_is_ignored():
    """As if it were not set: the first pass keeps the tombstone and stamps it; and a batch that
    stays whole loses the bit, as its ledger will be one that a pass wrote."""
    tombstone = batch_of(0, (b"a", None), delete_horizon_ms=BASE_MS - 10**6)
    value = batch_of(1, (b"b", b"1"), delete_horizon_ms=BASE_MS - 10**6)
    log = log_of(tombstone, value)
    copied = compact(log)
    assert rows(copied.ledgers) == rows(log)
    first, second, _ = headers(copied.ledgers)
    assert first.delete_horizon_ms == BASE_MS + RETENTION_MS
    assert not second.attributes & DELETE_HORIZON_MASK
    assert copied.kept[1].is_changed
    newer = batch_of(3, (b"b", b"2"))
    thinned = batch_of(1, (b"b", b"1"), (b"c", b"1"), delete_horizon_ms=BASE_MS - 10**6)
    (header, *_) = headers(compact(log_of(thinned, newer)).ledgers)
    assert (header.record_count, header.delete_horizon_ms) == (1, None)
    partly = copy_pass(log, rules_for(log, last_mapped=-1), DictKeyMap())
    assert not any(header.attributes & DELETE_HORIZON_MASK for header in headers(partly.ledgers))


@pytest.mark.parametrize("codec", Compression)
def test_each_codec_rewritten_and_readable(codec):
    pairs = [(b"key %d" % (n % 40), b"value %d" % n * 9) for n in range(100)]
    log = log_of(batch_of(0, *pairs, compression=codec), batch_of(100, (b"key 5", None)))
    after = compact(log).ledgers
    assert table(rows(after)) == table(rows(log))
    assert headers(after)[0].compression is codec
    assert headers(after)[0].record_count == 39


def test_log_append_time_batch_thinned_max_timestamp():
    batch = batch_of(
        0,
        (b"a", b"1"),
        (b"b", b"2"),
        (b"a", None),
        timestamps=[5, 900, 7],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=BASE_MS + 50,
    )
    log = log_of(batch)
    copied = compact(log)
    header = headers(copied.ledgers)[0]
    assert header.max_timestamp == BASE_MS + 50
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert rows(copied.ledgers) == rows(log)[1:]
    kept = copied.kept[0]
    assert (kept.max_timestamp, kept.max_timestamp_offset) == (BASE_MS + 50, 1)
    # Nobody looks at the deltas of such a batch; they tell the append time all the same.
    records = iter_records(kept.data, header, size_max=SIZE_MAX)
    deltas = {header.base_timestamp + record.timestamp_delta for record in records}
    assert deltas == {BASE_MS + 50}


def test_max_timestamp_is_that_of_what_is_left():
    batch = batch_of(0, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), timestamps=[900, 5, 70])
    log = log_of(batch, batch_of(3, (b"a", b"new"), timestamps=[-50]))
    copied = compact(log)
    assert headers(copied.ledgers)[0].max_timestamp == BASE_MS + 70
    kept = copied.kept[0]
    assert (kept.max_timestamp, kept.max_timestamp_offset) == (BASE_MS + 70, 2)
    assert copied.facts[0].max_timestamp_offset == 2


def test_range_end_placeholder():
    """22: a ledger ends where its sources did, with 61 bytes on which nobody's state hangs."""
    last = transactional(
        1, 7, (b"a", b"old"), (b"b", b"old"), compression=Compression.ZSTD, leader_epoch=3
    )
    log = [
        Ledger([batch_of(0, (b"a", b"older")), last]),
        Ledger([marker_of(3, 7, committed=True), batch_of(4, (b"a", b"1"), (b"b", b"2"))]),
    ]
    copied = compact(log)
    (placeholder,) = copied.ledgers[0].batches
    header = parse_header(placeholder)
    assert len(placeholder) == 61
    assert (header.base_offset, header.last_offset, header.record_count) == (1, 2, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.attributes, header.base_timestamp) == (0, -1)
    assert header.max_timestamp == parse_header(last).max_timestamp
    assert header.partition_leader_epoch == 3
    assert copied.facts[0].record_count == 0
    assert copied.facts[0].max_timestamp == -1
    # It stays as it is in the next pass.
    assert compact(copied.ledgers).ledgers[0].batches == [placeholder]


def test_group_emptied_joins_neighbour():
    """23: joined with the next ledger, nothing of an emptied one is left."""
    log = [Ledger([batch_of(0, (b"a", b"1"))]), Ledger([batch_of(1, (b"a", b"2"))])]
    copied = compact(log)
    assert [facts.record_count for facts in copied.facts] == [0, 1]
    joined = compact(copied.ledgers, groups=[2]).ledgers
    assert [(ledger.base, len(ledger.batches)) for ledger in joined] == [(1, 1)]


def test_map_full_mid_ledger_two_passes_equal_one():
    """The first ledger has more keys than the map; passes go on where the last one ended."""
    pairs = [(b"key %d" % (n % 17), None if n % 5 == 0 else b"%d" % n) for n in range(60)]
    log = [
        Ledger([batch_of(n, *pairs[n : n + 4]) for n in range(start, start + 20, 4)])
        for start in (0, 20, 40)
    ]
    one = compact(log).ledgers
    for keys_max in (1, 3, 6):
        left, start, passes = log, 0, 0
        while start <= 59:
            key_map = OpenAddressingKeyMap(24 * 31, hash_key=bytes(16))
            key_map._keys_max = keys_max
            mapping = map_pass(left, key_map, start)
            assert mapping.last_mapped >= start, "every pass gets on"
            assert mapping.is_full == (mapping.last_mapped < 59)
            rules = rules_for(left, last_mapped=mapping.last_mapped)
            left = copy_pass(left, rules, key_map).ledgers
            start = mapping.last_mapped + 1
            passes += 1
        assert passes > 1
        assert [row.offset for row in rows(left)] == [row.offset for row in rows(one)]


def test_more_keys_in_first_ledger_than_map():
    log = log_of(batch_of(0, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4")))
    key_map = DictKeyMap(1)
    mapping = map_pass(log, key_map)
    assert (mapping.is_full, mapping.last_mapped) == (True, 0)
    assert offsets(compact(log, DictKeyMap(1)).ledgers) == [0, 1, 2, 3]
    assert offsets(compact(log, DictKeyMap(1), start_offset=2).ledgers) == [1, 2, 3]


def test_nothing_behind_the_map_is_stamped():
    """A tombstone behind what is mapped may still cover an older value; the horizon is the batch's,
    so one such tombstone keeps it away."""
    log = log_of(batch_of(0, (b"a", None), (b"b", None)))
    key_map = DictKeyMap()
    map_pass(log, key_map)
    for last_mapped, is_stamped in ((-1, False), (0, False), (1, True)):
        copied = copy_pass(log, rules_for(log, last_mapped=last_mapped), key_map)
        assert copied.kept[0].is_stamped == is_stamped
        assert offsets(copied.ledgers) == [0, 1]


def test_horizon_pass_stamps_nothing():
    stamped = compact(log_of(batch_of(0, (b"a", None), (b"b", b"1")))).ledgers[0]
    plain = Ledger([batch_of(10**6 + 1, (b"c", None), (None, b"x"), (b"b", b"2"))])
    log = [stamped, plain]
    early = copy_pass(log, rules_for(log, now_ms=BASE_MS + RETENTION_MS - 1), None)
    assert not any(kept.is_changed for kept in early.kept)
    copied = copy_pass(log, rules_for(log, now_ms=BASE_MS + RETENTION_MS), None)
    assert [row.offset for row in rows(copied.ledgers)] == [1, *range(10**6, 10**6 + 4)]
    assert not any(kept.is_stamped for kept in copied.kept)
    assert [kept.is_changed for kept in copied.kept] == [True, False, False]


def aborted_log():
    """Producer 7 aborts a, then commits b; the log start of its second transaction is 3."""
    return [
        Ledger(
            [
                transactional(0, 7, (b"a", b"aborted"), (b"b", b"aborted")),
                marker_of(2, 7, committed=False),
                transactional(3, 7, (b"b", b"1")),
                marker_of(4, 7, committed=True),
                END,
            ],
            aborted=[AbortedTransaction(7, 0, 2, 2)],
        )
    ]


def test_aborted_data_gone_marker_stays_then_goes():
    first = compact(aborted_log())
    assert offsets(first.ledgers) == [2, 3, 4]
    assert not first.kept[1].is_changed  # the marker: its data was seen
    assert first.ledgers[0].aborted == [AbortedTransaction(7, 0, 2, 2)]
    second = compact(first.ledgers)
    assert offsets(second.ledgers) == [2, 3, 4]
    assert second.kept[0].is_stamped
    assert second.kept[0].horizon_ms == BASE_MS + RETENTION_MS
    assert second.ledgers[0].aborted == []
    assert not second.kept[2].is_changed  # that of the committed data
    third = compact(second.ledgers, now_ms=BASE_MS + RETENTION_MS - 1)
    assert third.ledgers == second.ledgers
    fourth = compact(second.ledgers, now_ms=BASE_MS + RETENTION_MS)
    assert offsets(fourth.ledgers) == [3, 4]


def test_index_entry_implies_marker_committed_after_abort_visible():
    log = aborted_log()
    for now_ms in range(BASE_MS, BASE_MS + 5 * RETENTION_MS, RETENTION_MS):
        log = compact(log, now_ms=now_ms).ledgers
        assert table(read_committed(log)) == {b"b": b"1", b"the end": b"of the log"}
    assert read_committed(log)[0].offset == 3
    kept_too_long = [Ledger(log[0].batches, True, [AbortedTransaction(7, 0, 2, 2)])]
    assert b"b" not in table(read_committed(kept_too_long)), "an entry without marker hides data"


@pytest.mark.parametrize("committed", [False, True])
def test_marker_behind_the_range_still_decides(committed):
    """33: of a transaction whose data is in the pass and whose marker is not."""
    aborted = [] if committed else [AbortedTransaction(7, 1, 3, 1)]
    log = [
        Ledger([batch_of(0, (b"a", b"old")), transactional(1, 7, (b"a", b"new"), (b"b", b"2"))]),
        Ledger([marker_of(3, 7, committed=committed), END], aborted=aborted),
    ]
    copied = compact(log, ledger_count=1)
    assert offsets(copied.ledgers) == ([1, 2, 3] if committed else [0, 3])
    assert copied.ledgers[1] is log[1]
    # Its data is not there in the next pass, so the marker goes; that of committed data stays.
    second = compact(copied.ledgers)
    assert second.kept[-2].is_stamped != committed
    assert table(read_committed(second.ledgers)) == table(read_committed(log))


def test_transaction_over_three_groups():
    """34: data seen in the first group holds the marker in the third; KAFKA-8351."""
    log = [
        Ledger([transactional(0, 7, (b"a", b"1")), batch_of(1, (b"x", b"1"))]),
        Ledger([transactional(2, 8, (b"b", b"1")), batch_of(3, (b"y", b"1"))]),
        Ledger([marker_of(4, 7, committed=False), marker_of(5, 8, committed=True), END]),
    ]
    log[2].aborted = [AbortedTransaction(7, 0, 4, 0)]
    copied = compact(log)
    assert offsets(copied.ledgers) == [1, 2, 3, 4, 5]
    assert [kept.is_changed for kept in copied.kept[-3:]] == [False, False, False]
    assert [ledger.aborted for ledger in copied.ledgers] == [[], [], log[2].aborted]
    second = compact(copied.ledgers)
    assert [kept.is_stamped for kept in second.kept] == [False, False, False, True, False, False]


def test_idempotent_producer_goes_on_after_compaction_and_takeover():
    """35: the last data batch of an active producer stays as a header that tells its sequence."""
    data = batch_of(
        0, (b"a", b"1"), (b"b", b"1"), producer_id=9, producer_epoch=4, base_sequence=10
    )
    log = log_of(data, batch_of(2, (b"a", b"2"), (b"b", b"2")))
    active = compact(log, last_data_offsets={9: 1})
    header = headers(active.ledgers)[0]
    assert (header.record_count, header.size, header.last_offset) == (0, 61, 1)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (9, 4, 11)
    again = compact(active.ledgers, last_data_offsets={9: 1})
    assert not again.kept[0].is_changed
    assert compact(active.ledgers).kept[0].data is None  # it expired
    for last_data_offsets in ({9: 0}, {9: 77}, {8: 1}):
        assert compact(log, last_data_offsets=last_data_offsets).kept[0].data is None


def test_producer_only_markers_epoch_kept():
    """36: of a producer that has markers only, those of its present epoch stay as headers."""
    log = log_of(*(marker_of(n, 7, committed=False, epoch=n) for n in range(2)))
    log = compact(log).ledgers
    due = BASE_MS + RETENTION_MS
    assert offsets(compact(log, now_ms=due).ledgers) == []
    kept = compact(log, now_ms=due, marker_epochs={7: 1}).kept
    assert [one.data and len(one.data) for one in kept[:2]] == [None, 61]
    header = parse_header(kept[1].data)
    assert (header.is_control, header.is_transactional, header.producer_epoch) == (True, True, 1)
    assert header.delete_horizon_ms is None
    assert kept[1].horizon_ms == -1
    # A header alone ends no transaction: it is judged as a marker without data.
    again = compact([Ledger([bytes(kept[1].data), END], True)], marker_epochs={7: 1})
    assert not again.kept[0].is_changed
    with_data = compact(log, now_ms=due, marker_epochs={7: 1}, last_data_offsets={7: 900})
    assert with_data.kept[1].data is None


def test_the_end_of_the_log_is_not_lost():
    """KAFKA-17076: the batch that ends at the high watermark stays, its producer, too."""
    log = [Ledger([batch_of(0, (b"a", None), producer_id=5, producer_epoch=0, base_sequence=3)])]
    log = compact(log).ledgers
    copied = compact(log, now_ms=BASE_MS + RETENTION_MS, high_watermark=1)
    (header,) = headers(copied.ledgers)
    assert (header.record_count, header.producer_id, header.base_sequence) == (0, 5, 3)


def test_records_below_the_log_start_go():
    log = log_of(batch_of(0, (b"a", b"1")), batch_of(1, (b"b", b"2"), (b"c", b"3")))
    assert offsets(compact(log, log_start=2).ledgers) == [2]
    log = aborted_log()
    copied = compact(log, log_start=3)
    assert offsets(copied.ledgers) == [3, 4]
    assert copied.ledgers[0].aborted == []


def test_batch_larger_than_max_message_bytes():
    """55: what bounds a batch is what is given, not the topic's setting of today."""
    large = batch_of(0, (b"a", bytes(100_000)), (b"b", b"2"), compression=Compression.GZIP)
    log = log_of(large, batch_of(2, (b"a", b"3")))
    assert offsets(compact(log).ledgers) == [1, 2]
    with pytest.raises(CompactionError, match="offset 0: gzip data is larger than 5000 bytes"):
        compact(log, size_max=5000)


def test_batches_without_records_are_normal():
    """KAFKA-6854, 7385: and whole ledgers of them."""
    empty = build_batch([], base_offset=3, last_offset_delta=4)
    log = [Ledger([empty]), Ledger([END])]
    copied = compact(log)
    assert headers(copied.ledgers)[0].last_offset == 7
    assert compact(log, groups=[2]).ledgers == [Ledger([END], True)]


def test_a_horizon_beyond_all_time_is_bounded():
    log = log_of(batch_of(0, (b"a", None)))
    copied = compact(log, delete_retention_ms=2**63 - 1)
    assert copied.kept[0].horizon_ms == 2**63 - 1


def test_a_filter_takes_batches_in_order_only():
    copying = Filter(rules_for(log_of()), DictKeyMap(), TransactionPass())
    for batch, is_right in ((batch_of(5, (b"a", b"1")), True), (batch_of(5, (b"a", b"1")), False)):
        steps = copying.keep(
            memoryview(batch), parse_header(batch), is_compacted=False, is_range_end=False
        )
        if is_right:
            run_inline(steps)
        else:
            with pytest.raises(CompactionError, match="offset 5: batch lies behind"):
                run_inline(steps)


def test_large_batches_come_in_steps():
    """No step is more than 256 records or one call of a codec."""
    pairs = [(b"key %d" % n, b"v") for n in range(2000)]
    batch = batch_of(0, *pairs, compression=Compression.LZ4)
    log = log_of(batch, batch_of(2000, (b"key 0", b"x")))
    key_map = DictKeyMap()
    map_pass(log, key_map)
    copying = Filter(rules_for(log), key_map, TransactionPass())
    steps = copying.keep(
        memoryview(batch), parse_header(batch), is_compacted=False, is_range_end=False
    )
    seen, answer = [], None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            break
        answer = step.run() if isinstance(step, Work) else None
        seen.append(step)
    units = [step for step in seen if not isinstance(step, Work)]
    assert max(units) <= 256
    assert sum(units) >= 3999  # each is looked at once, and moved once as its base changes
    assert len(seen) - len(units) == 2


def test_markers_behind_the_map_get_no_horizon():
    log = log_of(marker_of(0, 7, committed=True), marker_of(1, 8, committed=False))
    for last_mapped, stamped in ((-1, []), (0, [0]), (1, [0, 1])):
        copied = copy_pass(log, rules_for(log, last_mapped=last_mapped), DictKeyMap())
        assert [n for n, kept in enumerate(copied.kept) if kept.is_stamped] == stamped
        assert offsets(copied.ledgers) == [0, 1]


#: What is dropped of a batch of three offset deltas, and what else is known of it -> what its
#: header says afterwards: (records, base offset, last offset), None if it is gone. As Kafka's
#: MemoryRecords.filterTo has it with DELETE_EMPTY and RETAIN_EMPTY.
FILTER_TO = [
    # (offset deltas, last delta, dropped, facts, expected)
    ((0, 1, 2), 2, (), {}, (3, 10, 12)),
    ((0, 1, 2), 2, (0,), {}, (2, 10, 12)),
    ((0, 1, 2), 2, (2,), {}, (2, 10, 12)),
    ((0, 1, 2), 2, (0, 2), {}, (1, 10, 12)),
    ((0, 1, 2), 2, (0, 1, 2), {}, None),
    ((0, 1, 2), 2, (0, 1, 2), {"last_data_offsets": {4: 12}}, (0, 10, 12)),
    ((0, 1, 2), 2, (0, 1, 2), {"last_data_offsets": {4: 11}}, None),
    ((0, 1, 2), 2, (0, 1, 2), {"last_data_offsets": {5: 12}}, None),
    ((0, 1, 2), 2, (0, 1, 2), {"high_watermark": 13}, (0, 10, 12)),
    ((0, 1, 2), 2, (0, 1, 2), {"high_watermark": 12}, None),
    ((0, 1, 2), 2, (0, 1, 2), {"marker_epochs": {4: 1}}, None),  # it has data, and is not control
    # A log that was compacted before: holes within, and behind the last record.
    ((1, 4, 7), 9, (), {}, (3, 10, 19)),
    ((1, 4, 7), 9, (4,), {}, (2, 10, 19)),
    ((1, 4, 7), 9, (1, 4, 7), {}, None),
    ((1, 4, 7), 9, (1, 4, 7), {"last_data_offsets": {4: 19}}, (0, 10, 19)),
    ((1, 4, 7), 9, (1, 4, 7), {"last_data_offsets": {4: 17}}, None),
    ((), 9, (), {}, None),
    ((), 9, (), {"last_data_offsets": {4: 19}}, (0, 10, 19)),
]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("time", TimestampType)
@pytest.mark.parametrize(("deltas", "last_delta", "dropped", "facts", "expected"), FILTER_TO)
def test_filter_to(deltas, last_delta, dropped, facts, expected, time, codec):
    batch = batch_of(
        10,
        *((b"%d" % delta, b"v") for delta in deltas),
        deltas=deltas,
        last_offset_delta=last_delta,
        compression=codec if deltas else Compression.NONE,
        timestamp_type=time,
        max_timestamp=BASE_MS + 40 if time or not deltas else None,
        producer_id=4,
        producer_epoch=1,
        base_sequence=100,
        leader_epoch=6,
    )
    newer = [batch_of(100 + delta, (b"%d" % delta, b"new")) for delta in dropped]
    log = log_of(batch, *newer)
    copied = compact(log, **facts)
    kept = copied.kept[0]
    if expected is None:
        assert kept.data is None
        return
    header = parse_header(kept.data)
    assert (header.record_count, header.base_offset, header.last_offset) == expected
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 100)
    assert header.last_sequence == 100 + last_delta
    assert (header.partition_leader_epoch, header.timestamp_type) == (6, time)
    left = [row for row in rows(log)[: len(deltas)] if row.offset - 10 not in dropped]
    assert rows(copied.ledgers)[: len(left)] == left
    times = [row.timestamp for row in left]
    if time or not times:
        assert header.max_timestamp == BASE_MS + (40 if time or not deltas else len(deltas) - 1)
    else:
        assert header.max_timestamp == max(times)


def test_facts_of_a_ledger_add_up():
    """The earliest horizon and the latest timestamp of two ledgers that are joined."""
    first = compact([Ledger([batch_of(0, (b"a", None), timestamps=[50])])]).ledgers[0]
    second = Ledger([batch_of(1, (b"b", None), (b"c", b"1"), timestamps=[10, 50])])
    second = compact([second], now_ms=BASE_MS + 5).ledgers[0]
    for log in ([first, second], [second, first]):
        if log[0] is second:  # the same with their offsets exchanged
            early = batch_of(3, (b"a", None), timestamps=[50])
            log = [second, compact([Ledger([early])]).ledgers[0]]
        (facts,) = compact(log, now_ms=BASE_MS + 6, groups=[2]).facts
        assert facts.min_horizon_ms == BASE_MS + RETENTION_MS
        assert facts.max_timestamp == BASE_MS + 50
        assert facts.max_timestamp_offset == (0 if log[0] is first else 2)
        assert (facts.record_count, facts.batch_count, facts.records_dropped) == (3, 2, 0)
        assert facts.size_bytes == sum(len(batch) for ledger in log for batch in ledger.batches)

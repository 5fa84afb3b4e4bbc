"""Random logs against the oracle on lists, and against what consumers read."""

import random
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.compact.key_map import OpenAddressingKeyMap, size_for
from tests.broker.log.compact.logs import (
    BASE_MS,
    RETENTION_MS,
    DictKeyMap,
    Ledger,
    LogMaker,
    all_aborted,
    batch_of,
    compact,
    copy_pass,
    end_of,
    expected_rows,
    headers,
    is_covered,
    map_pass,
    marker_in,
    parse_header,
    read_by_lists,
    read_committed,
    rows,
    rules_for,
    table,
)

seeds = st.integers(0, 2**32)


class OneByteMap(DictKeyMap):
    """A map whose hash is much too short: what a collision does."""

    def put(self, key, offset):
        super().put(blake2b(key, digest_size=1).digest(), offset)

    def get(self, key):
        return super().get(blake2b(key, digest_size=1).digest())


def make_map(rng, keys_max):
    if rng.random() < 0.5:
        return DictKeyMap(keys_max)
    made = OpenAddressingKeyMap(24 * 64, hash_key=rng.randbytes(16))
    made._keys_max = min(made._keys_max, keys_max)
    return made


def check_pass(before, after, start_offset, last_mapped, now_ms):
    """The copied ledgers hold what the table says, and consumers read the same tables."""
    expected = expected_rows(
        before, start_offset=start_offset, last_mapped=last_mapped, now_ms=now_ms
    )
    assert [row for row in rows(after) if not row.is_control] == expected
    check_index(after)


def check_index(ledgers):
    """Aborted index entry => marker kept; aborted data kept (only headers are) => entry."""
    markers = {
        (parse_header(batch).producer_id, parse_header(batch).base_offset)
        for ledger in ledgers
        for batch in ledger.batches
        if parse_header(batch).is_control and parse_header(batch).record_count
        if not marker_in(batch).committed
    }
    for ledger in ledgers:
        for entry in ledger.aborted:
            assert (entry.producer_id, entry.last_offset) in markers
            assert ledger.base <= entry.last_offset <= ledger.last


def cut(rng, count):
    """`count` ledgers in groups."""
    groups = []
    while count:
        groups.append(rng.randint(1, min(3, count)))
        count -= groups[-1]
    return groups


@given(seeds, st.integers(0, 40), st.sampled_from([1, 2, 3, 100]))
def test_a_pass_leaves_what_the_oracle_says(seed, steps, keys_max):
    """Several passes over one log, each over another part, some with a small map, some of them
    broken off between groups; after each what is left is right, and so is what consumers read."""
    rng = random.Random(seed)
    log = LogMaker(rng).make(steps)
    original = log
    now_ms, cleaned_to, end = BASE_MS, 0, end_of(log)
    for _ in range(6):
        now_ms += rng.choice([1, RETENTION_MS // 2, RETENTION_MS])
        start = rng.choice([cleaned_to, cleaned_to, 0])
        key_map = make_map(rng, keys_max)
        first_dirty = sum(ledger.last < start for ledger in log)
        mapping = map_pass(log, key_map, start, rng.randint(first_dirty, len(log)) or 1)
        last_mapped = mapping.last_mapped
        assert last_mapped >= start - 1
        copied_count = sum(ledger.base <= last_mapped for ledger in log)
        groups = cut(rng, copied_count)
        rules = rules_for(log, now_ms=now_ms, last_mapped=last_mapped, high_watermark=end_of(log))
        whole = copy_pass(log, rules, key_map, groups=groups).ledgers
        # Ledgers behind the last group are as they were; the oracle looks at the others.
        written = whole[: len(groups)]
        expected = expected_rows(log, start_offset=start, last_mapped=last_mapped, now_ms=now_ms)
        expected = [row for row in expected if row.offset <= log[copied_count - 1].last]
        assert [row for row in rows(written) if not row.is_control] == expected
        check_index(whole)
        done = rng.randint(0, len(groups))
        if done < len(groups) and rng.random() < 0.3:
            log = copy_pass(log, rules, key_map, groups=groups, groups_done=done).ledgers
        else:
            log = whole
            cleaned_to = max(cleaned_to, last_mapped + 1)
        check_index(log)
        assert end_of(log) == end
        keyed = [row for row in read_committed(original) if row.key is not None]
        seen = read_committed(log)
        assert table(seen) == table(keyed)
        for offset in (0, rng.randint(0, end), rng.randint(0, end)):
            assert read_by_lists(log, offset) == read_committed(log, offset)
        originals = {row.offset: row for row in rows(original)}
        assert all(originals[row.offset] == row for row in rows(log))
        entries = all_aborted(original)
        assert not [row for row in seen if is_covered(entries, row)]


@given(seeds, st.integers(0, 40))
def test_a_reader_sees_every_deletion(seed, steps):
    """A reader that was at any offset when a pass began, and reads to the end before the horizons
    of that pass come, has the full log's table at the end."""
    rng = random.Random(seed)
    log = original = LogMaker(rng).make(steps)
    now_ms = BASE_MS
    keeps = read_committed(original)
    for _ in range(4):
        position = rng.randint(0, end_of(log))
        seen = {row.key: row for row in read_committed(log) if row.offset < position}
        now_ms += RETENTION_MS // 2
        done = compact(log, now_ms=now_ms, ledger_count=rng.randint(1, len(log))).ledgers
        later = now_ms + RETENTION_MS - 1
        after = compact(done, now_ms=later).ledgers if rng.random() < 0.5 else done
        for row in read_committed(after, position):
            if row.offset >= position:
                seen[row.key] = row
        state = {
            key: row.value for key, row in seen.items() if key is not None and row.value is not None
        }
        assert state == table(row for row in keeps if row.key is not None)
        log, now_ms = after, later + RETENTION_MS


@given(seeds, st.integers(0, 30))
def test_passes_come_to_an_end(seed, steps):
    """At last nothing changes any more. No tombstone and no index entry is left, no marker but
    those that commit data which is there, and no empty header but those that end a ledger."""
    rng = random.Random(seed)
    log = LogMaker(rng).make(steps)
    now_ms = BASE_MS
    for _ in range(4):
        log = compact(log, now_ms=now_ms).ledgers
        now_ms += RETENTION_MS
    copied = compact(log, now_ms=now_ms + RETENTION_MS)
    assert not any(kept.is_changed for kept in copied.kept)
    left = rows(log)
    assert not [row for row in left if row.value is None]
    committed = {row.producer_id for row in left if row.is_transactional and not row.is_control}
    for row in left:
        assert not row.is_control or (row.producer_id in committed and row.key[3] == 1)
    assert not all_aborted(log)
    ends = {ledger.last for ledger in log}
    assert all(header.record_count or header.last_offset in ends for header in headers(log))
    assert all(facts.min_horizon_ms == -1 for facts in copied.facts)


@given(seeds, st.integers(0, 40))
def test_a_horizon_pass_is_a_pass_without_a_map(seed, steps):
    """62: after a whole pass, a horizon pass leaves what a pass with a map would."""
    rng = random.Random(seed)
    log = LogMaker(rng).make(steps)
    log = compact(log, now_ms=BASE_MS).ledgers
    log = compact(log, now_ms=BASE_MS + 1).ledgers
    now_ms = BASE_MS + 1 + RETENTION_MS
    with_map = compact(log, now_ms=now_ms).ledgers
    without = copy_pass(log, rules_for(log, now_ms=now_ms, last_mapped=-1), None)
    assert [ledger.batches for ledger in without.ledgers] == [ledger.batches for ledger in with_map]
    assert not any(kept.is_stamped for kept in without.kept)


def test_hash_collision_model():
    """59: a map whose hash is too short loses records, and the oracle sees it."""
    batches = [batch_of(n, (b"key %d" % n, b"value")) for n in range(300)]
    log = [Ledger(batches)]
    right = OpenAddressingKeyMap(size_for(300), hash_key=b"sixteen bytes of")
    check_pass(log, compact(log, right).ledgers, 0, 299, BASE_MS)
    with pytest.raises(AssertionError):
        check_pass(log, compact(log, OneByteMap()).ledgers, 0, 299, BASE_MS)

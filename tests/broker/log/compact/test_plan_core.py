"""What is due to be compacted, ledger by ledger, without a read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.compact import plan_core
from broker.log.compact.plan_core import (
    ABORTED_MAX,
    LEDGERS_PER_STEP,
    SOURCES_MAX,
    SPAN_MAX,
    Blocker,
    Due,
    PlanSettings,
    planning,
)
from broker.log.compact.steps import run_inline
from broker.log.life.chain import Chain
from broker.log.life.deletions import DELETING_MAX
from broker.log.life.ledger_info import LedgerInfo

FOREVER = (1 << 63) - 1
NOW = 1_000_000
SETTINGS = PlanSettings(
    is_compacted=True,
    is_deleted=False,
    min_cleanable_dirty_ratio=0.5,
    min_compaction_lag_ms=0,
    max_compaction_lag_ms=FOREVER,
    segment_bytes=1000,
    segment_ms=604_800_000,
    retention_ms=-1,
)


def ledger(number, *, size=100, span=10, newest_ms=None, created_ms=NOW - 1000, **facts):
    """The `number`th, of so many offsets each."""
    newest = created_ms if newest_ms is None else newest_ms
    base = number * span
    return LedgerInfo(
        number, base, 0, created_ms, base + span - 1, 5, size, max_timestamp=newest, **facts
    )


def chain_of(ledgers, *, cleaned_to=0, is_open=False):
    if is_open:
        ledgers = [*ledgers, LedgerInfo(999, ledgers[-1].end_offset if ledgers else 0, 0, NOW)]
    return Chain(0, 0, tuple(ledgers), cleaned_to=cleaned_to)


def plan(chain, now_ms=NOW, lso=None, is_asked=False, **settings):
    steps = planning(
        chain,
        replace(SETTINGS, **settings),
        now_ms=now_ms,
        last_stable_offset=FOREVER if lso is None else lso,
        is_asked=is_asked,
    )
    return run_inline(steps)


def all_steps(steps):
    """What they return, and how much each did."""
    units = []
    while True:
        try:
            units.append(next(steps))
        except StopIteration as done:
            return done.value, units


def make_groups(*args, **options):
    return all_steps(plan_core.make_groups(*args, **options))[0]


def ids(found):
    return [list(group.source_ids) for group in found.groups]


def test_dirty_ratio_strict_and_max_lag_trigger():
    half = chain_of([ledger(0), ledger(1)], cleaned_to=10)
    assert plan(half).ratio == 0.5
    assert plan(half).due is None
    more = chain_of([ledger(0), ledger(1, size=101)], cleaned_to=10)
    assert plan(more).due is Due.RATIO
    assert (plan(more).first_dirty, plan(more).end, ids(plan(more))) == (10, 20, [[0, 1]])
    assert plan(more, min_cleanable_dirty_ratio=1.0).due is None
    assert plan(half, max_compaction_lag_ms=1000).due is None
    late = plan(half, max_compaction_lag_ms=999)
    assert (late.due, late.delay_ms) == (Due.LAG, 1)
    # It is the age of the oldest dirty one: the clean one is older, and the newest is not.
    ages = [ledger(n, created_ms=NOW - age) for n, age in enumerate((9000, 500, 1))]
    three = chain_of(ages, cleaned_to=10)
    assert plan(three, max_compaction_lag_ms=400, min_cleanable_dirty_ratio=1.0).delay_ms == 100
    clean = chain_of([ledger(0), ledger(1)], cleaned_to=20)
    assert plan(clean, max_compaction_lag_ms=1).due is None
    assert plan(clean, max_compaction_lag_ms=1).delay_ms == 0


def test_the_lag_counts_from_when_a_ledger_was_made_not_from_its_records_times():
    old_records = chain_of([ledger(0), ledger(1, newest_ms=5)], cleaned_to=10)
    assert plan(old_records, max_compaction_lag_ms=5000).due is None


def test_a_topic_that_is_not_compacted_is_never_due():
    assert plan(chain_of([ledger(0)]), is_asked=True, is_compacted=False).due is None


def test_min_lag_stops_at_ledger():
    young = chain_of([ledger(0), ledger(1, newest_ms=NOW - 10), ledger(2)])
    found = plan(young, min_compaction_lag_ms=100)
    assert (found.end, found.blocked_by, ids(found)) == (10, Blocker.MIN_LAG, [[0]])
    assert plan(young, min_compaction_lag_ms=10).blocked_by is None
    # What is clean was old enough once: an empty batch may have kept the time of what is gone.
    assert plan(replace(young, cleaned_to=20), min_compaction_lag_ms=100).end == 30
    # Without times: when the next ledger was made, or when it must have been closed.
    untimed = chain_of([ledger(0, newest_ms=-1), ledger(1, created_ms=NOW - 50, newest_ms=NOW)])
    assert plan(untimed, min_compaction_lag_ms=51).end == 0
    assert plan(untimed, min_compaction_lag_ms=50).end == 10
    last = chain_of([ledger(0, newest_ms=-1)])
    assert plan(last, min_compaction_lag_ms=1, segment_ms=2000).end == 0
    assert plan(last, min_compaction_lag_ms=1, segment_ms=500).end == 10


def test_open_ledger_never_cleaned_closed_last_is():
    with_open = plan(chain_of([ledger(0)], is_open=True))
    assert (with_open.end, with_open.blocked_by, ids(with_open)) == (10, Blocker.OPEN_LEDGER, [[0]])
    closed = plan(chain_of([ledger(0)]))
    assert (closed.due, closed.end, closed.blocked_by) == (Due.RATIO, 10, None)
    alone = plan(chain_of([], is_open=True), is_asked=True)
    assert (alone.due, alone.groups) == (None, ())


def test_open_transaction_bounds_pass_and_releases_it():
    chain = chain_of([ledger(0), ledger(1), ledger(2)])
    bounded = plan(chain, lso=19)
    assert (bounded.end, bounded.blocked_by) == (10, Blocker.LAST_STABLE_OFFSET)
    assert bounded.dirty_bytes == 300
    assert bounded.cleanable_bytes == 100
    assert plan(chain, lso=20).end == 20
    assert plan(chain, lso=5).due is None
    assert plan(chain, lso=30).blocked_by is None


def test_tombstone_on_quiet_topic_goes_by_horizon_trigger():
    clean = [ledger(0), ledger(1, min_horizon_ms=NOW), ledger(2, min_horizon_ms=NOW - 1), ledger(3),
             ledger(4, min_horizon_ms=NOW), ledger(5, min_horizon_ms=NOW + 1)]  # fmt: skip
    found = plan(chain_of(clean, cleaned_to=60))
    assert (found.due, ids(found)) == (Due.HORIZON, [[1, 2], [4]])
    assert found.first_dirty == found.end == 60
    assert plan(chain_of(clean, cleaned_to=60), now_ms=NOW - 2).due is None
    # Whatever else is due does it as well.
    assert plan(chain_of(clean, cleaned_to=10)).due is Due.RATIO


def test_the_middle_of_a_ledger_is_dirty_as_a_whole():
    """Where a map was full."""
    found = plan(chain_of([ledger(0), ledger(1)], cleaned_to=5))
    assert (found.first_dirty, found.clean_bytes, found.cleanable_bytes) == (5, 0, 200)
    assert ids(found) == [[0, 1]]


def test_groups_by_size_and_span():
    sizes = [400, 600, 1, 999, 2000, 500]
    groups = make_groups([ledger(n, size=size) for n, size in enumerate(sizes)], SETTINGS)
    assert [list(group.source_ids) for group in groups] == [[0, 1], [2, 3], [4], [5]]
    wide = SPAN_MAX // 2
    groups = make_groups([ledger(n, span=wide, size=1) for n in range(3)], SETTINGS)
    assert [list(group.source_ids) for group in groups] == [[0, 1], [2]]


def test_a_swap_names_a_bounded_number_of_ledgers_to_be_deleted():
    """All are named in the document, which must stay below what metadata take in one node."""
    groups = make_groups([ledger(n, size=0) for n in range(2 * SOURCES_MAX + 7)], SETTINGS)
    assert [len(group.sources) for group in groups] == [SOURCES_MAX, SOURCES_MAX, 7]
    assert DELETING_MAX // 2 + SOURCES_MAX < DELETING_MAX


def test_group_emptied_joins_neighbour():
    """What is left of a ledger without records is small, and joined with the next one."""
    ledgers = [ledger(0, size=950), ledger(1, size=77, generation=1), ledger(2, size=900)]
    assert [list(group.source_ids) for group in make_groups(ledgers, SETTINGS)] == [[0], [1, 2]]


def test_compact_delete_merge_does_not_outlive_retention():
    ledgers = [ledger(n, newest_ms=1000 * n, size=1) for n in range(6)]
    deleting = replace(SETTINGS, is_deleted=True, retention_ms=8000)
    groups = make_groups(ledgers, deleting)
    assert [list(group.source_ids) for group in groups] == [[0, 1, 2], [3, 4, 5]]
    backwards = make_groups([ledger(0, newest_ms=5000), ledger(1, newest_ms=100)], deleting)
    assert len(backwards) == 2
    assert len(make_groups(ledgers, replace(deleting, retention_ms=-1))) == 1
    assert len(make_groups(ledgers, replace(deleting, is_deleted=False))) == 1


def test_thousand_small_ledgers_joined():
    small = [ledger(n, size=1) for n in range(1000)]
    found = plan(chain_of(small, cleaned_to=10_000))
    assert found.due is Due.JOIN
    assert len(found.groups) == 1
    assert found.groups[0].is_joining
    assert plan(chain_of(small[:200], cleaned_to=2000)).due is None
    large = [ledger(n, size=501) for n in range(1000)]
    assert plan(chain_of(large, cleaned_to=10_000)).due is None
    dirty = plan(chain_of(small))
    assert dirty.due is Due.RATIO
    assert dirty.groups[0].is_joining
    assert not plan(chain_of(small[:9])).groups[0].is_joining


def test_a_long_chain_is_planned_in_steps():
    """20,000 ledgers took 34 ms at once."""
    chain = chain_of(
        [ledger(n, size=n % 3, min_horizon_ms=1 if n % 2 else -1) for n in range(20_000)],
        cleaned_to=200_000, is_open=True,
    )  # fmt: skip
    for changed in (chain, replace(chain, cleaned_to=0)):
        asked = {"now_ms": NOW, "last_stable_offset": FOREVER}
        found, units = all_steps(planning(changed, SETTINGS, **asked))
        assert found == plan(changed)
        assert found.due is (Due.JOIN if changed is chain else Due.RATIO)
        assert max(units) <= LEDGERS_PER_STEP
        assert sum(units) >= 40_000
        assert len(found.ledgers) == 20_000


def test_a_group_has_a_bounded_number_of_aborted_transactions():
    """All of its index is written in one ledger, and read at once."""
    counts = [10, ABORTED_MAX - 10, 1, ABORTED_MAX + 5, 0]
    ledgers = [ledger(n, size=1, aborted_count=count) for n, count in enumerate(counts)]
    groups = make_groups(ledgers, SETTINGS)
    assert [list(group.source_ids) for group in groups] == [[0, 1], [2], [3], [4]]


def test_asked_for():
    chain = chain_of([ledger(0), ledger(1)], cleaned_to=10)
    assert plan(chain, is_asked=True).due is Due.ASKED
    assert plan(replace(chain, cleaned_to=20), is_asked=True).due is None


@given(
    st.lists(
        st.tuples(st.integers(1, 700), st.integers(-1, 3000), st.integers(0, 3000)), max_size=12
    ),
    st.integers(0, 130),
    st.integers(0, 130),
    st.sampled_from([0, 1, 1500]),
    st.sampled_from([-1, 400, 4000]),
    st.booleans(),
)
def test_every_plan_keeps_its_bounds(facts, cleaned_to, lso, min_lag_ms, retention_ms, is_open):
    ledgers = [
        ledger(n, size=size, newest_ms=newest, created_ms=created)
        for n, (size, newest, created) in enumerate(facts)
    ]
    cleaned_to = min(cleaned_to, 10 * len(ledgers))
    chain = chain_of(ledgers, cleaned_to=cleaned_to, is_open=is_open)
    found = plan(
        chain, 3000, lso, min_compaction_lag_ms=min_lag_ms, is_deleted=True,
        retention_ms=retention_ms,
    )  # fmt: skip
    assert found.end == found.first_dirty or found.end % 10 == 0
    assert 0 <= found.ratio <= 1
    flat = [info for group in found.groups for info in group.sources]
    assert flat == ledgers[: len(flat)]
    assert (found.due is Due.RATIO) == bool(flat) == (found.ratio > 0.5)
    if flat:
        assert flat[-1].end_offset == found.end <= lso
        for info in flat:
            if info.end_offset > cleaned_to and min_lag_ms and info.max_timestamp >= 0:
                assert info.max_timestamp <= 3000 - min_lag_ms
        for group in found.groups:
            assert len(group.sources) == 1 or group.size_bytes <= 1000
            times = [i.max_timestamp if i.max_timestamp >= 0 else i.created_ms
                     for i in group.sources]  # fmt: skip
            assert retention_ms < 0 or max(times) - min(times) <= retention_ms // 4


@pytest.mark.parametrize("name", ["compact", "delete"])
def test_settings_of_a_topic(name):
    from broker.cluster.registry import ConfigRegistry
    from metadata.memory import MemoryStore

    config = ConfigRegistry(MemoryStore(), {}).topic_config(
        {"cleanup.policy": name, "min.cleanable.dirty.ratio": "0.25", "retention.ms": "7"}
    )
    found = PlanSettings.of(config)
    assert (found.is_compacted, found.is_deleted) == (name == "compact", name == "delete")
    assert (found.min_cleanable_dirty_ratio, found.retention_ms) == (0.25, 7)

"""The report's tables, by hand."""

from uuid import UUID

from broker.cluster.topic import Topic
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from spark_jobs.facts import LedgerFacts
from spark_jobs.lag import Committed
from spark_jobs.report_tables import (
    DAY_MS,
    bookie_rows,
    growth_rows,
    lag_rows,
    shares,
    small_ledger_rows,
    time_rows,
    topic_rows,
)
from wire.bookkeeper.ledger_metadata import LedgerMetadata

TOPIC = Topic(UUID(int=1), "t", 1, {}, internal=False)


def metadata(*segments, last_entry=9, sizes=(2, 2, 2)):
    made = LedgerMetadata(*sizes, segments)
    return made.closed_at(last_entry, 1000) if last_entry is not None else made


def ledger(number, size=1000, *, created=0, last=9, found=None, minimum=-1, maximum=-1):
    base = 10 * number
    info = LedgerInfo(
        number, base, 0, created, None if last is None else base + last, 10, size,
        max_timestamp=maximum, min_timestamp=minimum,
    )  # fmt: skip
    return LedgerFacts(TOPIC, 0, info, found or metadata((0, ("a", "b"))))


def test_a_bookie_has_its_share_of_each_segment():
    whole = metadata((0, ("a", "b")))
    assert shares(whole) == {"a": 1.0, "b": 1.0}
    changed = metadata((0, ("a", "b")), (4, ("a", "c")))
    assert shares(changed) == {"a": 1.0, "b": 0.4, "c": 0.6}
    striped = metadata((0, ("a", "b", "c", "d")), sizes=(4, 2, 2))
    assert shares(striped) == dict.fromkeys("abcd", 0.5)
    assert shares(metadata((0, ("a", "b")), last_entry=-1)) == {"a": 0.0, "b": 0.0}
    assert shares(metadata((0, ("a", "b")), last_entry=None)) == {"a": 0.0, "b": 0.0}


def test_bookies_that_are_gone_are_shown():
    rows = bookie_rows([ledger(0), ledger(1, 500)], ["a", "z"])
    assert [(row["bookie"], row["registered"], row["size_bytes"]) for row in rows] == [
        ("a", True, 1500), ("b", False, 1500), ("z", True, 0),
    ]  # fmt: skip
    assert [row["of_mean"] for row in rows] == [1.5, 1.5, 0.0]
    assert bookie_rows([], []) == []


def test_topics_are_added_up():
    ledgers = [ledger(0), ledger(1, 500), ledger(2, 0, last=None)]
    chain = Chain(0, 5, tuple(each.info for each in ledgers), deleting=(99,))
    [row] = topic_rows({(TOPIC, 0): chain}, ledgers)
    assert row == {
        "topic": "t", "partitions": 1, "offsets": 15, "ledgers": 3, "open": 1, "compacted": 0,
        "size_bytes": 1500, "stored_bytes": 3000, "waiting_to_be_deleted": 1,
    }  # fmt: skip


def test_growth_is_by_day():
    days = growth_rows([ledger(1, created=DAY_MS + 5), ledger(0, 7), ledger(2, created=DAY_MS)])
    assert [(r["day_ms"], r["ledgers"], r["since_first_bytes"]) for r in days] == [
        (0, 1, 7), (DAY_MS, 2, 2007),
    ]  # fmt: skip


def test_small_ledgers_are_closed_and_far_below_the_size():
    rows = small_ledger_rows(
        [ledger(0, 61), ledger(1, 62), ledger(2, 1, last=None), ledger(3, 0)], {"t": 1000}
    )
    assert rows == [{"partition": "t-0", "small_ledgers": 2, "size_bytes": 61, "below_bytes": 62}]


def test_lag_is_in_offsets_and_in_time():
    committed = [
        Committed("g", "t", 0, 60, 900), Committed("g", "t", 1, 50), Committed("h", "t", 0, 10),
        Committed("g", "gone", 0, 1),
    ]  # fmt: skip
    rows = lag_rows(committed, {("t", 0): 100, ("t", 1): 50}, 1000)
    assert [(r["group"], r["partition"], r["behind"], r["behind_ms"]) for r in rows] == [
        ("h", "t-0", 90, None), ("g", "t-0", 40, 100), ("g", "t-1", 0, 0),
    ]  # fmt: skip


def test_times_are_those_that_are_known():
    rows = time_rows(
        [
            ledger(0, minimum=50, maximum=70),
            ledger(1, minimum=40, maximum=60),
            ledger(2, maximum=90),
            ledger(3, last=None, minimum=1),
        ]
    )
    assert rows == [{"topic": "t", "min_ts_ms": 40, "max_ts_ms": 90, "unknown": 1}]

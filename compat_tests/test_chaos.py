"""A short chaos run, and a run whose promises are broken on purpose: the checkers must say so."""

import pytest
from chaos.checkers import check_ledgers, check_topics
from chaos.kafka_groups import Progress
from chaos.run import Run
from chaos.tables import Strike, stalls_ms, strikes_table
from chaos.transactional_judges import (
    KEYS,
    TO_ABORT,
    TO_COMMIT,
    judge_keyed,
    judge_out,
    judge_reader,
    value_of,
)
from chaos.transactional_judges import places_of as out_places_of
from chaos.workloads import Gaps, LedgerHistory, Workload
from chaos.world import Options
from harness import figures, servers

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own processes")


@pytest.mark.timeout(900)
def test_half_a_minute_of_faults(scratch, name):
    report = Run(scratch / name("run"), Options(seed=5, minutes=0.5, rate=200, strikes_min=3))()
    for line in report.lines:
        figures.add(f"chaos: {line}")
    assert report.wrong == []
    assert len(report.strikes) >= 3


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_minute_of_transactions_through_faults(scratch, name):
    """Exactly once from a topic into two others and the group's offsets, one of them compacted."""
    options = Options(
        seed=3, minutes=1, scenario="transactions", bookies=4, brokers=3, strikes_min=6
    )
    report = Run(scratch / name("run"), options)()
    for line in report.lines:
        figures.add(f"chaos, transactions: {line}")
    assert report.wrong == []
    assert len(report.strikes) >= 6


def out_of(offsets, purpose=TO_COMMIT, without=()):
    """What is in `out` when the source's partition 0 has these."""
    rows = {}
    for offset in offsets:
        for place in out_places_of(0, offset):
            if (place, offset) not in without:
                row = rows.setdefault(place, [])
                row.append((len(row), value_of(0, offset, purpose)))
    return rows


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (out_of([0, 1, 2, 3]), None),
        (out_of([0, 1, 3]), "lost [2]"),
        (out_of([0, 1, 2, 3], without=[(out_places_of(0, 2)[0], 2)]), "lost [2]"),
        (out_of([0, 1, 2, 3, 3]), "doubled [3]"),
        (out_of([0, 1, 3, 2]), "another order"),
        (out_of([0, 1, 2, 3], TO_ABORT), "aborted, and read"),
    ],
)
def test_the_judge_of_transactions_finds_what_is_wrong(out, words):
    wrong = judge_out({0: [0, 1, 2, 3]}, out)
    assert bool(wrong) == (words is not None)
    assert words is None or words in wrong[0]


def test_the_judge_of_keys_wants_the_last_value_of_each():
    offsets = {0: [0, 1, KEYS]}
    rows = [(n, value_of(0, offset, TO_COMMIT)) for n, offset in enumerate((0, 1, KEYS))]
    assert judge_keyed(offsets, {0: rows}) == []
    assert judge_keyed(offsets, {0: rows[1:]}) == []
    assert "of record 0, not 40" in judge_keyed(offsets, {0: rows[:2]})[0]
    assert "of record None" in judge_keyed(offsets, {0: rows[2:]})[0]
    aborted = [*rows, (3, value_of(0, 1, TO_ABORT))]
    assert "aborted, and read" in judge_keyed(offsets, {0: aborted})[0]


@pytest.mark.parametrize(
    ("seen", "is_compacted", "words"),
    [
        ({0: b"a", 1: b"b", 3: b"c"}, False, None),
        ({0: b"a", 1: b"b"}, False, None),
        ({0: b"a", 3: b"c"}, False, "passed over 1 committed records, [(0, 1)]"),
        ({0: b"a", 1: b"x", 3: b"c"}, False, "was read as b'x', and is now b'b'"),
        ({0: b"a", 1: b"b", 2: b"x"}, False, "was read as b'x', and is now None"),
        ({0: b"a", 1: b"b", 2: b"x", 3: b"c"}, True, None),
        ({0: b"a", 1: b"x", 3: b"c"}, True, "was read as b'x', and is now b'b'"),
        ({0: b"a", 2: b"x", 3: b"c"}, True, "passed over 1 committed records, [(0, 1)]"),
    ],
)
def test_the_judge_of_readers_finds_what_is_wrong(seen, is_compacted, words):
    rows = {0: [(0, b"a"), (1, b"b"), (3, b"c")], 1: []}
    seen = {(0, offset): value for offset, value in seen.items()}
    wrong = judge_reader("reader", seen, rows, is_compacted=is_compacted)
    assert len(wrong) == (words is not None)
    assert words is None or words in wrong[0]


class Told:
    """What a workload was told of ledger 7."""

    def __init__(self, **told):
        self.wrong = []
        self.ledgers = {7: LedgerHistory(7, **told)}


GOOD = {"last": 9, "good": 10, "wrong": []}


@pytest.mark.parametrize(
    ("told", "found", "words"),
    [
        ({"last_acked": 9, "closed_at": 9, "recovered_at": 9}, GOOD, None),
        ({"last_acked": 10}, GOOD, "lost"),
        ({"last_acked": 9}, {**GOOD, "good": 9}, "9 of 10"),
        ({"last_acked": 9, "closed_at": 8}, GOOD, "was closed at entry 8"),
        ({"last_acked": 9, "recovered_at": 10}, GOOD, "was recovered at entry 10"),
        (
            {"last_acked": 9, "recovered_at": 9, "fenced_at": 5.0, "last_sent_at": 5.5},
            GOOD,
            "500 ms after it was fenced",
        ),
        ({"last_acked": 9}, None, "could not be read"),
    ],
)
def test_the_checker_finds_what_is_wrong(told, found, words):
    wrong = check_ledgers(Told(**told), {} if found is None else {7: found})
    if words is None:
        assert wrong == []
    else:
        assert len(wrong) == 1
        assert words in wrong[0]


class Producer:
    """Sent a, b, c and d to partition 0, in that order; was told that a is at 0 and c at 2."""

    name, topic = "producer", "topic"

    def tell(self, heard):
        heard.send((self.topic, 0), self.name, [b"a", b"b", b"c", b"d"])
        heard.ack((self.topic, 0), 0, [b"a"])
        heard.ack((self.topic, 0), 2, [b"c"])


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (b"abc", None),
        (b"abcd", None),
        (b"ab", "lost"),
        (b"abca", "duplicated"),
        (b"abdc", "diverging"),
        (b"adcb", "reordered"),
        (b"abcx", "phantom"),
        (b"ab-c", "gap"),
    ],
)
def test_the_history_finds_what_is_wrong(there, words):
    row = [(offset, bytes([value])) for offset, value in enumerate(there) if value != ord("-")]
    wrong = check_topics([Producer()], {"producer": {0: row}})
    if words is None:
        assert wrong == []
    else:
        assert len(wrong) == 1
        assert wrong[0].startswith(f"producer: {words}")


def test_a_groups_progress_is_judged():
    progress = Progress("group")
    progress.begin(0, 0, 0)
    progress.read(0, 0, 10)
    progress.commit(0, 10)
    progress.read(0, 12, 15)
    assert progress.position(0) == 10  # and 11 was read by nobody
    progress.begin(progress.committed[0], 0, 10)
    progress.read(0, 10, 12)
    assert progress.position(0) == 15
    assert progress.wrong == []
    progress.commit(0, 5)
    assert progress.committed[0] == 10
    progress.begin(progress.committed[0], 0, 9)
    progress.go_back(0, 3, 4)
    assert [words.split(":")[0] for words in progress.wrong] == ["backwards", "non-monotonic poll"]


class Acked(Workload):
    name = "acked"

    def start(self):
        raise NotImplementedError

    finish = close = start


def test_a_stall_is_the_faults_that_it_began_with():
    work = Acked(None)
    # Silent from 1.0 to 4.0, to 9.0, to 9.5, and from 20 to 30.
    talking = [10 + n / 10 for n in range(100)]
    work.gaps = {0: Gaps([0.0, 1.0, 4.0, 9.0, 9.5, *talking, 20.0, 30.0])}
    strikes = [
        Strike("kill", "a", 1.1, 3.0),
        Strike("cut", "b", 3.5, 8.0),
        Strike("stop", "c", 8.9, 9.2),
        Strike("kill", "a", 19.9, 29.0),
        Strike("stop", "a", 28.0, 29.5),
    ]
    assert [each["acked"] for each in stalls_ms(strikes, [work])] == [3000, 5000, 500, 10000, 0]
    rows = {line.split(" | ")[0]: line for line in strikes_table(strikes, [work])}
    assert rows["| kill"] == "| kill | 1 | 3000 / 3000 ms |"
    assert rows["| two of them at a time"] == "| two of them at a time | 2 | 10000 / 10000 ms |"

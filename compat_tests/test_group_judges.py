"""The judges of the newer group protocols (chaos/new_group_judges.py) find what is broken."""

import pytest
from chaos.new_group_judges import (
    LATE_S,
    ConsumerGroupHistory,
    ShareGroupHistory,
    judge_counts,
)

ROWS = {0: [(offset, b"") for offset in range(10)]}


def read(first, end, count=None):
    count = end - first if count is None else count
    return {"event": "read", "partition": 0, "first": first, "end": end, "count": count}


def given(at):
    return {"event": "assigned", "partitions": [0], "at": at}


def committed(at, offset, kind="committed", took=0.1):
    return {
        "event": kind, "offsets": [[0, offset]], "at": at, "since": at - took, "what": "Timeout",
    }  # fmt: skip


TAKEN = {"event": "revoked", "partitions": [0]}


@pytest.mark.parametrize(
    ("events", "end", "words"),
    [
        ([(0, given(1)), (0, read(0, 10))], 10, None),
        ([(0, given(1)), (0, read(0, 9))], 10, "unseen"),
        ([(0, given(1)), (0, read(0, 10))], 9, "lag"),
        ([(0, given(1)), (0, read(0, 10, count=9))], 10, "gap"),
        ([(0, given(1)), (0, read(0, 5)), (0, read(4, 10))], 10, "non-monotonic poll"),
        ([(0, given(1)), (0, read(0, 5)), (0, TAKEN), (0, read(5, 10))], 10, "not its own"),
        ([(0, given(1)), (0, read(0, 5)), (0, committed(2, 5)), (1, given(3)), (1, read(4, 10))],
         10, "backwards"),
        ([(0, given(1)), (0, read(0, 5)), (0, committed(2, 5)), (1, given(3)), (1, read(5, 10))],
         10, None),
        # It was given before that was committed.
        ([(0, given(1)), (0, read(0, 5)), (0, committed(4, 5)), (1, given(3)), (1, read(4, 10))],
         10, None),
        # A commit without an answer may be carried out late, and one that took long before another.
        ([(0, given(1)), (0, read(0, 9)), (0, committed(2, 4, "uncommitted")),
          (0, committed(3, 9)), (1, given(4)), (1, read(4, 10))], 10, None),
        ([(0, given(1)), (0, read(0, 9)), (0, committed(4, 4, took=2)),
          (0, committed(4, 9)), (1, given(5)), (1, read(4, 10))], 10, None),
    ],
)  # fmt: skip
def test_a_consumer_group_is_judged(events, end, words):
    history = ConsumerGroupHistory()
    for member, event in events:
        history.note(member, event)
    wrong = history.judge(ROWS, {0: end})
    assert [one.split(":")[0] for one in wrong] == ([] if words is None else [words])


def got(at, count=1, kind="ACCEPT", since=None):
    since = at - 0.1 if since is None else since
    return {
        "event": "got", "partition": 0, "at": at, "since": since, "records": [[0, count, kind]],
    }  # fmt: skip


def told(at, error=""):
    return {
        "event": "told", "partition": 0, "offsets": [0], "error": error, "at": at, "words": error,
    }  # fmt: skip


REFUSED = "InvalidRecordStateException"
MISLED = "NotLeaderOrFollowerException"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([(0, got(1)), (0, told(2))], None),
        ([(0, got(1))], None),  # killed: it may have been heard
        ([(0, got(1)), (0, told(2, "TimeoutException"))], None),
        ([], "never delivered"),
        ([(0, got(1)), (0, told(2, REFUSED))], "passed over, though nobody has accepted"),
        ([(0, got(1, kind="RELEASE")), (0, told(2))], "passed over, though nobody has accepted"),
        ([(0, got(1, count=5, kind="RELEASE")), (0, told(2))], None),
        ([(0, got(1, count=6))], "delivered more than 5 times"),
        ([(0, got(1, kind="RELEASE")), (0, told(2)), (1, got(3)), (1, told(4))], None),
        ([(0, got(1)), (0, told(2)), (1, got(3)), (1, told(4))],
         "settled, then delivered and acknowledged again"),
        ([(0, got(1, kind="REJECT")), (0, told(2)), (1, got(3, kind="RELEASE")), (1, told(4))],
         "settled, then delivered and acknowledged again"),
        ([(0, got(1)), (0, told(2)), (1, got(3 + LATE_S))], "settled, and delivered later"),
        ([(0, got(1)), (0, told(2, MISLED))] * 2, None),
        ([(0, got(1)), (0, told(2, MISLED))] * 3, "given again and again to a member"),
        # Of a broker that did not know, and could not store it.
        ([(0, got(1)), (0, told(2)), (1, got(3)), (1, told(4, REFUSED))], None),
        # Fetched before it was settled.
        ([(0, got(1)), (0, told(2)), (1, got(3, since=1.5)), (1, told(4))], None),
    ],
)  # fmt: skip
def test_a_share_group_is_judged(events, words):
    history = ShareGroupHistory()
    for member, event in events:
        history.note(member, event)
    wrong = history.judge({0: [(0, b"")]}, 5)
    assert len(wrong) == (words is not None)
    assert words is None or wrong[0].startswith(words)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([b"0 1", b"0 2", b"1 1"], None),
        ([b"0 1", b"1 1"], "key 0: 1 counts of 2 records"),
        ([b"0 1", b"0 2", b"0 2", b"1 1"], "key 0: 3 counts of 2 records"),
        ([b"0 1", b"0 2", b"0 3", b"1 1"], "key 0: 3 counts of 2 records, up to 3"),
        ([b"0 2", b"0 1", b"1 1"], "the first that is not in order: (1, 2)"),
    ],
)
def test_counts_are_judged(counts, words):
    source = {0: [(0, b"0."), (1, b"2..")], 1: [(0, b"1.")]}
    wrong = judge_counts(source, {0: list(enumerate(counts))}, 2)
    assert len(wrong) == (words is not None)
    assert words is None or words in wrong[0]

"""Each judge of a history refuses one that cannot be, and no other."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker.cluster.ownership import Incarnation
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from sim.history import History, Violation
from sim.ledgers import LedgerHistory, check_chain, check_copies
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

P = ("log", 0)
ONE, TWO = Incarnation(1, "a" * 32), Incarnation(2, "b" * 32)


def kind_of(function, *arguments, **options):
    with pytest.raises(Violation) as caught:
        function(*arguments, **options)
    return caught.value.kind


@pytest.fixture
def history():
    """Three records that were sent and acknowledged, at times 100, 200, 300."""
    history = History()
    values = [b"a-0", b"a-1", b"a-2"]
    history.send(P, "a", values)
    history.ack(P, 0, values)
    history.sent_ms = {value: 100 * n for n, value in enumerate(values, 1)}
    return history


# What clients saw.


def test_what_is_in_order_passes(history):
    history.see(P, 1, b"a-1")
    history.check({P: (0, [(0, b"a-0"), (1, b"a-1"), (2, b"a-2")])})
    history.check({P: (2, [(2, b"a-2")])})


@pytest.mark.parametrize(
    ("kind", "start", "records"),
    [
        ("lost", 0, [(0, b"a-0"), (1, b"a-1")]),
        ("gap", 0, [(0, b"a-0"), (2, b"a-2")]),
        ("diverging", 0, [(0, b"a-0"), (1, b"a-2"), (2, b"a-1")]),
        ("duplicated", 0, [(0, b"a-0"), (1, b"a-1"), (2, b"a-2"), (3, b"a-0")]),
        ("phantom", 0, [(0, b"a-0"), (1, b"a-1"), (2, b"a-2"), (3, b"b-0")]),
    ],
)
def test_a_log_that_cannot_be(history, kind, start, records):
    assert kind_of(history.check, {P: (start, records)}) == kind


def test_reordered_and_not_acknowledged():
    history = History()
    history.send(P, "a", [b"a-0", b"a-1"])
    assert kind_of(history.check, {P: (0, [(0, b"a-1"), (1, b"a-0")])}) == "reordered"


def test_two_reads_and_two_acks_that_differ(history):
    history.send(P, "a", [b"a-3"])
    assert kind_of(history.see, P, 2, b"a-3") == "diverging"
    assert kind_of(history.ack, P, 1, [b"a-3"]) == "diverging"
    assert kind_of(history.see, ("log", 1), 0, b"a-0") == "phantom"


def test_a_high_watermark_that_goes_back(history):
    history.high_watermark("reader of broker-1", P, 5)
    history.high_watermark("reader of broker-2", P, 4)
    assert kind_of(history.high_watermark, "reader of broker-1", P, 4) == "backwards"


# Groups.


def test_a_commit_that_goes_back(history):
    history.commit("g", P, 2)
    history.commit("g", P, 2)
    assert kind_of(history.commit, "g", P, 1) == "backwards"


def test_a_member_that_is_told_of_an_older_commit(history):
    history.fetched("g", P, -1, -1)
    history.fetched("g", P, 3, 2)
    assert kind_of(history.fetched, "g", P, 1, 2) == "backwards"


def test_a_record_that_the_group_never_saw(history):
    records = [(0, b"a-0"), (1, b"a-1"), (2, b"a-2")]
    history.consumed("g", P, [0, 2])
    history.commit("g", P, 1)
    history.check({P: (0, records)})
    history.commit("g", P, 3)
    history.check({P: (2, records[2:])})
    assert kind_of(history.check, {P: (0, records)}) == "unseen"


def test_a_group_is_done_when_all_is_committed(history):
    assert not history.is_group_done("g", [P])
    history.group_ends[P] = 3
    history.commit("g", P, 2)
    assert not history.is_group_done("g", [P])
    history.commit("g", P, 3)
    assert history.is_group_done("g", [P])


# Time.


@pytest.mark.parametrize(
    ("time_ms", "answer", "is_right"),
    [
        (150, (1, 200), True),
        (200, (1, 200), True),
        (301, (-1, -1), True),
        (150, (2, 300), False),  # not the first
        (150, (0, 100), False),  # before
        (150, (1, 250), False),  # not what it was sent with
        (150, (-1, -1), False),  # there is one
    ],
)
def test_offsets_by_time(history, time_ms, answer, is_right):
    acked = history.acked_since(P, time_ms)
    if is_right:
        history.looked_up(P, time_ms, answer, acked, 0)
    else:
        assert kind_of(history.looked_up, P, time_ms, answer, acked, 0) == "wrong time"


def test_a_deposed_leader_must_know_what_it_acknowledged(history):
    history.send(P, "a", [b"a-3", b"a-4"])
    history.ack(P, 3, [b"a-3"], "old")
    history.ack(P, 4, [b"a-4"], "new")
    assert history.known_to("old", P, [1, 2, 3, 4]) == [1, 2, 3]
    assert history.known_to("new", P, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert history.known_to("third", P, [1, 2, 3, 4]) == []


def test_what_was_deleted_need_not_be_found(history):
    history.looked_up(P, 150, (2, 300), history.acked_since(P, 150), 2)


# Metadata.


def info(ledger_id, base, last, epoch=1, entries=3):
    return LedgerInfo(ledger_id, base, epoch, 0, last_offset=last, entry_count=entries)


CHAIN = Chain(1, 0, (info(4, 0, 9), info(5, 10, None)), (), ONE)


@pytest.mark.parametrize(
    "new",
    [
        replace(CHAIN, leader_epoch=0),
        replace(CHAIN, owner=TWO),
        replace(CHAIN, ledgers=(info(4, 0, 8), info(5, 9, None))),
    ],
    ids=["an epoch that falls", "two owners in an epoch", "a closed ledger that changes"],
)
def test_documents_that_cannot_follow(new):
    history = History()
    history.chain("/p", replace(CHAIN, log_start_offset=0))
    assert kind_of(history.chain, "/p", new) == "backwards"


def test_a_log_start_that_goes_back():
    history = History()
    history.chain("/p", replace(CHAIN, log_start_offset=5))
    assert kind_of(history.chain, "/p", CHAIN) == "backwards"


def metadata(state=LedgerState.CLOSED, last=2, segments=((0, ("x", "y", "z")),), length=6):
    return LedgerMetadata(3, 3, 2, segments, state, last, length)


OPEN = metadata(LedgerState.OPEN, -1, length=0)


@pytest.mark.parametrize(
    "chain",
    [
        Chain(1, 0, (info(4, 0, 9), info(5, 11, None)), (), ONE),
        Chain(1, 0, (info(4, 0, 9, epoch=2), info(5, 10, None)), (), ONE),
        Chain(1, 0, (info(4, 0, None), info(5, 10, None)), (), ONE),
        Chain(1, 0, (info(4, 0, 9), info(6, 10, None)), (), ONE),
        Chain(1, 0, (info(4, 0, 9, entries=4), info(5, 10, None)), (), ONE),
        Chain(1, 0, (info(5, 0, 9),), (), ONE),
    ],
    ids=["a hole", "an epoch that falls", "two open", "a ledger that is gone", "another end",
         "not closed"],
)  # fmt: skip
def test_a_torn_chain(chain):
    ledgers = {4: metadata(), 5: OPEN}
    check_chain("p", CHAIN, ledgers.get)
    assert kind_of(check_chain, "p", chain, ledgers.get) == "torn chain"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (metadata(), OPEN),
        (metadata(), metadata(LedgerState.IN_RECOVERY, -1, length=0)),
        (metadata(), metadata(last=1)),
        (metadata(), metadata(length=7)),
        (
            replace(OPEN, segments=((0, ("x", "y", "z")), (5, ("x", "y", "v")))),
            replace(OPEN, segments=((3, ("x", "y", "z")), (5, ("x", "y", "v")))),
        ),
        (OPEN, replace(OPEN, segments=((5, ("x", "y", "z")), (0, ("x", "y", "v"))))),
    ],
)
def test_a_ledger_that_opens_again(old, new):
    history = LedgerHistory()
    history.see(1, OPEN)
    history.see(1, old)
    assert kind_of(history.see, 1, new) == "reopened"


def test_a_ledger_that_goes_its_way():
    history = LedgerHistory()
    moved = ((0, ("x", "y", "z")), (2, ("x", "y", "v")))
    for each in (
        OPEN,
        replace(OPEN, segments=moved),
        metadata(LedgerState.IN_RECOVERY, -1, moved, length=0),
        metadata(segments=moved),
        metadata(segments=((0, ("x", "w", "z")), moved[1])),  # repaired
    ):
        history.see(1, each)


# Storage.


def entry(entry_id, lac, payload=b"ab", ledger_id=1):
    length = 2 * (entry_id + 1)
    return Digest().seal(ledger_id, entry_id, lac, length, [payload], len(payload)) + payload


@pytest.fixture
def copies():
    """Of a ledger with three entries; `z` has missed the second."""
    whole = {n: entry(n, n - 1) for n in range(3)}
    return {"x": dict(whole), "y": dict(whole), "z": {0: whole[0], 2: whole[2]}}


def test_copies_in_order(copies):
    assert check_copies(1, metadata(), copies) == 3
    # Of an open ledger what others may know of: its last add confirmed.
    assert check_copies(1, OPEN, copies) == 2
    assert check_copies(1, metadata(last=-1, length=0), {}) == 0


def test_too_few_copies(copies):
    del copies["y"][1]
    assert kind_of(check_copies, 1, metadata(), copies) == "missing copies"
    assert check_copies(1, metadata(), copies, spoilt=1) == 3
    del copies["x"][1]
    assert kind_of(check_copies, 1, metadata(), copies, spoilt=1) == "missing copies"


def test_a_copy_on_a_bookie_that_metadata_does_not_name_does_not_count(copies):
    copies["v"] = copies.pop("y")
    assert kind_of(check_copies, 1, metadata(), copies) == "missing copies"


def test_a_damaged_copy_does_not_count(copies):
    copies["y"][1] = copies["y"][1][:-1] + b"!"
    assert kind_of(check_copies, 1, metadata(), copies) == "missing copies"


def test_copies_that_differ(copies):
    copies["y"][2] = entry(2, 1, b"cd")
    assert kind_of(check_copies, 1, metadata(), copies) == "diverging copies"


def test_an_entry_that_knows_less_than_the_one_before(copies):
    for bookie in "xyz":
        copies[bookie][2] = entry(2, -1)
    assert kind_of(check_copies, 1, metadata(), copies) == "LAC backwards"


def test_what_a_recovery_wrote_back_may_know_less(copies):
    """The one before it has a copy of the writer's and one of the recovery's."""
    copies["x"][1] = entry(1, -1)
    for bookie in "xyz":
        copies[bookie][2] = entry(2, -1)
    check_copies(1, metadata(), copies)

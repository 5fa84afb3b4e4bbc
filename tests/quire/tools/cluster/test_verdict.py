"""What the facts of a partition mean: the cause that is named, for each way of being stuck."""

import pytest

from broker.cluster.assignment import Assigned
from broker.cluster.membership import Registration
from broker.cluster.ownership import Incarnation
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from quire.tools.cluster.facts import BookieFacts, LedgerFacts, PageFacts
from quire.tools.cluster.verdict import PartitionFacts, verdict
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

INCARNATION = Incarnation(1, "a" * 32)
BROKERS = {1: Registration(INCARNATION, {"PLAINTEXT": ("h", 9092, "PLAINTEXT")})}
URL = "http://127.0.0.1:9600"
ONLINE = {
    "state": "online",
    "is_suspended": False,
    "min_insync_replicas": 2,
    "waiting_ms": 0,
    "open_ledger": 7,
    "entries_in_flight": 0,
    "batches_queued": 0,
    "write_quorum": 3,
    "ack_quorum": 2,
}


def ledger(*silent, is_closed=False, names="abc", size=3, quorum=3, ledger_id=7, last=9):
    state = LedgerState.CLOSED if is_closed else LedgerState.OPEN
    metadata = LedgerMetadata(
        size, quorum, min(2, quorum), ((0, tuple(names)),), state=state,
        last_entry_id=last if is_closed else -1,
    )  # fmt: skip
    bookies = {
        name: BookieFacts(name, "writable", "EIO" if name in silent else "") for name in names
    }
    return LedgerFacts(ledger_id, 0, 0, metadata, bookies)


def facts(*, page=None, brokers=BROKERS, ledgers=(), leader=1, controller=1, writable="abc"):
    chain = Chain(0, 0, (LedgerInfo(7, 0, 0, 0),), (), INCARNATION)
    page = PageFacts(URL, {**ONLINE, **(page or {})}) if not isinstance(page, PageFacts) else page
    return PartitionFacts(
        "t-0", Assigned(leader, 0, (1,)), brokers, controller, chain, ledgers, page, list(writable)
    )


def test_failed_take_overs_are_told():
    page = {"state": "loading", "waiting_ms": 9000, "failed_take_overs": 3}
    page["last_failure"] = "the take-over was not done after 60 s"
    found = verdict(facts(page=page, ledgers=[ledger("a", "b")]))
    assert found.words[-1] == (
        "3 tries in a row failed before this; the last one: the take-over was not done after 60 s."
    )
    page |= {"failed_take_overs": 0, "last_failure": None}
    assert "failed before" not in " ".join(verdict(facts(page=page, ledgers=[ledger()])).words)


def test_nothing_is_wrong():
    assert verdict(facts(ledgers=[ledger()])).words == ("It is not stuck: its leader serves it.",)
    assert not verdict(facts(ledgers=[ledger("a")])).is_stuck  # two of three ack
    assert not verdict(facts(writable="ab")).is_stuck


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (facts(brokers={}), "No broker is registered"),
        (facts(leader=2), "Broker 2 is not registered; controller 1 has yet to assign"),
        (facts(leader=-1, controller=None), "No broker is assigned, and there is no controller"),
        (facts(brokers={1: "its registration is unreadable"}), "Broker 1: its registration"),
        (facts(page=PageFacts(URL, None, "timed out")), "does not answer at http://127.0.0.1:9600"),
        (facts(page=PageFacts(URL, None, "", is_elsewhere=True)), "has not begun to"),
        (
            facts(page={"state": "loading", "waiting_ms": 9000}, ledgers=[ledger("a", "b")]),
            "since 9 s or more: ledger 7 is to be recovered, its ack quorum is 2, and of its "
            "bookies do not answer: a, b.",
        ),
        (facts(page={"state": "offline"}, ledgers=[ledger("a", "b")]), "tries again"),
        (facts(page={"is_suspended": True}, writable="a"), "needs 2 bookies that take writes"),
        (facts(writable="a"), "acks=all: that needs 2 bookies that take writes"),
        (
            facts(page={"waiting_ms": 5000}, ledgers=[ledger("b", "c")]),
            "needs 2 acks for each entry, and of its bookies do not answer: b, c.",
        ),
        (facts(page={"waiting_ms": 5000, "open_ledger": None}), "there is no open ledger"),
        (facts(ledgers=[ledger(*"abc", is_closed=True)]), "nobody can read"),
    ],
)
def test_the_cause_is_named(known, words):
    found = verdict(known)
    assert found.is_stuck
    assert words in " ".join(found.words)


def test_of_striped_ledgers_a_write_set_is_what_counts():
    """E 4, Qw 2: entries are on ab, bc, cd, da."""
    lost = verdict(facts(ledgers=[ledger("b", "c", names="abcd", size=4, quorum=2)]))
    assert "answer: b, c." in lost.words[0]
    kept = verdict(facts(ledgers=[ledger("a", "c", names="abcd", size=4, quorum=2)]))
    assert not kept.is_stuck


def test_an_empty_ledger_has_nothing_to_lose():
    assert not verdict(facts(ledgers=[ledger(*"abc", is_closed=True, last=-1)])).is_stuck


def test_a_broker_without_pages_is_not_called_stuck():
    found = verdict(facts(page=PageFacts(None, None, "it has no pages")))
    assert not found.is_stuck
    assert "could not be asked" in found.words[0]

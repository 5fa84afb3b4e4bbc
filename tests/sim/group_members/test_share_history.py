"""Members of a share group in small worlds, and who judges what they were given."""

import pytest

from sim.group_members.share_history import ShareHistory
from sim.history import Violation
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

P = ("log", 0)
SHARING = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, share_members=2
)  # fmt: skip


def given(history, member, offset, *, count=1, asked_at=1.0, now=1.1, epoch=3, is_leader=True):
    history.given(
        member, P, offset, count, leader_epoch=epoch, is_leader=is_leader, asked_at=asked_at,
        now=now, lock_seconds=1.0,
    )  # fmt: skip


def final(*offsets):
    return {P: (0, [(offset, b"v") for offset in offsets])}


def test_what_is_acknowledged_is_not_given_to_who_asks_later():
    history = ShareHistory()
    given(history, "a", 7)
    history.let_go("a", P, [7])
    history.acknowledging(P, [7])
    history.acknowledged(P, [7], 1.5)
    given(history, "b", 7, asked_at=1.4, now=1.6)
    given(history, "c", 7, asked_at=1.7, now=1.8, is_leader=False, epoch=2)
    with pytest.raises(Violation, match="delivered again"):
        given(history, "b", 7, asked_at=1.7, now=1.8)


def test_a_record_has_one_holder_while_its_lock_lives():
    history = ShareHistory()
    given(history, "a", 7)
    given(history, "a", 7, asked_at=1.2, now=1.3)
    with pytest.raises(Violation, match="two holders"):
        given(history, "b", 7, asked_at=1.5, now=1.6)


@pytest.mark.parametrize(
    "changed", [{"asked_at": 2.2, "now": 2.3}, {"epoch": 4}, {"is_leader": False}]
)
def test_a_new_leader_and_the_end_of_a_lock_give_it_to_another(changed):
    history = ShareHistory()
    given(history, "a", 7)
    given(history, "b", 7, **{"asked_at": 1.5, "now": 1.6} | changed)


@pytest.mark.parametrize("lets_go", [ShareHistory.let_all_go, lambda h, m: h.let_go(m, P, [7])])
def test_who_let_it_go_holds_it_no_more(lets_go):
    history = ShareHistory()
    given(history, "a", 7)
    lets_go(history, "a")
    given(history, "b", 7, asked_at=1.5, now=1.6)


def test_nothing_is_passed_over():
    history = ShareHistory()
    given(history, "a", 0)
    history.acknowledging(P, [0])
    given(history, "a", 1, count=3)
    history.check(final(0, 1, 2))
    history.done.add(P)
    history.check(final(0, 1))
    with pytest.raises(Violation, match="unseen"):
        history.check(final(0, 1, 2))


def test_what_is_left_of_a_log_is_done_when_all_of_it_was_answered():
    """Records below that were deleted unacknowledged, and are a lag for ever (seed 630701279)."""
    history = ShareHistory()
    history.acknowledging(P, [6, 7, 8])
    history.acknowledged(P, [6, 7], 1.5)
    assert history.are_acknowledged(P, 6, 8)
    assert history.are_acknowledged(P, 9, 9)
    assert not history.are_acknowledged(P, 5, 8)
    assert not history.are_acknowledged(P, 7, 9)


def test_through_a_rolling_restart():
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0)]
    result = run_seed(1, plan=plan, shape=SHARING)
    assert result.outcome is Outcome.FINE, result.story
    counts = result.counts
    assert counts["share group assignments"] >= 2
    assert counts["share records given"] > counts["share records acknowledged"] > 50

"""Until when a coordinator cannot give up on a member of KIP-848's protocol."""

from sim.group_members.member import REBALANCE_MS, SESSION_MS
from sim.group_members.safe_time import SafeTime

SESSION, REBALANCE = SESSION_MS / 1000, REBALANCE_MS / 1000


def beat(safe, at, *, is_taken=False):
    safe.asks(at)
    return safe.answered(is_taken=is_taken)


def test_the_session_counts_from_the_last_answered_heartbeat():
    safe = SafeTime()
    assert beat(safe, 1.0) == 1.0 + SESSION
    assert beat(safe, 2.0) == 2.0 + SESSION


def test_who_is_slow_to_give_up_has_the_rebalance_timeout_from_the_first_word():
    """Seed 1476921774: told at 21.418, fenced at 24.418, in the midst of its session."""
    safe = SafeTime()
    beat(safe, 21.418, is_taken=True)
    assert beat(safe, 23.0, is_taken=True) == 21.418 + REBALANCE < 23.0 + SESSION


def test_what_was_given_up_and_told_counts_no_more():
    safe = SafeTime()
    beat(safe, 1.0, is_taken=True)
    beat(safe, 2.0)
    assert beat(safe, 3.5) == 3.5 + SESSION


def test_an_answer_that_was_lost_may_have_taken_it():
    safe = SafeTime()
    beat(safe, 1.0)
    safe.asks(2.0)
    assert beat(safe, 4.0, is_taken=True) == 2.0 + REBALANCE

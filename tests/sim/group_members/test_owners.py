"""Members of KIP-848's groups in small worlds, and who judges what they were told."""

import pytest

from sim.group_members.owners import Owners
from sim.history import Violation
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

HERE, THERE = ("broker-1", 9092), ("broker-2", 9092)
P, Q = ("log", 0), ("log", 1)
OWNERS = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, consumer_members=3
)  # fmt: skip


def told(owners, member, epoch, *partitions, by=HERE, instance=None, now=1.0, safe_until=3.0):
    owners.told(member, epoch, partitions, by, instance=instance, now=now, safe_until=safe_until)


def test_one_epoch_has_one_owner():
    owners = Owners()
    told(owners, "a", 3, P, Q)
    told(owners, "a", 4, Q)
    told(owners, "b", 4, P, by=THERE)
    with pytest.raises(Violation, match="in epoch 4: b and a"):
        told(owners, "a", 4, P, by=THERE)


def test_who_was_just_answered_is_still_an_owner():
    owners = Owners()
    told(owners, "a", 3, P, safe_until=3.0)
    with pytest.raises(Violation, match=r"is safe until 3\.000, is b's at 2.500"):
        told(owners, "b", 4, P, now=2.5)


def test_an_answer_that_comes_late_takes_nothing_from_who_followed():
    """Seed 1336569804 had an answer under way for four seconds, while the member was given up and
    another one got what it had. Its epoch is judged as that of any other answer."""
    owners = Owners()
    told(owners, "b", 14, P, now=17.1, safe_until=18.4)
    told(owners, "a", 12, P, now=17.1, safe_until=14.9)
    with pytest.raises(Violation, match="in epoch 14: b and a"):
        told(owners, "a", 14, P, now=17.2, safe_until=14.9)
    owners = Owners()
    told(owners, "b", 14, P, now=17.1, safe_until=18.4)
    with pytest.raises(Violation, match=r"is safe until 18\.400, is a's at 17.100"):
        told(owners, "a", 12, P, now=17.1, safe_until=17.2)


def test_a_classic_heartbeat_after_a_silence_makes_nobody_safe():
    """Seed 601743302 had a member that slept while another one was given what it had, and sent its
    heartbeat when the coordinator was loading again."""
    owners = Owners()
    told(owners, "a", 3, P, safe_until=3.0)
    owners.told("a", 3, [P], HERE, now=9.1, safe_until=11.0, heartbeat_at=9.0)
    told(owners, "b", 4, P, now=9.2, safe_until=11.2)
    owners = Owners()
    told(owners, "a", 3, P, safe_until=3.0)
    owners.told("a", 3, [P], HERE, now=3.1, safe_until=4.9, heartbeat_at=2.9)
    with pytest.raises(Violation, match=r"is safe until 4\.900, is b's at 3.200"):
        told(owners, "b", 4, P, now=3.2, safe_until=5.2)


def test_a_static_members_successor_has_what_it_had_in_the_same_epoch():
    owners = Owners()
    told(owners, "a", 3, P, instance="i")
    told(owners, "b", 3, P, instance="i")
    with pytest.raises(Violation, match="in epoch 3: b and c"):
        told(owners, "c", 3, P, instance="j", by=THERE)
    with pytest.raises(Violation, match="in epoch 3: c and j"):
        told(owners, "j", 3, P, by=THERE)  # an id that reads like the instance's


@pytest.mark.parametrize(("by", "now"), [(HERE, 3.5), (THERE, 2.5)])
def test_after_a_silence_and_of_another_coordinator_it_may_be_anothers(by, now):
    owners = Owners()
    told(owners, "a", 3, P, safe_until=3.0)
    told(owners, "b", 4, P, by=by, now=now)


def test_epochs_that_begin_anew_are_judged_of_who_is_safe():
    owners = Owners(begins_anew=True)
    told(owners, "a", 3, P, safe_until=3.0)
    with pytest.raises(Violation, match="in epoch 3: a and b"):
        told(owners, "b", 3, P, by=THERE, now=2.5)
    owners = Owners(begins_anew=True)
    told(owners, "a", 3, P, safe_until=3.0)
    told(owners, "b", 3, P, by=THERE, now=3.5, safe_until=5.5)
    owners.over("b")
    told(owners, "c", 3, P, now=4.0)


def test_who_gave_something_up_owns_the_rest():
    owners = Owners()
    told(owners, "a", 3, P, Q)
    owners.has_only("a", [Q])
    told(owners, "b", 4, P)
    with pytest.raises(Violation, match="is b's at"):
        told(owners, "b", 4, P, Q)


def test_who_left_owns_nothing():
    owners = Owners()
    told(owners, "a", 3, P)
    owners.over("a")
    told(owners, "b", 4, P)


def test_through_a_rolling_restart():
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0)]
    result = run_seed(1, plan=plan, shape=OWNERS)
    assert result.outcome is Outcome.FINE, result.story
    counts = result.counts
    assert counts["consumer group assignments"] >= 3
    assert counts["offsets committed"] > 10

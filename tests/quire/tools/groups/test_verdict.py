"""What is said of a group, from facts that were made up."""

import pytest

from quire.tools.groups.facts import GroupFacts, GroupMember, PartitionFacts
from quire.tools.groups.verdict import STILL_MS, verdict


def facts(*members, **partitions):
    """`t_0=(committed, end, behind ms)`."""
    made = GroupFacts("g", ("host", 9092), "consumer", "Stable", 3, 3, "uniform", list(members))
    for name, given in partitions.items():
        topic, _, number = name.rpartition("_")
        made.partitions[topic, int(number)] = PartitionFacts(*given)
    return made


def member(name, *assigned):
    return GroupMember(name, None, "c", "/h", 3, [("t", number) for number in assigned])


def page(*members, waits=(), rebalance=None):
    return {"waits_for": list(waits), "members": list(members), "rebalance": rebalance}


def silent(name, silent_ms):
    return {"member": name, "silent_ms": silent_ms, "session_timeout_ms": 45_000}


def test_nothing_is_wrong():
    found = verdict(facts(member("a", 0), t_0=(5, 7, STILL_MS - 1)), page(silent("a", 20_000)))
    assert not found.is_stuck
    assert found.words == [
        "1 members have what they are to have, and none is far behind.",
        "No rebalance has begun since the coordinator has the group.",
    ]
    found = verdict(facts(), page(rebalance={"reason": "a left", "ago_ms": 1500}))
    assert found.words == [
        "Nobody is in the group.",
        "The last rebalance began 1.5 s ago: a left.",
    ]


def test_who_is_late():
    waits = [{"member": "a", "what": "JoinGroup", "for_ms": 2500, "left_ms": 300_000}]
    found = verdict(facts(member("a")), page(waits=waits))
    assert found.is_stuck
    assert found.words[0] == (
        "The group waits for a: JoinGroup, since 2.5 s; in 5 min it is removed."
    )
    many = [{**waits[0], "member": f"m{number}", "left_ms": None} for number in range(9)]
    words = verdict(facts(member("a")), page(waits=many)).words
    assert words[4] == "The group waits for m4: JoinGroup, since 2.5 s."
    assert words[5] == "It waits for 4 more members."


@pytest.mark.parametrize(("silent_ms", "is_late"), [(22_500, False), (22_501, True), (None, False)])
def test_who_is_silent(silent_ms, is_late):
    found = verdict(facts(member("a")), page(silent("a", silent_ms)))
    assert found.is_stuck is is_late
    assert ("Not heard of" in found.words[0]) is is_late


def test_what_nobody_has():
    found = verdict(facts(member("a", 0), t_0=(5, 5, None), t_1=(3, 4, 10), t_2=(4, 4, None)), None)
    assert found.is_stuck
    assert found.words[0].startswith("Nobody has t-1, which")
    assert "--url" in found.words[-1]
    assert not verdict(facts(t_1=(3, 4, 10)), page()).is_stuck, "nobody is in it"


def test_who_is_behind():
    found = verdict(facts(member("a", 0, 1), t_0=(5, 9, STILL_MS), t_1=(0, 1, 7_200_000)), page())
    assert found.is_stuck
    assert found.words[0] == "a is behind: t-0 (4 records, 30.0 s), t-1 (1 records, 120 min)."

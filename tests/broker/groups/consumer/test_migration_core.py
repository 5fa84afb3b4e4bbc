"""A classic group becomes one of KIP-848's: what its members have then. What follows is in
test_service.py."""

import pytest

from broker.groups.classic.group import PREPARING, STABLE
from broker.groups.consumer.changes import NO_TOPICS_HASH
from broker.groups.consumer.events import CurrentSet, GroupEpoch, TargetSet
from broker.groups.consumer.migration_core import upgraded
from tests.broker.groups.conftest import GroupDriver
from wire.kafka.records.consumer_group import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
)
from wire.kafka.records.coordinator import encode_protocol


def subscribed(owned=None, *, topics=("t",), generation=-1, version=3):
    owned = [ConsumerProtocolTopicPartition(topic, some) for topic, some in (owned or {}).items()]
    subscription = ConsumerProtocolSubscription(list(topics), None, owned, generation)
    if version < 2:
        subscription.generation_id = -1
    return encode_protocol(subscription, version)


def upgraded_of(driver, members, state=STABLE):
    """Of a classic group of members with these subscriptions and assignments: what each has then,
    what it is to have, and whether nothing is left to be given out."""
    classic = GroupDriver()
    ids = classic.join_all(len(members), protocols=(("cooperative", subscribed()),))
    for member_id, (says, given) in zip(ids, members, strict=True):
        member = classic.group.members.by_id[member_id]
        classic.group.members.set_protocols(member, (("cooperative", says),))
        parts = [ConsumerProtocolTopicPartition(topic, some) for topic, some in given.items()]
        member.assignment = encode_protocol(ConsumerProtocolAssignment(parts), 3)
    classic.group.state = state
    events = upgraded(classic.group, 10, driver.topics)
    found = {e.member_id: e.value.assigned for e in events if isinstance(e, CurrentSet)}
    targets = {e.member_id: e.value for e in events if isinstance(e, TargetSet)}
    [(_, topics_hash)] = [e.value for e in events if isinstance(e, GroupEpoch)]
    return (
        [{topic: set(some) for topic, some in found[each].items()} for each in ids],
        [{topic: set(some) for topic, some in targets[each].items()} for each in ids],
        topics_hash != NO_TOPICS_HASH,
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("generation", [-1, 0, 2, 9])
def test_what_is_kept_is_what_the_member_said_it_has(driver, version, generation):
    """Of what there is, and of what it subscribes to. What the generation gives another one is that
    one's. How old the member's generation is says nothing: version 1 does not tell it."""
    driver.topics.add("other", 4)
    says = subscribed({"t": [0, 1, 2, 3, 4, 99, -1], "other": [0], "gone": [0]},
                      generation=generation, version=version)  # fmt: skip
    found, targets, is_whole = upgraded_of(driver, [(says, {}), (subscribed(), {"t": [1]})])
    t = driver.topics.get("t").id
    assert found == targets == [{t: {0, 2, 3}}, {t: {1}}]
    assert not is_whole


@pytest.mark.parametrize("order", [(4, 5), (5, 4)])
def test_of_two_that_say_they_have_it_the_later_one_keeps_it(driver, order):
    says = [subscribed({"t": [2, 3]}, generation=generation) for generation in order]
    found, targets, _ = upgraded_of(driver, [(each, {}) for each in says])
    expected = [{}, {}]
    expected[order.index(5)] = {driver.topics.get("t").id: {2, 3}}
    assert found == targets == expected


@pytest.mark.parametrize(
    ("given", "state", "is_whole"),
    [
        ([{"t": [0, 1]}, {"t": [2, 3]}], STABLE, True),
        ([{"t": [0, 1]}, {"t": [2, 3, 9]}], STABLE, True),
        ([{"t": [0, 1]}, {"t": [2, 3]}], PREPARING, False),
        ([{"t": [0, 1]}, {"t": [2]}], STABLE, False),
        ([{"t": [0, 1]}, {"t": [2, -1]}], STABLE, False),
    ],
)
def test_a_group_is_whole_if_all_is_given(driver, given, state, is_whole):
    """What members keep until they join again is not: they are told to join."""
    says = subscribed({"t": [0, 1, 2, 3]}, generation=1)
    assert upgraded_of(driver, [(says, each) for each in given], state)[2] is is_whole


def test_what_is_given_to_who_does_not_subscribe_is_not_given(driver):
    driver.topics.add("u", 1)
    members = [(subscribed(topics=["u"]), {"t": [0, 1], "u": [0]}),
               (subscribed(), {"t": [2, 3]})]  # fmt: skip
    assert upgraded_of(driver, members)[2] is False


def test_an_upgrade_gives_each_partition_once(driver):
    """Whatever a classic group's leader gave twice."""
    found, _, _ = upgraded_of(driver, [(subscribed(), {"t": [0, 1]})] * 2)
    assert sorted(found, key=len) == [{}, {driver.topics.get("t").id: {0, 1}}]

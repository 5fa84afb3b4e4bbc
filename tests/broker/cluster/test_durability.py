"""Copies of a topic, from Kafka's settings and from ours; and what clients see of them."""

from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.catalog import Topic
from broker.cluster.config import TopicConfig
from broker.cluster.config_topic import TOPIC_CONFIGS
from broker.cluster.durability import Bookies, Copies, bookie_node_id, copies_of

NAMES = ("a", "b", "c", "d", "e")


def make(factor=None, own=None, broker=None):
    """The topic and its settings in force: `own` are the topic's, `broker` the broker's."""
    own, broker = own or {}, broker or {}
    parsed = TOPIC_CONFIGS.parse({**broker, **own})
    config = TopicConfig.of(TOPIC_CONFIGS.with_defaults(parsed))
    topic = Topic(UUID(int=1), "t", 1, MappingProxyType(own), False, replication_factor=factor)
    return topic, config


ENSEMBLE, WRITE, ACK = (
    "quire.ledger.ensemble.size",
    "quire.ledger.write.quorum",
    "quire.ledger.ack.quorum",
)
E3 = {ENSEMBLE: "3", WRITE: "3", ACK: "2"}


@pytest.mark.parametrize(
    ("factor", "own", "broker", "copies"),
    [
        (None, {}, {}, (1, 1, 1)),
        (1, {}, {}, (1, 1, 1)),
        (2, {}, {}, (2, 2, 2)),
        (3, {}, {}, (3, 3, 2)),
        (5, {}, {}, (5, 5, 3)),
        (3, {"min.insync.replicas": "2"}, {}, (3, 3, 2)),
        (3, {"min.insync.replicas": "3"}, {}, (3, 3, 3)),
        (3, {"min.insync.replicas": "4"}, {}, (3, 3, 3)),
        (3, {ACK: "1"}, {}, (3, 3, 1)),
        # What the operator set is the least that a topic gets, and a topic's own word wins.
        (None, {}, E3, (3, 3, 2)),
        (1, {}, E3, (3, 3, 2)),
        (5, {}, E3, (5, 5, 3)),
        (3, {**E3, ENSEMBLE: "5"}, {}, (5, 3, 2)),
        (3, {ENSEMBLE: "2", WRITE: "2", ACK: "1"}, E3, (2, 2, 1)),
    ],
)
def test_copies(factor, own, broker, copies):
    assert copies_of(*make(factor, own, broker)) == copies


@given(
    st.integers(1, 5).flatmap(
        lambda ensemble: st.tuples(
            st.just(ensemble), st.integers(1, ensemble), st.integers(1, ensemble)
        )
    ),
    st.integers(0, 9),
)
def test_narrowed_keeps_the_ack_quorum(sizes, count):
    ensemble, write, ack = sizes
    copies = Copies(ensemble, write, min(ack, write))
    less = copies.narrowed(count)
    assert less.ensemble_size >= less.write_quorum >= less.ack_quorum == copies.ack_quorum
    assert less.ensemble_size <= ensemble
    assert less.ensemble_size <= max(count, copies.ack_quorum)
    if count >= ensemble:
        assert less == copies


@given(
    st.permutations(NAMES).flatmap(
        lambda names: st.tuples(
            st.integers(1, 5).map(lambda size: tuple(names[:size])),
            st.sets(st.sampled_from(NAMES)),
            st.integers(1, 5),
        )
    )
)
def test_sizes_are_true_and_the_missing_are_named(case):
    ensemble, writable, write = case
    write = min(write, len(ensemble))
    replicas, in_sync = Bookies(lambda: writable).replicas(
        7, Copies(len(ensemble), write, 1), ensemble
    )
    assert replicas[0] == in_sync[0] == 7
    assert len(replicas) == len(set(replicas)) == write
    assert set(in_sync) <= set(replicas)
    dead = [bookie for bookie in ensemble if bookie not in writable]
    assert len(in_sync) == max(1, write - len(dead))
    missing = set(replicas) - set(in_sync)
    assert missing <= {bookie_node_id(bookie) for bookie in dead}


def test_before_there_is_a_ledger():
    copies = Copies(3, 3, 2)
    for count in range(5):
        replicas, in_sync = Bookies(lambda count=count: NAMES[:count]).replicas(0, copies, ())
        assert len(replicas) == len(set(replicas)) == 3
        assert len(in_sync) == max(1, min(3, count))


def test_when_acks_all_is_refused():
    topic, config = make(3)
    for count, is_short in ((0, True), (1, True), (2, False), (3, False)):
        bookies = Bookies(lambda count=count: NAMES[:count])
        assert bookies.is_short(copies_of(topic, config), config) is is_short
    strict = replace(config, min_insync_replicas=3)
    assert Bookies(lambda: NAMES[:2]).is_short(copies_of(topic, strict), strict)
    assert not Bookies(lambda: NAMES[:3]).is_short(copies_of(topic, strict), strict)
    # More than there are copies can never be had, as in Kafka.
    never = replace(config, min_insync_replicas=4)
    assert Bookies(lambda: NAMES).is_short(copies_of(topic, never), never)


def test_ids_are_no_brokers_and_stay():
    assert bookie_node_id("bookie-1") == 1687442663
    assert all(1 << 30 <= bookie_node_id(name) < 1 << 31 for name in NAMES)


@pytest.mark.parametrize(
    ("brokers", "leader", "writable", "ensemble", "replicas", "missing"),
    [
        ((1, 2, 3), 1, "abc", "abc", (1, 2, 3), ()),
        ((1, 2, 3), 3, "abc", "abc", (1, 2, 3), ()),
        # One copy is missing: not the leader's, whoever that is.
        ((1, 2, 3), 1, "ab", "abc", (1, 2, 3), (3,)),
        ((1, 2, 3), 3, "ab", "abc", (1, 2, 3), (2,)),
        ((1, 2, 3), 1, "a", "abc", (1, 2, 3), (2, 3)),
        # Fewer brokers than copies: bookies' ids, and the one that is missing by its own.
        ((1,), 1, "abc", "abc", (1, "b", "c"), ()),
        ((1,), 1, "ab", "abc", (1, "b", "c"), ("c",)),
        ((2, 1), 1, "abc", "abc", (2, 1, "c"), ()),
        # A leader that is in no list, as all of it are gone.
        ((2, 3, 4), 9, "abc", "abc", (2, 3, 4), ()),
        # More brokers than copies.
        ((1, 2, 3, 4), 1, "abc", "abc", (1, 2, 3), ()),
    ],
)
def test_replicas_of_several_brokers(brokers, leader, writable, ensemble, replicas, missing):
    def node_ids(found):
        return tuple(bookie_node_id(one) if isinstance(one, str) else one for one in found)

    shown, in_sync = Bookies(lambda: list(writable)).replicas_of_brokers(
        leader, brokers, Copies(3, 3, 2), list(ensemble)
    )
    assert shown == node_ids(replicas)
    assert in_sync == tuple(n for n in shown if n not in node_ids(missing))

"""Counting connections, and how fast they come: broker/connection_quotas.py, without a server."""

import pytest

from broker.connection_quotas import ConnectionLimits, ConnectionQuotas, ListenerLimits
from broker.quotas.rates import Windows

INNER, OUTER = "INNER", "OUTER"


def make(*listeners, **limits):
    quotas = ConnectionQuotas(ConnectionLimits(**limits), Windows(), INNER)
    for listener in listeners or (INNER, OUTER):
        quotas.add_listener(listener)
    return quotas


def test_a_slot_is_there_until_the_broker_is_full():
    quotas = make(connections_max=2)
    quotas.opened("a", OUTER)
    assert quotas.has_slot(OUTER)
    quotas.opened("b", INNER)
    assert not quotas.has_slot(OUTER)
    assert quotas.has_slot(INNER), "whatever the broker's limit says"
    assert quotas.excess == 0
    quotas.opened("b", INNER)
    assert quotas.excess == 1
    quotas.closed("a", OUTER)
    assert (quotas.count, quotas.excess) == (2, 0)


def test_an_only_listener_is_not_protected():
    quotas = make(INNER, connections_max=1)
    quotas.opened("a", INNER)
    assert not quotas.has_slot(INNER)


def test_a_listeners_limit_counts_beside_the_brokers():
    quotas = make(connections_max=2, listeners={OUTER: ListenerLimits(connections_max=5)})
    quotas.opened("a", OUTER)
    quotas.opened("a", OUTER)
    assert not quotas.has_slot(OUTER)
    assert not quotas.limits.of_listener(INNER).connections_max > 2, "it has the broker's"
    quotas.opened("a", INNER)
    quotas.opened("a", INNER)
    assert not quotas.has_slot(INNER)


def test_an_address_is_counted_whatever_the_listener():
    quotas = make(per_ip_max=2, per_ip_overrides={"b": 0})
    quotas.opened("a", OUTER)
    quotas.opened("a", INNER)
    assert quotas.is_host_full("a")
    assert quotas.is_host_full("b")
    quotas.closed("a", INNER)
    assert not quotas.is_host_full("a")


def test_no_address_is_remembered_that_nobody_has():
    quotas = make()
    for number in range(10_000):
        assert not quotas.is_host_full(str(number))
        quotas.opened(str(number), OUTER)
        quotas.closed(str(number), OUTER)
    assert not quotas._by_host


def test_the_longer_wait_counts_and_is_a_window_at_most():
    quotas = make(creation_rate=10, listeners={OUTER: ListenerLimits(creation_rate=2)})
    assert [quotas.accepted(OUTER, 0.0) for _ in range(20)] == [0.0] * 20
    assert quotas.accepted(OUTER, 0.0) == pytest.approx(0.5)
    for _ in range(100):
        quotas.accepted(OUTER, 0.0)
    assert quotas.accepted(OUTER, 0.0) == 1.0
    assert quotas.accepted(INNER, 0.0) == 0.0, "the broker's rate is not asked there"


def test_the_brokers_rate_is_of_all_others_together():
    quotas = make("A", "B", creation_rate=1)
    waits = [quotas.accepted("A" if number % 2 else "B", 0.0) for number in range(11)]
    assert waits[:10] == [0.0] * 10
    assert waits[10] == pytest.approx(1.0)


def test_a_rate_of_nothing_lets_one_in_a_window():
    quotas = make(creation_rate=0)
    assert quotas.accepted(OUTER, 0.0) == 1.0


def test_what_came_before_a_limit_was_set_counts():
    quotas = make()
    for _ in range(100):
        assert quotas.accepted(OUTER, 0.0) == 0.0
    quotas.limits = ConnectionLimits(creation_rate=1)
    assert quotas.accepted(OUTER, 0.0) == 1.0

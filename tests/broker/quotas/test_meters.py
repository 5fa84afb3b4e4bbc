"""Who shares a meter, how long he waits, and which meters are forgotten."""

import pytest

from broker.quotas import meters as module
from broker.quotas.entities import QuotaTable, entity_of
from broker.quotas.meters import Meters
from broker.quotas.rates import Windows

WINDOWS = Windows(11, 1)


def table(*limits):
    return QuotaTable({entity_of(parts.items()): limit for parts, limit in limits})


def test_who_has_no_limit_has_no_meter():
    meters = Meters(table(({"user": "u"}, 10.0)), WINDOWS)
    assert meters
    assert meters.of("v", "c", 0.0) is None
    assert len(meters) == 0
    assert not Meters(table(), WINDOWS)


def test_the_clients_of_a_user_share_his_quota():
    meters = Meters(table(({"user": "u"}, 10.0)), WINDOWS)
    first, second = meters.of("u", "a", 0.0), meters.of("u", "b", 0.0)
    assert first is second
    assert meters.record(first, 60, 0.0) == 0.0
    assert meters.record(second, 60, 0.0) == pytest.approx(2.0)  # 12 a second over 10 seconds


def test_each_client_has_its_own_where_the_quota_names_clients():
    meters = Meters(table(({"client-id": None}, 10.0)), WINDOWS)
    assert meters.of("u", "a", 0.0) is not meters.of("u", "b", 0.0)


def test_another_limit_acts_at_once_on_what_was_used():
    meters = Meters(table(({"user": "u"}, 10.0)), WINDOWS)
    assert meters.record(meters.of("u", "c", 0.0), 100, 0.0) == 0.0
    meters.limit_to(table(({"user": "u"}, 5.0)))
    assert meters.record(meters.of("u", "c", 0.0), 0, 0.0) == pytest.approx(10.0)


def test_nobody_waits_longer_than_the_most():
    meters = Meters(table(({"user": "u"}, 1.0)), WINDOWS, wait_max=1)
    assert meters.record(meters.of("u", "c", 0.0), 1e6, 0.0) == 1


def test_an_answer_may_be_what_fits_in_all_windows_but_one():
    meters = Meters(table(({"user": "u"}, 7.0)), WINDOWS)
    assert meters.burst(meters.of("u", "c", 0.0)) == 70.0


def test_idle_meters_are_forgotten_and_the_oldest_of_too_many(monkeypatch):
    monkeypatch.setattr(module, "METERS_MAX", 3)
    meters = Meters(table(({"client-id": None}, 10.0)), WINDOWS)
    for number, name in enumerate("abc"):
        meters.of("", name, float(number))
    meters.of("", "a", 3.0)
    meters.of("", "d", 4.0)
    assert [shared for shared, _ in meters.last_used()] == [("", "d"), ("", "a"), ("", "c")]
    meters.of("", "e", 3604.0)
    assert [shared for shared, _ in meters.last_used()] == [("", "e")]


def test_the_average_wait_is_told():
    meters = Meters(table(({"user": "u"}, 10.0)), WINDOWS)
    meter = meters.of("u", "c", 0.0)
    assert meter.throttle_seconds(0.0) == 0.0
    meter.throttled(1.0, 0.0)
    meter.throttled(3.0, 0.5)
    assert meter.throttle_seconds(0.5) == pytest.approx(2.0)

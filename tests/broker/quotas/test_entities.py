"""Whom a quota is for, and which of several is in force: Kafka 4.3.1's answers to the same."""

import itertools

import pytest

from broker.quotas.entities import (
    QuotaTable,
    check_key,
    check_value,
    entity_named,
    entity_of,
    name_of,
)
from wire.kafka.errors import ErrorCode, KafkaError

#: Strongest first.
ORDER = [
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"user": "u"},
    {"user": None, "client-id": "c"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "c"},
    {"client-id": None},
]
#: What is shared: (user, client id).
SHARED = [
    ("u", "c"),
    ("u", "c"),
    ("u", ""),
    ("u", "c"),
    ("u", "c"),
    ("u", ""),
    ("", "c"),
    ("", "c"),
]


def entity(parts):
    return entity_of(parts.items())


@pytest.mark.parametrize("parts", [*ORDER, {"ip": "10.0.0.1"}, {"ip": None}, {"ip": "::1"}])
def test_a_name_stands_for_its_entity(parts):
    assert entity_named(name_of(entity(parts))) == entity(parts)


def test_the_order_of_the_parts_does_not_matter():
    assert entity_of([("user", "u"), ("client-id", "c")]) == entity_of(
        [("client-id", "c"), ("user", "u")]
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("house", "x")], "Unhandled client quota entity type: house"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "1.2.3.4"), ("user", "u")], "Invalid quota entity combination"),
        ([("ip", "no host")], "no host is not a valid IP or resolvable host."),
    ],
)
def test_what_is_no_entity_is_told_why(parts, message):
    with pytest.raises(KafkaError) as raised:
        entity_of(parts)
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("producer_byte_rate", 0.0, "must be greater than 0"),
        ("request_percentage", -1.0, "must be greater than 0"),
        ("request_percentage", float("nan"), "must be greater than 0"),
        ("producer_byte_rate", 1024.5, "cannot be a fractional value"),
        ("consumer_byte_rate", float("inf"), "is too large for a LONG"),
        ("connection_creation_rate", 3e9, "is too large for an INT"),
    ],
)
def test_a_wrong_value_is_told_why(key, value, message):
    with pytest.raises(KafkaError, match=message):
        check_value(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rate", 1024.0000001),
        ("producer_byte_rate", 9.2e18),
        ("connection_creation_rate", 2147483647.0),
        ("request_percentage", 0.5),
        ("controller_mutation_rate", float("inf")),
    ],
)
def test_a_right_value_is_taken(key, value):
    check_value(key, value)


def test_addresses_and_clients_have_different_keys():
    check_key((("ip", None),), "connection_creation_rate")
    check_key((("user", None),), "request_percentage")
    for parts, key in [
        ((("ip", None),), "producer_byte_rate"),
        ((("user", None),), "connection_creation_rate"),
        ((("user", None),), "no_such"),
    ]:
        with pytest.raises(KafkaError, match=f"Invalid configuration key {key}"):
            check_key(parts, key)


@pytest.mark.parametrize("strongest", range(8))
def test_the_strongest_is_in_force_and_says_who_shares_it(strongest):
    limits = {entity(ORDER[n]): float(n) for n in range(strongest, 8)}
    assert QuotaTable(limits).in_force("u", "c") == (float(strongest), SHARED[strongest])


def test_others_are_not_meant():
    for count in (1, 2, 3):
        for some in itertools.combinations([ORDER[0], ORDER[1], ORDER[2], ORDER[6]], count):
            table = QuotaTable({entity(parts): 1.0 for parts in some})
            assert table.in_force("other", "other") is None
    assert QuotaTable({}).in_force("u", "c") is None


def test_an_address_has_its_own_limit_or_that_of_all():
    table = QuotaTable({(("ip", None),): 5.0, (("ip", "10.0.0.1"),): 7.0})
    assert table.of_address("10.0.0.1") == 7.0
    assert table.of_address("10.0.0.2") == 5.0
    assert QuotaTable({}).of_address("10.0.0.2") is None

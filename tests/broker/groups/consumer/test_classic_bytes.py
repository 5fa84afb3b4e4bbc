"""What classic consumers say is counted before it is read."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.classic_bytes import assignment_of, given_count, subscription_of
from broker.groups.consumer.names import NAMES_MAX
from broker.groups.consumer.types import GroupError
from wire.kafka.errors import ErrorCode as E
from wire.kafka.records.consumer_group import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
)
from wire.kafka.records.coordinator import encode_protocol

ONE = [ConsumerProtocolTopicPartition("t", [1, 2])]
SUBSCRIPTION = ConsumerProtocolSubscription(["t", "longer"], b"own data", ONE, 7, "rack")


def code_of(function, data):
    with pytest.raises(GroupError) as raised:
        function(data)
    return raised.value.code


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [NAMES_MAX, NAMES_MAX + 1])
@pytest.mark.parametrize("user_data", [None, b"", b"own data"])
def test_topics_are_counted(version, count, user_data):
    """Those that are named, and those of which partitions are owned (from version 1 on)."""
    owned = ONE * count if version else []
    for topics, parts in ([["t"] * count, []], [["t"], owned]):
        data = encode_protocol(ConsumerProtocolSubscription(topics, user_data, parts), version)
        if count > NAMES_MAX and (parts or len(topics) > 1):
            assert code_of(subscription_of, data) is E.INVALID_REQUEST
        else:
            assert subscription_of(data).topics == topics
            assert len(subscription_of(data).owned_partitions) == len(parts)


@pytest.mark.parametrize("count", [1, NAMES_MAX, NAMES_MAX + 1])
def test_assignments_are_counted(count):
    data = encode_protocol(ConsumerProtocolAssignment(ONE * count), 3)
    if count > NAMES_MAX:
        assert code_of(assignment_of, data) is E.INVALID_REQUEST
    else:
        assert len(assignment_of(data).assigned_partitions) == count


@given(
    st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(0, 9), max_size=5)), max_size=5),
    st.one_of(st.none(), st.binary(max_size=5)),
    st.sampled_from([0, 3]),
)
def test_given_partitions_are_counted(topics, user_data, version):
    """With their topics, and none of what is cut off within them."""
    parts = [ConsumerProtocolTopicPartition(topic, numbers) for topic, numbers in topics]
    data = encode_protocol(ConsumerProtocolAssignment(parts, user_data), version)
    count = len(topics) + sum(len(numbers) for _, numbers in topics)
    assert given_count(data, 1000) == count
    assert all(given_count(data, most) > most for most in range(count))
    ends = len(encode_protocol(ConsumerProtocolAssignment(parts, None), version)) - 4
    assert not any(given_count(data[:end], 1000) for end in range(ends))


def test_a_negative_count_gives_nothing():
    data = bytearray(encode_protocol(ConsumerProtocolAssignment(ONE * 2), 3))
    assert given_count(bytes(data), 1000) == 6
    at = data.index(b"t") + 1
    data[at : at + 4] = b"\xff" * 4
    assert given_count(bytes(data), 1000) == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_what_is_cut_off_is_none(version):
    if not version:
        said = ConsumerProtocolSubscription(["t", "longer"], b"own data")
    else:
        said = ConsumerProtocolSubscription(["t", "longer"], b"own data", ONE)
    data = encode_protocol(said, version)
    for end in range(len(data)):
        assert code_of(subscription_of, data[:end]) is E.INCONSISTENT_GROUP_PROTOCOL
    assignment = encode_protocol(ConsumerProtocolAssignment(ONE), version)
    for end in range(len(assignment)):
        assert code_of(assignment_of, assignment[:end]) is E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("at", range(60))
@pytest.mark.parametrize("byte", [0, 0x7F, 0x80, 0xFF])
def test_any_byte_may_be_wrong(at, byte):
    """It is read or refused, and nothing else."""
    data = bytearray(encode_protocol(SUBSCRIPTION, 3))
    data[at % len(data)] = byte
    with suppress(GroupError):
        subscription_of(bytes(data))

"""APIs of clusters of brokers, and forms that only an older version has, through the codec."""

import uuid

import pytest

from tests.broker import driven
from tests.broker.guards.test_table import asked, sample
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode, encode, request_class
from wire.kafka.errors import ErrorCode

CLUSTER = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def refused(key, version):
    body, _ = decode(request_class(key), version, encode(sample(request_class(key)), version))
    answer, _ = asked(key, version, body, Rules())
    answer, _ = decode(type(answer), version, encode(answer, version))
    driven.note(key, version, answer, on_wire=False)
    return answer


@pytest.mark.parametrize(
    ("key", "versions"),
    [
        (ApiKey.ELECT_LEADERS, (1, 2)),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1)),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, (0,)),
        (ApiKey.UNREGISTER_BROKER, (0,)),
    ],
)
def test_what_only_an_administrator_may(key, versions):
    for version in versions:
        assert refused(key, version).error_code == CLUSTER


def test_elections_of_version_0_are_refused_one_by_one():
    [topic] = refused(ApiKey.ELECT_LEADERS, 0).replica_election_results
    assert [(one.partition_id, one.error_code) for one in topic.partition_result] == [(0, CLUSTER)]


def test_state_of_share_partitions_is_the_brokers():
    """Attack 40."""
    for key in (
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ):
        [topic] = refused(key, 0).results
        assert topic.topic_id == uuid.UUID(int=7)
        assert [one.error_code for one in topic.partitions] == [CLUSTER]

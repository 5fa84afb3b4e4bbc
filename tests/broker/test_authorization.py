"""What requests need authorised: every API has a row, its paths are real, and dispatch asks."""

import re
import uuid
from pathlib import Path

import pytest

from broker.api import Api
from broker.authorised import AUTHORISED
from broker.authorization import (
    ALL_OPERATIONS,
    CLUSTER_NAME,
    AclOperation,
    Extent,
    Need,
    ResourceType,
    Where,
    is_carried,
)
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import request_class
from wire.kafka.message import Array, fields_of
from wire.kafka.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.kafka.messages.fetch import FetchRequest, ReplicaState
from wire.kafka.messages.groups import (
    FindCoordinatorRequest,
)
from wire.kafka.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from wire.kafka.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from wire.kafka.messages.produce import ProduceRequest, TopicProduceData

PAGE = Path(__file__).parents[2] / "docs" / "apis.md"
HANDLERS = Path(__file__).parents[2] / "broker" / "handlers"


def declared_keys():
    """The keys of all `Api(ApiKey.…` in broker/handlers."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(HANDLERS.glob("*.py")))
    return {ApiKey[name] for name in re.findall(r"\bApi\(\s*ApiKey\.(\w+)", text)}


def every_need():
    for key, row in AUTHORISED.items():
        for need in row:
            yield key, need
            if need.instead is not None:
                assert need.instead.instead is None
                yield key, need.instead


def test_every_api_that_is_served_has_a_row_and_no_other():
    assert len(declared_keys()) > 30
    assert set(AUTHORISED) == declared_keys()


def test_an_api_without_a_row_is_not_made():
    with pytest.raises(ValueError, match="has no row in broker/authorised"):
        Api(ApiKey.VOTE, 0, 2, lambda request: None)


def test_paths_lead_to_names():
    """In some version; a list of names, a name, or an id."""
    for key, need in every_need():
        kind = request_class(key)
        for path in need.names:
            assert any(is_carried(kind, path, version) for version in range(20)), (key, path)
            spec = kind
            for name in path.split("."):
                spec = dict(fields_of(spec))[name].kind
                spec = spec.element if isinstance(spec, Array) else spec
            assert spec.value in ("string", "uuid"), (key, path)


def test_conditions_are_about_numbers_beside_the_names():
    for key, need in every_need():
        if need.where is None:
            continue
        kind = request_class(key)
        for name in need.names[0].split(".")[:-1] if need.names else ():
            spec = dict(fields_of(kind))[name].kind
            kind = spec.element if isinstance(spec, Array) else spec
        assert is_carried(kind, need.where.field, 15) or is_carried(kind, need.where.field, 4), key


def test_operations_are_those_that_the_resource_knows():
    """`AclEntry.supportedOperations`; a transactional id is written and described. Kafka asks for
    DELETE of the cluster, too, which only somebody who may do everything there has."""
    for key, need in every_need():
        if (need.resource, need.operation) == (ResourceType.CLUSTER, AclOperation.DELETE):
            continue
        bits = ALL_OPERATIONS.get(need.resource, 1 << 4 | 1 << 8)
        assert bits & 1 << need.operation, (key, need)


# -- what a request names ------------------------------------------------------------------------


def asked(key, version, body):
    """(operation, resource, name) of all needs, as if each were refused but for those instead."""
    api = Api(key, 0, version, lambda request: None)
    return [
        (need.operation.name, need.resource.name, name)
        for need in api.authorised_in(version)
        for name in need.named_in(body)
    ]


ONE, ZERO = uuid.UUID(int=1), uuid.UUID(int=0)


def test_produce_names_topics_and_a_transactional_id():
    topics = [TopicProduceData(name="a"), TopicProduceData(name="b")]
    assert asked(ApiKey.PRODUCE, 9, ProduceRequest(topic_data=topics)) == [
        ("WRITE", "TOPIC", "a"),
        ("WRITE", "TOPIC", "b"),
    ]
    body = ProduceRequest(transactional_id="", topic_data=[TopicProduceData(topic_id=ONE)])
    assert asked(ApiKey.PRODUCE, 13, body) == [
        ("WRITE", "TRANSACTIONAL_ID", ""),
        ("WRITE", "TOPIC", ONE),
    ]


def test_all_topics_are_asked_about_as_all():
    everything = [("DESCRIBE", "TOPIC", Extent.ALL)]
    assert asked(ApiKey.METADATA, 0, MetadataRequest(topics=[])) == everything
    assert asked(ApiKey.METADATA, 1, MetadataRequest(topics=[])) == []
    for version in (1, 13):
        assert asked(ApiKey.METADATA, version, MetadataRequest(topics=None))[:1] == everything
    named = [
        MetadataRequestTopic(name="*", topic_id=ZERO),
        MetadataRequestTopic(name=None, topic_id=ONE),
    ]
    assert asked(ApiKey.METADATA, 12, MetadataRequest(topics=named)) == [
        ("DESCRIBE", "TOPIC", "*"),
        ("DESCRIBE", "TOPIC", ONE),
    ]
    assert asked(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest()) == (
        everything
    )


def test_offset_fetch_names_groups_and_their_topics():
    groups = [
        OffsetFetchRequestGroup(group_id="", topics=[OffsetFetchRequestTopics(name="t")]),
        OffsetFetchRequestGroup(group_id="g", topics=None),
    ]
    assert asked(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=groups)) == [
        ("DESCRIBE", "GROUP", ""),
        ("DESCRIBE", "GROUP", "g"),
        ("DESCRIBE", "TOPIC", "t"),
        ("DESCRIBE", "TOPIC", Extent.ALL),
    ]
    old = OffsetFetchRequest(group_id="g", topics=None)
    assert asked(ApiKey.OFFSET_FETCH, 7, old) == [
        ("DESCRIBE", "GROUP", "g"),
        ("DESCRIBE", "TOPIC", Extent.ALL),
    ]


@pytest.mark.parametrize(
    ("key_type", "question"),
    [
        (0, ("DESCRIBE", "GROUP", "k")),
        (1, ("DESCRIBE", "TRANSACTIONAL_ID", "k")),
        (2, ("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)),
    ],
)
def test_a_coordinators_key_is_what_its_type_says(key_type, question):
    key = ApiKey.FIND_COORDINATOR
    several = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
    assert asked(key, 6, several) == [question]
    assert asked(key, 3, FindCoordinatorRequest(key_type=key_type, key="k")) == [question]


def test_a_configured_resource_is_what_its_type_says():
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=str(kind))
        for kind in (2, 4, 8, 16, 32)
    ]
    body = DescribeConfigsRequest(resources=resources)
    assert asked(ApiKey.DESCRIBE_CONFIGS, 4, body) == [
        ("DESCRIBE_CONFIGS", "TOPIC", "2"),
        ("DESCRIBE_CONFIGS", "GROUP", "32"),
        *[("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME)] * 3,
    ]


def test_a_follower_needs_the_cluster():
    needed = [("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)]
    assert asked(ApiKey.FETCH, 12, FetchRequest()) == []
    assert asked(ApiKey.FETCH, 18, FetchRequest()) == []
    assert asked(ApiKey.FETCH, 12, FetchRequest(replica_id=1)) == needed
    state = ReplicaState(replica_id=1)
    assert asked(ApiKey.FETCH, 18, FetchRequest(replica_state=state)) == needed


def test_with_default_deny_nothing_passes_but_what_needs_nothing():
    """Each API in each version, with as little in the request as it can have."""
    free = {key for key, row in AUTHORISED.items() if not row}
    assert free == {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        # Whoever asks has not logged in yet.
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        # As Kafka: a client may tell of itself.
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        # Refused to everybody; of a token, its owner would be asked.
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
    for key in AUTHORISED:
        for version in range(20):
            needs = Api(key, 0, 20, lambda request: None).authorised_in(version)
            assert needs or key in free, (key, version)


# -- the page ------------------------------------------------------------------------------------


def words(need):
    """As docs/apis.md says it."""
    named = [f"`{path}`" for path in need.names]
    if need.whole is not CLUSTER_NAME:
        named.append({Extent.ALL: "all", Extent.ANY: "any one"}[need.whole])
    text = f"{need.resource.name} {need.operation.name}"
    if named:
        text += f" ({', '.join(named)})"
    if need.where is not None:
        values = need.where.values
        said = "≥ 0" if isinstance(values, range) else " or ".join(str(value) for value in values)
        text += f" if `{need.where.field}` is {'null' if said == 'None' else said}"
    return text if need.instead is None else f"{text}, or else {words(need.instead)}"


def name_of(key):
    return "".join(word.capitalize() for word in key.name.split("_"))


def test_the_page_shows_every_row():
    part = PAGE.read_text(encoding="utf-8").partition("\n## What a request needs authorised\n")[2]
    listed = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", part, re.M)
    assert listed == [
        (str(int(key)), name_of(key), "; ".join(map(words, AUTHORISED[key])) or "nothing")
        for key in sorted(AUTHORISED)
    ]


def test_versions_that_lack_a_field_do_not_look_at_it():
    need = Need(
        ResourceType.TOPIC, AclOperation.READ, ("topics.topic_id",), where=Where("partition", (1,))
    )
    assert need.in_version(FetchRequest, 12) is None
    assert need.in_version(FetchRequest, 13).names == need.names

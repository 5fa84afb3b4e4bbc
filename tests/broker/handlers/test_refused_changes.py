"""What many requests of administrators are told for one reason: metadata that does not answer, or a
name that no topic can have. On a real server."""

import struct
from contextlib import contextmanager

from metadata.store import MetadataUnavailableError
from tests.broker import driven
from tests.broker.calls import errors_in
from tests.broker.handlers.test_delegation_tokens import LISTENER, Asking
from tests.broker.handlers.test_scram_users import given
from tests.broker.security.acls import conftest
from tests.broker.security.acls.conftest import acl_of, creation, exactly
from wire.kafka.codec import decode
from wire.kafka.messages import (
    AlterConfigsRequest,
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DescribeClientQuotasRequest,
    IncrementalAlterConfigsRequest,
)
from wire.kafka.messages.configs import (
    AlterConfigsRequestAlterConfigsResource,
    ComponentData,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from wire.kafka.messages.metadata import ApiVersionsResponse
from wire.kafka.messages.topics import CreatableTopic
from wire.kafka.messages.transactions_admin import DescribeProducersRequest, TopicRequest

start_guarded = conftest.start_guarded
TOPIC = 2  # configuration resource type
BAD_NAME = "no/name"


@contextmanager
def metadata_away(server, monkeypatch):
    """The server's store answers nothing."""
    store = server.parts["TopicCatalog"]._store

    async def refuse(path, *_, **__):
        raise MetadataUnavailableError(str(path), "a test's wish")

    with monkeypatch.context() as patched:
        for name in ("create", "delete", "get", "multi", "put", "sync"):
            patched.setattr(store, name, refuse)
        yield


async def test_acls_while_metadata_is_away(start_guarded, monkeypatch):
    guarded = await start_guarded()
    await guarded.allow("a READ TOPIC t")
    acl = acl_of("a READ TOPIC t")
    other = acl_of("a WRITE TOPIC t")
    with metadata_away(guarded.server, monkeypatch):
        for request in (CreateAclsRequest([creation(other)]), DeleteAclsRequest([exactly(acl)])):
            assert errors_in(await guarded.admin.call(request)) == {"REQUEST_TIMED_OUT"}
    assert errors_in(await guarded.admin.call(DeleteAclsRequest([exactly(acl)]))) == {"NONE"}


async def test_users_while_metadata_is_away(client, monkeypatch):
    request = AlterUserScramCredentialsRequest([], [given("u")])
    with metadata_away(client.server, monkeypatch):
        assert errors_in(await client.call(request)) == {"REQUEST_TIMED_OUT"}
    assert errors_in(await client.call(request)) == {"NONE"}


async def test_tokens_while_metadata_is_away(start_server, monkeypatch):
    alice = await Asking(await start_server(LISTENER)).log_in()
    error, made = await alice.create()
    assert error == "NONE"
    with metadata_away(alice.client.server, monkeypatch):
        assert (await alice.create())[0] == "REQUEST_TIMED_OUT"
        assert (await alice.renew(made.hmac))[0] == "REQUEST_TIMED_OUT"
        assert (await alice.expire(made.hmac))[0] == "REQUEST_TIMED_OUT"
    assert (await alice.renew(made.hmac))[0] == "NONE"


async def test_what_no_topic_can_be_called(client):
    """Kafka looks at the name before it looks for the topic."""
    for name, error in (
        (BAD_NAME, "INVALID_TOPIC_EXCEPTION"),
        ("..", "INVALID_TOPIC_EXCEPTION"),
        ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", "NONE"),
    ):
        for request in (
            AlterConfigsRequest([AlterConfigsRequestAlterConfigsResource(TOPIC, name)]),
            IncrementalAlterConfigsRequest(
                [IncrementalAlterConfigsRequestAlterConfigsResource(TOPIC, name)]
            ),
            DescribeProducersRequest([TopicRequest(name, [0])]),
        ):
            assert errors_in(await client.call(request)) == {error}, (name, request)


async def test_topics_of_impossible_sizes(client):
    for partitions, copies, error in (
        (0, 1, "INVALID_PARTITIONS"),
        (-2, 1, "INVALID_PARTITIONS"),
        (1, 0, "INVALID_REPLICATION_FACTOR"),
        (1, 2, "INVALID_REPLICATION_FACTOR"),
    ):
        topic = CreatableTopic(name="u", num_partitions=partitions, replication_factor=copies)
        answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert errors_in(answer) == {error}, (partitions, copies)


async def test_what_is_no_filter_of_quotas(client):
    for component in (ComponentData("user", 3, None), ComponentData("", 1, None)):
        answer = await client.call(DescribeClientQuotasRequest([component], False))
        assert errors_in(answer) == {"INVALID_REQUEST"}
        assert answer.entries is None


async def test_who_does_not_say_which_software_it_is(client):
    for name, version in (("", "1"), ("c", ""), ("-c", "1"), ("c", "1 ")):
        answer = await client.call(ApiVersionsRequest(name, version), 3)
        assert errors_in(answer) == {"INVALID_REQUEST"}
    assert errors_in(await client.call(ApiVersionsRequest("c", "1"), 3)) == {"NONE"}


async def test_a_version_that_is_not_known_is_answered_in_the_oldest(client):
    """With all that is served, so that the client needs no third request."""
    expected = (await client.call(ApiVersionsRequest("c", "1"), 0)).api_keys
    frame = bytearray(client.frame(ApiVersionsRequest("c", "1"), 4))
    struct.pack_into(">h", frame, 6, 99)
    key, _, correlation_id = client._sent.pop()
    await client.stream.send_all(frame)
    answer = await client.receive_frame()
    assert struct.unpack_from(">i", answer) == (correlation_id,)
    told, size = decode(ApiVersionsResponse, 0, memoryview(answer)[4:])
    driven.note(key, 0, told, on_wire=True)
    assert size == len(answer) - 4
    assert (errors_in(told), told.api_keys) == ({"UNSUPPORTED_VERSION"}, expected)

"""Every API over a socket: what somebody without rights is told, of what is there and of what is
not. A key that is announced and has no row here fails.

Attack 47: with default deny nothing succeeds but ApiVersions, logins, DescribeCluster and a
client's own metrics, and no name, id or record of anybody is in an answer."""

import uuid

import pytest
import trio

from tests.broker.guards.test_table import sample
from tests.broker.handlers.test_conformance import CASES, World, advertised
from wire.kafka import messages as m
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import encode, request_class
from wire.kafka.errors import ErrorCode
from wire.kafka.message import fields_of
from wire.kafka.structs import Struct

T, G, C, X = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
#: Neither an error nor anything that is there.
NOTHING = None
A = ApiKey
#: What stands in the answer to somebody without any right.
EXPECTED = {
    A.PRODUCE: X, A.FETCH: T, A.LIST_OFFSETS: T, A.METADATA: T, A.OFFSET_COMMIT: G,
    A.OFFSET_FETCH: G, A.FIND_COORDINATOR: G, A.JOIN_GROUP: G, A.HEARTBEAT: G, A.LEAVE_GROUP: G,
    A.SYNC_GROUP: G, A.DESCRIBE_GROUPS: G, A.LIST_GROUPS: NOTHING, A.CREATE_TOPICS: T,
    A.DELETE_TOPICS: T, A.DELETE_RECORDS: T, A.INIT_PRODUCER_ID: X, A.OFFSET_FOR_LEADER_EPOCH: T,
    A.ADD_PARTITIONS_TO_TXN: C, A.ADD_OFFSETS_TO_TXN: X, A.END_TXN: X, A.WRITE_TXN_MARKERS: C,
    A.TXN_OFFSET_COMMIT: X, A.DESCRIBE_ACLS: C, A.CREATE_ACLS: C, A.DELETE_ACLS: C,
    A.DESCRIBE_CONFIGS: T, A.ALTER_CONFIGS: T, A.INCREMENTAL_ALTER_CONFIGS: T,
    A.ALTER_REPLICA_LOG_DIRS: C, A.DESCRIBE_LOG_DIRS: C, A.CREATE_PARTITIONS: T,
    A.DELETE_GROUPS: G, A.OFFSET_DELETE: G, A.DESCRIBE_CLIENT_QUOTAS: C, A.ALTER_CLIENT_QUOTAS: C,
    A.DESCRIBE_USER_SCRAM_CREDENTIALS: C, A.ALTER_USER_SCRAM_CREDENTIALS: C, A.DESCRIBE_QUORUM: C,
    A.UPDATE_FEATURES: C, A.DESCRIBE_PRODUCERS: T, A.DESCRIBE_TRANSACTIONS: X,
    A.LIST_TRANSACTIONS: NOTHING, A.CONSUMER_GROUP_HEARTBEAT: G, A.CONSUMER_GROUP_DESCRIBE: G,
    A.LIST_CONFIG_RESOURCES: C, A.DESCRIBE_TOPIC_PARTITIONS: T, A.SHARE_GROUP_HEARTBEAT: G,
    A.SHARE_GROUP_DESCRIBE: G, A.SHARE_FETCH: G, A.SHARE_ACKNOWLEDGE: G,
    A.INITIALIZE_SHARE_GROUP_STATE: C, A.READ_SHARE_GROUP_STATE: C, A.WRITE_SHARE_GROUP_STATE: C,
    A.DELETE_SHARE_GROUP_STATE: C, A.READ_SHARE_GROUP_STATE_SUMMARY: C,
    A.STREAMS_GROUP_HEARTBEAT: G, A.STREAMS_GROUP_DESCRIBE: G, A.DESCRIBE_SHARE_GROUP_OFFSETS: G,
    A.ALTER_SHARE_GROUP_OFFSETS: G, A.DELETE_SHARE_GROUP_OFFSETS: G,
    A.ELECT_LEADERS: C, A.ALTER_PARTITION_REASSIGNMENTS: C, A.LIST_PARTITION_REASSIGNMENTS: C,
    A.UNREGISTER_BROKER: C, A.ADD_RAFT_VOTER: C, A.REMOVE_RAFT_VOTER: C,
}  # fmt: skip
#: Anybody's; tokens are asked of their owners.
FREE = {
    A.API_VERSIONS, A.DESCRIBE_CLUSTER, A.SASL_HANDSHAKE, A.SASL_AUTHENTICATE,
    A.GET_TELEMETRY_SUBSCRIPTIONS, A.PUSH_TELEMETRY, A.CREATE_DELEGATION_TOKEN,
    A.RENEW_DELEGATION_TOKEN, A.EXPIRE_DELEGATION_TOKEN, A.DESCRIBE_DELEGATION_TOKEN,
}  # fmt: skip
#: Older versions say otherwise: a client's transaction is its own.
OLDER = {(A.ADD_PARTITIONS_TO_TXN, version): X for version in range(4)}
ABSENT = uuid.UUID(int=99)
SECRET = "secret"


def sized(key, version, there, ids):
    """A request that names SECRET or «absent» wherever there is a name."""
    name, topic_id = (SECRET, ids[SECRET]) if there else ("absent", ABSENT)
    kind = request_class(key)
    chosen = {
        "resource_type": 2, "key_type": 0, "acks": -1, "replica_id": -1, "member_epoch": 0,
        "session_id": 0, "session_epoch": -1, "max_wait_ms": 0, "cursor": None,
        "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1,
        "replica_state": None, "version": version,
    }  # fmt: skip
    body = sample(kind, **chosen)
    if key in (A.METADATA, A.DELETE_TOPICS):  # by name; ids are in other tests
        topic_id = uuid.UUID(int=0)
    rename(body, name, topic_id)
    if key == A.FETCH:
        body.forgotten_topics_data = []
        body.replica_state = type(sample(kind).replica_state)(-1, -1)
    return body


def rename(value, name, topic_id):
    for field, _ in fields_of(type(value)):
        inner = getattr(value, field)
        if isinstance(inner, list):
            for at, one in enumerate(inner):
                if isinstance(one, Struct):
                    rename(one, name, topic_id)
                elif isinstance(one, str):
                    inner[at] = name
                elif isinstance(one, uuid.UUID):
                    inner[at] = topic_id
        elif isinstance(inner, Struct):
            rename(inner, name, topic_id)
        elif isinstance(inner, str):
            setattr(value, field, name)
        elif isinstance(inner, uuid.UUID):
            setattr(value, field, topic_id)


def codes(value):
    """Of every error code in an answer that is one."""
    found = set()
    for field, _ in fields_of(type(value)):
        inner = getattr(value, field)
        if field.endswith("error_code") and inner:
            found.add(ErrorCode(inner))
        elif isinstance(inner, list):
            for one in inner:
                if isinstance(one, Struct):
                    found |= codes(one)
        elif isinstance(inner, Struct):
            found |= codes(inner)
    return found


@pytest.fixture
async def secret(guarded):
    """With a topic, records, groups and a transaction of the administrator's."""
    admin = guarded.admin
    guarded.ids = {SECRET: await admin.create_topic(SECRET, 2)}
    await admin.produce(SECRET, [b"treasure"])
    commit = m.OffsetCommitRequest(
        group_id=SECRET, topics=[sample(m.offsets.OffsetCommitRequestTopic, name=SECRET)]
    )
    commit.topics[0].partitions[0].committed_metadata = ""
    ready = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[SECRET])
    assert (await admin.call(ready)).coordinators[0].error_code == 0
    answer = await admin.call(commit, 8)
    assert not codes(answer)
    ready = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[SECRET])
    assert (await admin.call(ready)).coordinators[0].error_code == 0
    begin = m.InitProducerIdRequest(
        transactional_id=SECRET, transaction_timeout_ms=10_000, producer_id=-1, producer_epoch=-1
    )
    assert (await admin.call(begin)).error_code == 0
    return guarded


async def test_nobody_is_told_anything(secret):
    alice = await secret.login("alice")
    driven = 0
    for key, (first, last) in (await advertised(alice)).items():
        if key in FREE:
            continue
        assert key in EXPECTED, f"{ApiKey(key).name} is announced and has no row here"
        for version in range(max(first, 3 if key == A.PRODUCE else first), last + 1):
            answers = []
            for there in (True, False):
                body = sized(key, version, there, secret.ids)
                expected = OLDER.get((key, version), EXPECTED[key])
                if key == A.FETCH and version >= 13 and not there:
                    expected = ErrorCode.UNKNOWN_TOPIC_ID  # ids are no secrets
                try:
                    with trio.fail_after(5):
                        answer = await alice.call(body, version)
                    answers.append(answer)
                    is_silent = key == A.DESCRIBE_LOG_DIRS and version < 3
                    wanted = set() if expected is NOTHING or is_silent else {expected}
                    assert codes(answer) == wanted
                    shown = encode(answer, version)
                    assert b"treasure" not in shown
                    if not there:
                        assert SECRET.encode() not in shown
                        assert secret.ids[SECRET].bytes not in shown
                except BaseException as error:
                    error.add_note(f"in {ApiKey(key).name} version {version}, there: {there}")
                    raise
                driven += 1
            if key != A.FETCH:
                texts = [
                    encode(one, version)
                    .replace(b"absent", SECRET.encode())
                    .replace(ABSENT.bytes, secret.ids[SECRET].bytes)
                    for one in answers
                ]
                assert texts[0] == texts[1], ApiKey(key).name
    assert driven > 300


#: To somebody who may do everything with groups and transactional ids, and nothing with topics.
OF_TOPICS = (
    A.PRODUCE, A.OFFSET_COMMIT, A.OFFSET_FETCH, A.TXN_OFFSET_COMMIT, A.OFFSET_DELETE,
    A.CONSUMER_GROUP_HEARTBEAT, A.SHARE_GROUP_HEARTBEAT, A.STREAMS_GROUP_HEARTBEAT,
    A.DESCRIBE_SHARE_GROUP_OFFSETS, A.ALTER_SHARE_GROUP_OFFSETS, A.DELETE_SHARE_GROUP_OFFSETS,
)  # fmt: skip


async def test_with_groups_but_without_topics(secret):
    """Attack 43: names of topics through a group that is allowed."""
    await secret.allow("alice ALL GROUP *", "alice ALL TRANSACTIONAL_ID *")
    alice = await secret.login("alice")
    ranges = await advertised(alice)
    for key in OF_TOPICS:
        for version in range(max(ranges[key][0], 3 if key == A.PRODUCE else 0), ranges[key][1] + 1):
            for there in (True, False):
                body = sized(key, version, there, secret.ids)
                by_id = not there and (key, version) in (
                    (A.PRODUCE, 13), (A.OFFSET_COMMIT, 10), (A.OFFSET_FETCH, 10),
                )  # fmt: skip
                answer = await alice.call(body, version)
                wanted = {ErrorCode.UNKNOWN_TOPIC_ID if by_id else T}
                assert codes(answer) == wanted, (ApiKey(key).name, version, there)
    add = sized(A.ADD_PARTITIONS_TO_TXN, 3, True, secret.ids)
    assert codes(await alice.call(add, 3)) == {T}
    everything = m.OffsetFetchRequest(
        groups=[m.offsets.OffsetFetchRequestGroup(group_id=SECRET, topics=None)]
    )
    for version in (8, 9, 10):
        [group] = (await alice.call(everything, version)).groups
        assert (group.error_code, group.topics) == (0, [])
        [group] = (await secret.admin.call(everything, version)).groups
        assert group.topics
    for version in (2, 7):
        old = m.OffsetFetchRequest(group_id=SECRET, topics=None)
        assert (await alice.call(old, version)).topics == []
        assert (await secret.admin.call(old, version)).topics


async def test_what_else_is_refused(secret):
    """By what a request is about, and of a second right that is missing."""
    await secret.allow("bob ALL TRANSACTIONAL_ID *")
    alice, bob = await secret.login("alice"), await secret.login("bob")
    for kind, code in ((0, G), (1, X), (2, C)):
        ask = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"])
        assert codes(await alice.call(ask)) == {code}
        if kind < 2:
            ask = m.FindCoordinatorRequest(key_type=kind, key="x")
            answer = await alice.call(ask, 3)
            assert (codes(answer), answer.node_id) == ({code}, -1)
    for key in (A.DESCRIBE_CONFIGS, A.ALTER_CONFIGS, A.INCREMENTAL_ALTER_CONFIGS):
        for kind, code in ((2, T), (32, G), (4, C), (8, C), (16, C)):
            body = sized(key, 0, True, secret.ids)
            body.resources[0].resource_type = kind
            assert codes(await alice.call(body)) == {code}, (key, kind)
    assert codes(await bob.call(m.AddOffsetsToTxnRequest(SECRET, 1, 0, "g"))) == {G}
    commit = sized(A.TXN_OFFSET_COMMIT, 5, True, secret.ids)
    assert codes(await bob.call(commit)) == {G}
    ask = m.InitProducerIdRequest(None, 1000)
    answer = await alice.call(ask)
    assert (codes(answer), answer.producer_id) == ({C}, -1)
    await secret.allow("alice WRITE TOPIC of-hers")
    assert not codes(await alice.call(ask)), "who may write to some topic may write once each"


async def test_who_asks_for_all_is_shown_nothing(secret):
    alice = await secret.login("alice")
    for body, listed in (
        (m.MetadataRequest(topics=None), "topics"),
        (m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1), "topics"),
        (m.ListGroupsRequest(), "groups"),
        (m.ListTransactionsRequest(), "transaction_states"),
    ):
        answer = await alice.call(body)
        assert getattr(answer, listed) == [], type(body)
        assert not codes(answer)
        assert not getattr(answer, "next_cursor", None)
        assert getattr(await secret.admin.call(body), listed) != [], type(body)


async def test_with_every_right_an_authorizer_changes_nothing(start_server, requests):
    """All cases of test_conformance.py but those of ACLs, as a super user."""
    server = await start_server(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
    )
    client = await server.connect()
    topic_id = await client.create_topic("t", 2)
    await client.produce("t", [b"a", b"b", b"c"])
    await client.call(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    world = World(topic_id, requests)
    for key, (_, last) in (await advertised(client)).items():
        if key in (A.DESCRIBE_ACLS, A.CREATE_ACLS, A.DELETE_ACLS):
            continue
        try:
            await CASES[key](client, last, world)
        except Exception as error:
            error.add_note(f"in {ApiKey(key).name} version {last}")
            raise

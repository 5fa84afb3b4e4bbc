"""No request holds the loop: every API is sent its dearest legal requests, and the histogram of the
loop's turns is read.

The server runs in this process; its client is in a thread, so that the turns are the server's own.
A turn is measured by the thread's processor time: on a busy machine others take the processor at
any moment, for longer than all that is looked for here. The target is 5 ms; the bound leaves room
for what others do to its caches.
`pytest -s` prints the table; QUIRE_TURNS_ELEMENTS asks for larger requests.
"""

import gc
import os
import socket
import struct
import time
import uuid

import pytest
import trio
import trio.testing

from quire.role import GC_THRESHOLDS
from runtime.loop_watch import watch_of_run
from runtime.young_objects import YoungObjects
from tests.broker.conftest import fetch_request, make_batch, produce_request
from tests.turns import check_turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import (
    encode_sliced,
    request_class,
    response_class,
    sliced_decoder_of,
)
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.message import Array, Primitive, fields_of
from wire.kafka.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from wire.kafka.messages.fetch import ForgottenTopic
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.metadata import MetadataRequestTopic
from wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from wire.kafka.messages.share_groups import ShareGroupHeartbeatRequest
from wire.kafka.messages.streams_groups import (
    Endpoint,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    TaskIds,
    TopicInfo,
)
from wire.kafka.messages.topics import CreatableTopic, DeleteTopicState
from wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
)
from wire.kafka.messages.transactions_admin import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

pytestmark = pytest.mark.turns

ELEMENTS = int(os.environ.get("QUIRE_TURNS_ELEMENTS", "3000"))
PARTITIONS = 200
TURN_SECONDS_MAX = 0.03
ANSWER_SECONDS = 120
#: The lesser of so many counts: what others do to the processor's caches comes at one of them.
ROUNDS = 2
#: Requests of one client in one burst.
BURST = 1000
RECORDS = 500_000
#: Partitions of one topic.
WIDE = int(os.environ.get("QUIRE_TURNS_PARTITIONS", "3000"))

#: What a field of that name is filled with, where zero, "" or a number in turn would be refused at
#: once, or would stop the server (a deletion of the topics that the others ask for).
VALUES = {
    "acks": -1,
    "timeout_ms": 20_000,
    "validate_only": True,
    "include_synonyms": True,
    "include_documentation": True,
    "include_cluster_authorized_operations": True,
    "include_topic_authorized_operations": True,
    "include_authorized_operations": True,
    "endpoint_type": 1,
    "response_partition_limit": 2000,
    "session_epoch": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "partition_max_bytes": 1 << 20,
    "max_bytes": 1 << 20,
    "max_wait_ms": 0,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "retention_time_ms": -1,
    "timestamp": 0,
    "resource_type": 2,
    "resource_types": 2,
    "replication_factor": 1,
    "num_partitions": 1,
    "count": PARTITIONS + 1,
    "protocol_type": "consumer",
    "transactional_id": None,
    "producer_id": -1,
    "producer_epoch": -1,
    "client_software_name": "x",
    "client_software_version": "1",
    "cursor": None,
    "replica_state": None,
    "reason": None,
}
#: Fields that name a topic, and those that name anything else, each time another.
TOPIC_FIELDS = {"topic", "topic_name", "topic_names", "resource_name"}
TOPICS_BY_NAME = {
    ApiKey.PRODUCE, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_PRODUCERS,
}  # fmt: skip


class Filler:
    """Builds a request of one API with about so many elements: `wide` many at the top and one in
    each, else one at the top and many in that."""

    def __init__(self, key, version, topic_id, *, wide, elements=ELEMENTS):
        self.elements = elements
        self.key, self.version, self.topic_id, self.wide = key, version, topic_id, wide
        self.number = 0

    def message(self):
        cls = request_class(self.key)
        inner = any(self._has_array(spec) for _, spec in fields_of(cls))
        return self._struct(cls, depth=0, is_deep=inner and not self.wide)

    def _has_array(self, spec):
        kind = spec.kind
        if not isinstance(kind, Array) or isinstance(kind.element, Primitive):
            return False
        return any(
            isinstance(each.kind, Array) and each.versions.covers(self.version)
            for _, each in fields_of(kind.element)
        )

    def _struct(self, cls, depth, is_deep):
        value = cls()
        for name, spec in fields_of(cls):
            if spec.versions.covers(self.version):
                setattr(value, name, self._value(name, spec, depth, is_deep))
        return value

    def _value(self, name, spec, depth, is_deep):
        kind = spec.kind
        if isinstance(kind, Array):
            if name == "assignments" and self.key != ApiKey.SYNC_GROUP:
                return None if spec.nullable.covers(self.version) else []
            if name in ("configs", "configuration_keys") and self.key != ApiKey.DESCRIBE_CONFIGS:
                return []
            count = self.elements if depth == is_deep else 1
            return [self._element(name, kind.element, depth, is_deep) for _ in range(count)]
        is_none = name in VALUES and VALUES[name] is None
        if is_none and kind is Primitive.STRING and not spec.nullable.covers(self.version):
            return f"{name}-{self.number}"
        return self._element(name, kind, depth, is_deep)

    def _element(self, name, kind, depth, is_deep):
        self.number += 1
        if name in VALUES and not (name == "timeout_ms" and depth != 0):
            return VALUES[name]
        if not isinstance(kind, Primitive):
            return self._struct(kind, depth + 1, is_deep)
        if kind is Primitive.STRING:
            if name in TOPIC_FIELDS or (name == "name" and self.key in TOPICS_BY_NAME):
                # Half of them are not there; a name that comes twice is looked up once by some.
                return "many" if self.number % 2 else f"none-{self.number}"
            return f"{name}-{self.number}"
        if kind is Primitive.UUID:
            return self.topic_id if self.number % 2 else uuid.UUID(int=self.number)
        if kind in (Primitive.BYTES, Primitive.RECORDS):
            return b""
        if kind is Primitive.BOOL:
            return False
        if kind is Primitive.FLOAT64:
            return 0.0
        if name in ("partition", "partition_index", "index", "partition_indexes", "partitions"):
            return self.number % PARTITIONS
        return 0


class Caller:
    """A blocking client, for a thread."""

    def __init__(self, address):
        self.address = address
        self.socket = None

    def call(self, frames, count):
        """Sends frames and reads that many answers; fewer if the server closes."""
        if self.socket is None:
            self.socket = socket.create_connection(self.address, timeout=ANSWER_SECONDS)
        answers = []
        try:
            hello = encode_request(ApiVersionsRequest("turns", "1"), 3, 0, "turns")
            self.socket.sendall(hello + b"".join(frames))
            for _ in range(count + 1):
                (size,) = struct.unpack(">i", self._read(4))
                answers.append(self._read(size))
        except OSError:
            self.close()
        return answers[1:]

    def _read(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Looks:
    """The collector's longest look, in processor time: a turn that holds one is told with it."""

    def __init__(self):
        self.longest = (0.0, 0, 0)
        self._began = 0.0

    def __call__(self, phase, info):
        if phase == "start":
            self._began = time.thread_time()
        else:
            seconds = time.thread_time() - self._began
            self.longest = max(self.longest, (seconds, info["generation"], info["collected"]))


@pytest.fixture
async def turns(start_server):
    """turns(name, frames) sends them and notes the longest turn until all are answered."""
    # As in a process of ours (quire/role.py): a look through everything is no request's.
    before = gc.get_threshold()
    server = await start_server({"group.min.session.timeout.ms": "6000"})
    client = await server.connect()
    server.topic_id = await client.create_topic("many", PARTITIONS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    young = YoungObjects()
    trio.lowlevel.add_instrument(young)
    assert gc.isenabled()
    looks = Looks()
    gc.callbacks.append(looks)
    caller = Caller(server.address)
    watch = watch_of_run()
    watch.clock = time.thread_time
    table = {}

    async def measure(name, frames, rounds=1):
        # What the test made is not the server's to look through, and its own turn ends here.
        gc.freeze()
        await trio.lowlevel.checkpoint()
        longest = []
        for _ in range(rounds):
            watch.longest_by_name = {}
            looks.longest = (0.0, 0, 0)
            watch.histogram.max_seconds = 0.0
            got = await trio.to_thread.run_sync(caller.call, frames, len(frames))
            # A server that answered may still have to free what it answered with.
            await trio.testing.wait_all_tasks_blocked()
            by = max(watch.longest_by_name, key=watch.longest_by_name.get, default="")
            longest.append((watch.histogram.max_seconds, by, looks.longest))
        table[name] = max(table.get(name, (0.0, "", (0.0, 0, 0))), min(longest))
        return got

    measure.server, measure.client = server, client
    yield measure
    caller.close()
    gc.callbacks.remove(looks)
    trio.lowlevel.remove_instrument(young)
    gc.unfreeze()
    gc.set_threshold(*before)
    print()
    for name, (seconds, by, (look, generation, found)) in sorted(
        table.items(), key=lambda item: -item[1][0]
    ):
        collector = f"{look * 1000:.1f} ms, generation {generation}, {found} found"
        print(f"{seconds * 1000:8.1f} ms  {name:40} {by:50} collector: {collector}")
    for name, (seconds, by, look) in table.items():
        check_turn(seconds, TURN_SECONDS_MAX, f"{name} ({by}, {look})")


@pytest.mark.timeout(900)
async def test_every_api_at_its_dearest(turns):
    served = await turns.client.call(ApiVersionsRequest("turns", "1"), 3)
    for api in served.api_keys:
        key, version = ApiKey(api.api_key), api.max_version
        # Coders are compiled once, when they are used first.
        sliced_decoder_of(request_class(key), version)
        list(encode_sliced(response_class(key)(), version, by_reference=False))
        for wide in (True, False):
            filler = Filler(key, version, turns.server.topic_id, wide=wide)
            message = await trio.to_thread.run_sync(filler.message)
            frame = await trio.to_thread.run_sync(encode_request, message, version, 1, "turns")
            name = f"{key.name} {'wide' if wide else 'deep'}"
            for answer in await turns(name, [frame], ROUNDS):
                correlation_id, _ = await trio.to_thread.run_sync(
                    decode_response, key, version, answer
                )
                assert correlation_id == 1


async def test_answers_to_small_requests_that_are_large_or_dear(turns):
    # All topics, and the same again and again in one burst.
    await turns(
        "METADATA of everything", [encode_request(MetadataRequest(topics=None), 12, 1, "c")]
    )
    one = encode_request(MetadataRequest(topics=[MetadataRequestTopic(name="many")]), 12, 1, "c")
    await turns("METADATA 50 times in a burst", [one] * 50)
    configs = request_class(ApiKey.DESCRIBE_CONFIGS)()
    resource = fields_of(type(configs))[0][1].kind.element
    for number in range(50):
        configs.resources.append(resource(resource_type=4, resource_name="0" * (number + 1)))
    configs.include_synonyms = configs.include_documentation = True
    await turns("DESCRIBE_CONFIGS of a broker", [encode_request(configs, 4, 1, "c")])
    find = request_class(ApiKey.FIND_COORDINATOR)()
    find.coordinator_keys = [f"{number}" + "k" * 32_000 for number in range(50)]
    frame = encode_request(find, 6, 1, "c")
    await turns("FIND_COORDINATOR of long keys", [frame])
    await turns("FIND_COORDINATOR of long keys", [frame])


async def test_transactions_of_very_many_names(turns):
    """As many elements as a request may have, none of them there: 0.25 s in one piece."""
    count = 200_000
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
    await turns.client.call(find, 4)
    topics = [AddPartitionsToTxnTopic("many", list(range(count)))]
    asked = AddPartitionsToTxnTransaction("id", 1, 0, verify_only=True, topics=topics)
    frames = {
        "ADD_PARTITIONS of a producer": (
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="id", v3_and_below_topics=topics
            ),
            3,
        ),
        "ADD_PARTITIONS of a broker": (AddPartitionsToTxnRequest(transactions=[asked]), 5),
        "LIST_TRANSACTIONS by states": (
            ListTransactionsRequest(state_filters=[f"state-{at}" for at in range(count)]),
            2,
        ),
        "LIST_TRANSACTIONS by producers and pattern": (
            ListTransactionsRequest(
                producer_id_filters=list(range(count)), transactional_id_pattern="a*"
            ),
            2,
        ),
    }
    for name, (message, version) in frames.items():
        sliced_decoder_of(type(message), version)
        frame = await trio.to_thread.run_sync(encode_request, message, version, 1, "c")
        answers = await turns(f"{name}, {count} elements", [frame], ROUNDS)
        assert len(answers) == 1


#: Transactional ids that begin, and end, in one burst.
IDS = int(os.environ.get("QUIRE_TURNS_IDS", "50"))
#: Bursts until every partition of a coordinator's topic is loaded.
LOADS_MAX = 100


@pytest.mark.timeout(900)
async def test_bursts_of_transactions(turns):
    """What follows the acknowledgement of one entry of `__transaction_state`, with all ids in it:
    answers, first batches that waited for it, markers."""
    client = turns.client
    await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]), 4)
    names = [f"id-{at}" for at in range(IDS)]

    async def burst(name, requests, version):
        frames = [encode_request(each, version, 1, "c") for each in requests]
        answers = await turns(f"{name} of {IDS} ids", frames)
        key = requests[0].INFO.key
        return [decode_response(key, version, each)[1] for each in answers]

    inits = [InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=60_000)
             for each in names]  # fmt: skip
    for _ in range(LOADS_MAX):
        producers = await burst("INIT_PRODUCER_ID", inits, 4)
        if not any(each.error_code for each in producers):
            break
    assert {each.error_code for each in producers} == {0}
    for is_commit in (True, False):
        batches = [
            make_batch(
                [b"x"], producer_id=each.producer_id, producer_epoch=each.producer_epoch,
                base_sequence=0, is_transactional=True,
            )
            for each in producers
        ]  # fmt: skip
        written = [
            produce_request(("many", at % PARTITIONS, batch), transactional_id=name)
            for at, (name, batch) in enumerate(zip(names, batches, strict=True))
        ]
        for request in written:
            request.timeout_ms = 60_000
        answers = await burst("first PRODUCE", written, 12)
        assert {each.responses[0].partition_responses[0].error_code for each in answers} == {0}
        ends = [
            EndTxnRequest(name, each.producer_id, each.producer_epoch, is_commit)
            for name, each in zip(names, producers, strict=True)
        ]
        producers = await burst("END_TXN", ends, 5)
        assert {each.error_code for each in producers} == {0}
    group_ids = [f"group-{at}" for at in range(IDS)]
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["group-0"]), 4)
    commits = [
        OffsetCommitRequest(
            group_id=each, generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic("many", partitions=[
                OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            ])],
        )
        for each in group_ids
    ]  # fmt: skip
    for _ in range(LOADS_MAX):
        answers = await burst("OFFSET_COMMIT", commits, 8)
        codes = {each.topics[0].partitions[0].error_code for each in answers}
        if codes == {0}:
            break
    assert codes == {0}


async def test_bursts_of_small_requests(turns):
    """What each costs is counted, and a burst ends when it was enough."""
    topic_id = turns.server.topic_id
    served = await turns.client.call(ApiVersionsRequest("turns", "1"), 3)
    for api in served.api_keys:
        key, version = ApiKey(api.api_key), api.max_version
        filler = Filler(key, version, topic_id, wide=True, elements=1)
        frame = encode_request(filler.message(), version, 1, "turns")
        await turns(f"{key.name} {BURST} times", [frame] * BURST, ROUNDS)


@pytest.mark.timeout(900)
async def test_a_topic_of_many_partitions(turns):
    """Made, written, searched, read, told of a setting, and deleted, each by one request."""
    client = turns.client
    create = CreateTopicsRequest(
        topics=[CreatableTopic(name="wide", num_partitions=WIDE, replication_factor=1)],
        timeout_ms=60_000,
    )
    await turns(f"CREATE_TOPICS of {WIDE} partitions", [encode_request(create, 7, 1, "c")])
    await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="wide")]))
    batch = make_batch([b"x"])
    written = produce_request(*(("wide", at, batch) for at in range(WIDE)), acks=-1)
    written.timeout_ms = 60_000
    frame = await trio.to_thread.run_sync(encode_request, written, 9, 1, "c")
    for name in ("first PRODUCE", "second PRODUCE"):
        (answer,) = await turns(f"{name} to {WIDE} partitions", [frame])
        _, response = await trio.to_thread.run_sync(decode_response, ApiKey.PRODUCE, 9, answer)
        (topic,) = response.responses
        assert [each.error_code for each in topic.partition_responses] == [0] * WIDE
    read = fetch_request(*(("wide", at, 0) for at in range(WIDE)), partition_max_bytes=1000)
    await turns(f"FETCH of {WIDE} partitions", [encode_request(read, 12, 1, "c")])
    wanted = [ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(WIDE)]
    searched = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="wide", partitions=wanted)]
    )
    await turns(f"LIST_OFFSETS of {WIDE} partitions", [encode_request(searched, 9, 1, "c")])
    setting = AlterableConfig(name="log.retention.ms", config_operation=0, value="3600000")
    altered = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=[setting])]
    )
    await turns(f"a setting of all {WIDE} partitions", [encode_request(altered, 1, 1, "c")])
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name="wide")], timeout_ms=60_000)
    await turns(f"DELETE_TOPICS of {WIDE} partitions", [encode_request(deleted, 6, 1, "c")])


@pytest.mark.timeout(900)
async def test_a_transaction_of_many_partitions(turns):
    """Begun, written to, looked at and ended, each by one request, of both versions."""
    client = turns.client
    create = CreateTopicsRequest(
        topics=[CreatableTopic(name="wide", num_partitions=WIDE, replication_factor=1)],
        timeout_ms=60_000,
    )
    await client.call(create)
    every = list(range(WIDE))
    for version in (1, 2):
        name = f"version-{version}"
        await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
        init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        while (producer := await client.call(init)).error_code:
            await trio.sleep(0.01)
        who = producer.producer_id, producer.producer_epoch

        async def measured(label, request, api_version, *, name=name):
            frame = await trio.to_thread.run_sync(encode_request, request, api_version, 1, "c")
            label = f"{label} of {WIDE} partitions, {name}"
            (answer,) = await turns(label, [frame])
            return await trio.to_thread.run_sync(
                lambda: decode_response(request.INFO.key, api_version, answer)[1]
            )

        topics = [AddPartitionsToTxnTopic("wide", every)]
        if version == 1:
            await measured("ADD_PARTITIONS", AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name, v3_and_below_producer_id=who[0],
                v3_and_below_producer_epoch=who[1], v3_and_below_topics=topics,
            ), 3)  # fmt: skip
        batch = make_batch(
            [b"x"], producer_id=who[0], producer_epoch=who[1], base_sequence=0,
            is_transactional=True,
        )  # fmt: skip
        parts = (("wide", at, batch) for at in every)
        written = produce_request(*parts, acks=-1, transactional_id=name)
        written.timeout_ms = 60_000
        answer = await measured("first PRODUCE", written, 10 + version)
        codes = {each.error_code for each in answer.responses[0].partition_responses}
        assert codes == {0}
        asked = AddPartitionsToTxnTransaction(name, *who, verify_only=True, topics=topics)
        await measured("a question", AddPartitionsToTxnRequest(transactions=[asked]), 5)
        described = await measured("DESCRIBE_TRANSACTIONS", DescribeTransactionsRequest([name]), 0)
        (txn,) = described.transaction_states
        assert len(txn.topics[0].partitions) == WIDE
        await measured("END_TXN", EndTxnRequest(name, *who, True), 3 + version)
        while txn.transaction_state != "CompleteCommit":
            answer = await measured("DESCRIBE of what ends", DescribeTransactionsRequest([name]), 0)
            (txn,) = answer.transaction_states


@pytest.mark.timeout(900)
async def test_a_fetch_session_of_many_partitions(turns):
    """Made, waited with, woken, changed, taken the place of, and forgotten; and a wait without."""
    await turns.client.create_topic("wide", WIDE)
    loaded = MetadataRequest(topics=[MetadataRequestTopic(name="wide")])
    await turns.client.call(loaded)
    wanted = [("wide", at, 0) for at in range(WIDE)]

    async def fetched(name, body):
        frame = await trio.to_thread.run_sync(encode_request, body, 12, 1, "c")
        (answer,) = await turns(f"FETCH {name}, {WIDE} partitions", [frame])
        _, response = await trio.to_thread.run_sync(decode_response, ApiKey.FETCH, 12, answer)
        assert response.error_code == 0
        return response

    def more(session, epoch, *parts, **fields):
        return fetch_request(*parts, session_id=session, session_epoch=epoch, **fields)

    await fetched("that waits", fetch_request(*wanted, max_wait_ms=500))
    first = await fetched("makes a session", more(0, 0, *wanted))
    again = await fetched("makes it anew", more(first.session_id, 0, *wanted))
    session = again.session_id
    assert session not in (0, first.session_id)
    assert not (await fetched("of a session waits", more(session, 1, max_wait_ms=500))).responses
    waits = {"max_wait_ms": 500, "min_bytes": 1 << 20}
    assert not (await fetched("changes all", more(session, 2, *wanted, **waits))).responses
    forget = [ForgottenTopic(topic="wide", partitions=list(range(WIDE)))]
    last = await fetched("forgets all", more(session, 3, forgotten_topics_data=forget))
    assert (last.session_id, last.responses) == (0, [])


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
async def test_a_small_batch_of_many_records_is_searched_by_time(turns, codec):
    """450 bytes, 500,000 records: 0.85 s in one piece."""
    batch = await trio.to_thread.run_sync(many_records, codec)
    client = turns.client
    await client.create_topic("t", 1)
    assert (await client.produce("t", batch)).error_code == 0
    wanted = ListOffsetsPartition(partition_index=0, timestamp=2_000_000)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
    )
    (answer,) = await turns(f"LIST_OFFSETS by time, {codec.name}", [
        encode_request(request, 9, 1, "c")
    ])  # fmt: skip
    _, response = decode_response(ApiKey.LIST_OFFSETS, 9, answer)
    assert response.topics[0].partitions[0].offset == RECORDS - 1


def many_records(codec):
    records = [Record(delta, 0, None, None) for delta in range(RECORDS - 1)]
    records.append(Record(RECORDS - 1, 1_000_000, None, None))
    return build_batch(records, base_timestamp=1_000_000, compression=codec)


def test_the_filler_knows_only_fields_that_there_are():
    known = set()

    def look(cls):
        for name, spec in fields_of(cls):
            known.add(name)
            kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
            if not isinstance(kind, Primitive):
                look(kind)

    for key in ApiKey:
        try:
            look(request_class(key))
        except Exception:
            continue
    assert set(VALUES) <= known


# --- groups


async def coordinated(turns):
    """Somebody has asked for the coordinator of groups, and it is there."""
    await turns.client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 6)
    beat = streams_frame(streams_beat("none", "m", 7))
    while True:
        [answer] = await turns("nobody's heartbeat", [beat])
        if streams_answer(answer).error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return
        await trio.sleep(0.05)


def streams_beat(group, member, epoch, subtopologies=None, **given):
    message = StreamsGroupHeartbeatRequest(group, member, epoch, 0, process_id=member)
    message.active_tasks, message.standby_tasks, message.warmup_tasks = [], [], []
    if subtopologies is not None:
        message.topology = StreamsGroupHeartbeatRequestTopology(0, subtopologies)
        message.rebalance_timeout_ms = 60_000
    for name, value in given.items():
        setattr(message, name, value)
    return message


def streams_frame(message):
    return encode_request(message, 0, 1, "c")


def streams_answer(frame):
    return decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, frame)[1]


def subtopology(number, sources=(), sinks=(), repartition=(), changelogs=()):
    made = StreamsGroupHeartbeatRequestSubtopology(str(number), list(sources))
    made.repartition_sink_topics = list(sinks)
    made.repartition_source_topics = [TopicInfo(each) for each in repartition]
    made.state_changelog_topics = [TopicInfo(each) for each in changelogs]
    return made


#: As large as they may be, each of another form; and what is said of them.
TOPOLOGIES = {
    "a circle of one": (
        [subtopology(0, ["many"], [f"r{n}" for n in range(499)], [f"r{n}" for n in range(499)])],
        ErrorCode.NONE,
    ),
    "a circle of many": (
        [
            subtopology(n, [] if n else ["many"], [f"r{(n + 1) % 333}"], [f"r{n}"])
            for n in range(333)
        ],
        ErrorCode.NONE,
    ),
    "one sink repeated": (
        [subtopology(0, ["many"], ["r"] * 490, ["r", *(f"q{n}" for n in range(490))])],
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
    "changelogs": (
        [subtopology(0, ["many"] * 490, changelogs=[f"c{n}" for n in range(490)])],
        ErrorCode.NONE,
    ),
    "only changelogs": (
        [subtopology(0, ["many"], changelogs=[f"c{n}" for n in range(990)])],
        ErrorCode.NONE,
    ),
    "too many": (
        [subtopology(n, ["many"], changelogs=[f"c{n}"]) for n in range(30_000)],
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
    "too many in one": (
        [subtopology(0, ["many"], changelogs=[f"c{n}" for n in range(50_000)])],
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
}


@pytest.mark.timeout(300)
async def test_streams_topologies(turns):
    await coordinated(turns)
    for name, (subtopologies, error) in TOPOLOGIES.items():
        frame = streams_frame(streams_beat(name, "m", 0, subtopologies))
        [answer] = await turns(f"topology: {name}", [frame], rounds=2)
        assert streams_answer(answer).error_code == error, name
        describe = encode_request(StreamsGroupDescribeRequest([name]), 0, 1, "c")
        await turns(f"describe: {name}", [describe], rounds=2)
        partitions = [OffsetDeleteRequestPartition(0)]
        topics = [OffsetDeleteRequestTopic(f"t{n}", partitions) for n in range(5_000)]
        delete = encode_request(OffsetDeleteRequest(name, topics), 0, 1, "c")
        await turns(f"offsets: {name}", [delete], rounds=2)


@pytest.mark.timeout(300)
async def test_streams_tasks_and_endpoints(turns):
    await coordinated(turns)
    await turns.client.create_topic("wide", 2_500)
    subtopologies = [subtopology(n, ["wide"]) for n in range(4)]
    where = Endpoint("h", 1)
    one = streams_beat("tasks", "one", 0, subtopologies, user_endpoint=where)
    found = streams_answer((await turns("join", [streams_frame(one)]))[0])
    while not (found.active_tasks or ()):
        await trio.sleep(0.3)
        beat = streams_beat("tasks", "one", found.member_epoch, user_endpoint=where)
        found = streams_answer((await turns("many tasks, given", [streams_frame(beat)]))[0])
        assert not found.error_code, found
    owned = found.active_tasks
    assert sum(len(each.partitions) for each in owned) == 10_000
    beat = streams_beat("tasks", "one", found.member_epoch, active_tasks=owned)
    await turns("many tasks, owned", [streams_frame(beat)], rounds=2)
    other = streams_beat("tasks", "two", 0, subtopologies)
    found = streams_answer((await turns("another member joins", [streams_frame(other)]))[0])
    assert found.partitions_by_user_endpoint
    for _ in range(10):
        await trio.sleep(0.3)
        await turns("many tasks, owned", [streams_frame(beat)])
    describe = encode_request(StreamsGroupDescribeRequest(["tasks"]), 0, 1, "c")
    await turns("describe tasks", [describe])
    lists = {
        "the same subtopology": [TaskIds("0", [n]) for n in range(10_000)],
        "numbers": [TaskIds("0", list(range(2_000_000)))],
        "subtopologies": [TaskIds(str(n), [0]) for n in range(100_000)],
    }
    for name, active in lists.items():
        beat = streams_beat("tasks", "one", 3, active_tasks=active)
        await turns(f"tasks: {name}", [streams_frame(beat)], rounds=2)
    tags = [KeyValue(str(n), "v") for n in range(100_000)]
    beat = streams_beat("tasks", "one", 3, client_tags=tags)
    await turns("client tags", [streams_frame(beat)], rounds=2)


@pytest.mark.timeout(300)
async def test_subscriptions_of_very_many_names(turns):
    await coordinated(turns)
    there = [f"topic-{n}" for n in range(1_000)]
    for at in range(0, len(there), 500):
        topics = [CreatableTopic(name, 1, 1) for name in there[at : at + 500]]
        await turns.client.call(CreateTopicsRequest(topics=topics, timeout_ms=60_000))
    for count, error in ((1_001, 0), (3_000, 0), (30_000, ErrorCode.INVALID_REQUEST)):
        names = [*there, *(f"none-{n}" for n in range(count - len(there)))]
        request = ConsumerGroupHeartbeatRequest(f"g{count}", "m", 0)
        request.subscribed_topic_names = names
        request.rebalance_timeout_ms, request.topic_partitions = 60_000, []
        frame = encode_request(request, 1, 1, "c")
        [answer] = await turns(f"consumers: {count} names", [frame])
        answer = decode_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, answer)[1]
        assert answer.error_code == error
        request = ShareGroupHeartbeatRequest(f"s{count}", "m", 0, subscribed_topic_names=names)
        frame = encode_request(request, 1, 1, "c")
        [answer] = await turns(f"share: {count} names", [frame])
        answer = decode_response(ApiKey.SHARE_GROUP_HEARTBEAT, 1, answer)[1]
        assert answer.error_code == error
    request = ConsumerGroupHeartbeatRequest("g3000", "m", 1)
    owned = ConsumerGroupHeartbeatRequestTopicPartitions(
        turns.server.topic_id, list(range(200_000))
    )
    request.topic_partitions = [owned]
    await turns("consumers: partitions", [encode_request(request, 1, 1, "c")], rounds=2)

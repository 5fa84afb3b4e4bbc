"""Dispatch and connection: replies in request order, refusals, back-pressure, bad bytes."""

import gc
import struct
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from broker.api import (
    ELEMENTS_INLINE,
    STEP_UNITS,
    Abandonable,
    Api,
    ConnectionInfo,
    PlainReply,
    Reply,
)
from broker.connection import (
    ABANDONED_UNITS,
    REQUESTS_IN_FLIGHT_MAX,
    UNSENT_BYTES_MAX,
    KafkaConnection,
)
from broker.dispatch import (
    ELEMENTS_MAX,
    OTHER_FRAME_BYTES_MAX,
    REQUEST_UNITS,
    STRANGER_FRAME_BYTES_MAX,
    TRAILING_BYTES_MAX,
    Dispatcher,
)
from broker.handlers.api_versions import ApiVersionsHandler
from broker.security.acls.index_core import Decision, Reason
from broker.unsent import UnsentAnswers
from runtime.receive import ReceiveChunks
from runtime.request_memory import RequestMemory
from runtime.turn import SPENT_UNITS, Turn
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import (
    ApiVersionsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.kafka.messages.groups import DescribedGroup
from wire.kafka.messages.metadata import MetadataRequestTopic, MetadataResponseTopic


class Wire:
    """A transport that keeps what was written."""

    def __init__(self):
        self.peer = "127.0.0.1:9"
        self.written = bytearray()
        self.is_closed = False
        self.is_paused = False

    @property
    def unsent_bytes(self):
        return 0

    def write(self, buffers):
        if not self.is_closed:
            self.written += b"".join(buffers)

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def close(self):
        self.is_closed = True

    def frames(self):
        frames, position = [], 0
        while position < len(self.written):
            (size,) = struct.unpack_from(">i", self.written, position)
            frames.append(bytes(self.written[position + 4 : position + 4 + size]))
            position += 4 + size
        return frames

    def correlation_ids(self):
        return [struct.unpack_from(">i", frame)[0] for frame in self.frames()]


class World:
    def __init__(self, nursery, *, strict=True, memory=1 << 20, authorizer=None, plain=None):
        self.replies = []
        self.versions = ApiVersionsHandler(SimpleNamespace(epoch=-1, levels={}))
        self.release = trio.Event()
        self.ended = trio.Event()
        self.steps = 0
        apis = [
            Api(ApiKey.HEARTBEAT, 0, 4, self.later),
            Api(ApiKey.LIST_GROUPS, 0, 5, self.slow),
            Api(ApiKey.PRODUCE, 3, 13, self.later, plain=plain),
            Api(ApiKey.DESCRIBE_GROUPS, 0, 6, self.in_steps),
            Api(ApiKey.FETCH, 4, 18, self.abandonable),
            Api(ApiKey.METADATA, 0, 13, lambda request: MetadataResponse()),
            *self.versions.apis(),
        ]
        self.versions.serve(apis)
        self.turn = Turn()
        self.dispatcher = Dispatcher(apis, nursery, self.turn, authorizer=authorizer, strict=strict)
        self.memory = RequestMemory(memory)
        self.answers = UnsentAnswers()
        self.wire = Wire()
        self.connection = KafkaConnection(
            self.wire,
            self.dispatcher,
            self.memory,
            ReceiveChunks(),
            ConnectionInfo("1", "127.0.0.1", "PLAINTEXT"),
            1 << 20,
            self.answers,
        )
        self.dispatcher.connection_opened(self.connection)

    def in_steps(self, request):
        """As many steps as groups were named, each as dear as its name says."""
        groups = []
        for group_id in request.body.groups:
            self.steps += 1
            yield int(group_id)
            if int(group_id) < 0:
                raise RuntimeError("a bug in a step")
            groups.append(DescribedGroup(group_id=group_id))
        return DescribeGroupsResponse(groups=groups)

    def abandonable(self, request):
        async def wait():
            try:
                await trio.sleep_forever()
            finally:
                self.ended.set()

        return Abandonable(lambda _: wait())

    def later(self, request):
        group_id = getattr(request.body, "group_id", "")
        if group_id == "broken":
            raise RuntimeError("a bug")
        if group_id == "silent":
            return None
        reply = Reply()
        self.replies.append(reply)
        return reply

    async def slow(self, request):
        await self.release.wait()
        return ListGroupsResponse()

    def send(self, data):
        position = 0
        while position < len(data):
            buffer = self.connection.receive_buffer()
            count = min(len(buffer), len(data) - position)
            buffer[:count] = data[position : position + count]
            position += count
            self.connection.received(count)


@pytest.fixture
def world(nursery):
    return World(nursery)


def heartbeat(correlation_id, group="g"):
    return encode_request(HeartbeatRequest(group_id=group), 4, correlation_id, "c")


def produce(correlation_id):
    return encode_request(ProduceRequest(acks=-1), 9, correlation_id, "c")


def describe(correlation_id, costs):
    request = DescribeGroupsRequest(groups=[str(cost) for cost in costs])
    return encode_request(request, 5, correlation_id, "c")


def metadata(correlation_id):
    return encode_request(MetadataRequest(), 12, correlation_id, "c")


async def test_replies_leave_in_request_order(world):
    world.send(
        heartbeat(1)
        + metadata(2)
        + encode_request(ListGroupsRequest(), 4, 3, None)
        + heartbeat(4)
        + metadata(5)
    )
    assert world.wire.correlation_ids() == []
    world.replies[1].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == []
    world.replies[0].resolve(HeartbeatResponse(error_code=27))
    assert world.wire.correlation_ids() == [1, 2]
    world.release.set()
    await trio.testing.wait_all_tasks_blocked()
    assert world.wire.correlation_ids() == [1, 2, 3, 4, 5]
    _, first = decode_response(ApiKey.HEARTBEAT, 4, world.wire.frames()[0])
    assert first.error_code == 27
    assert world.memory.used_bytes == 0


async def test_api_versions_lists_exactly_what_is_served(world):
    world.send(encode_request(ApiVersionsRequest("a-client", "1.0"), 3, 7, "c"))
    correlation_id, response = decode_response(ApiKey.API_VERSIONS, 3, world.wire.frames()[0])
    assert correlation_id == 7
    assert [(e.api_key, e.min_version, e.max_version) for e in response.api_keys] == [
        (ApiKey.PRODUCE, 3, 13),
        (ApiKey.FETCH, 4, 18),
        (ApiKey.METADATA, 0, 13),
        (ApiKey.HEARTBEAT, 0, 4),
        (ApiKey.DESCRIBE_GROUPS, 0, 6),
        (ApiKey.LIST_GROUPS, 0, 5),
        (ApiKey.API_VERSIONS, 0, 4),
    ]
    assert world.connection.info.client_software_name == "a-client"


async def test_api_versions_of_the_future_is_answered_in_version_0(world):
    frame = bytearray(encode_request(ApiVersionsRequest("x", "1"), 4, 9, "c"))
    struct.pack_into(">h", frame, 6, 77)
    world.send(bytes(frame))
    body = world.wire.frames()[0]
    assert struct.unpack_from(">ih", body) == (9, ErrorCode.UNSUPPORTED_VERSION)
    _, response = decode_response(ApiKey.API_VERSIONS, 0, body)
    assert {entry.api_key for entry in response.api_keys} == {0, 1, 3, 12, 15, 16, 18}
    assert not world.wire.is_closed
    world.send(metadata(10))
    assert world.wire.correlation_ids() == [9, 10]


async def test_bad_software_names_are_refused(world):
    world.send(encode_request(ApiVersionsRequest("no spaces", "1"), 3, 1, "c"))
    _, response = decode_response(ApiKey.API_VERSIONS, 3, world.wire.frames()[0])
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ihhih", 10, 999, 0, 1, -1),  # no such key
        struct.pack(">ihhih", 10, 3, 99, 1, -1),  # no such version
        struct.pack(">ihhih", 10, 0, 9, 1, -1),  # a key that is known and not served
        struct.pack(">ihhih", 10, 12, 0, 1, -1),  # cut short
        metadata(1)[:-1].replace(metadata(1)[:4], struct.pack(">i", len(metadata(1)) - 5)),
        struct.pack(">i", -5),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_bad_frames_close_that_connection_with_one_log_line(world, frame, caplog):
    world.send(frame)
    assert world.wire.is_closed
    assert len(caplog.records) == 1
    assert world.wire.written == b""


async def test_who_was_turned_away_is_served_nothing_whatever_he_says(world):
    """He did not get to the login of his listener, either."""
    world.connection.rest()
    world.send(metadata(1))
    assert world.wire.written == b""


async def test_bytes_behind_the_body_are_ignored(world):
    world.send(struct.pack(">i", len(metadata(1)) - 1) + metadata(1)[4:] + b"xyz" + metadata(2))
    assert world.wire.correlation_ids() == [1, 2]


async def test_a_bug_in_a_handler_is_answered_and_logged(nursery, caplog):
    world = World(nursery, strict=False)
    world.send(heartbeat(1, "broken") + metadata(2))
    assert world.wire.correlation_ids() == [1, 2]
    _, response = decode_response(ApiKey.HEARTBEAT, 4, world.wire.frames()[0])
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a bug" in caplog.text


async def test_no_reply_takes_no_place(world):
    world.send(heartbeat(1, "silent") + metadata(2))
    assert world.wire.correlation_ids() == [2]


async def test_memory_pauses_and_resumes(nursery):
    world = World(nursery, memory=40)
    world.send(b"".join(produce(number) for number in range(1, 9)))
    assert world.wire.is_paused
    assert len(world.replies) == 2, "requests behind the limit are not even looked at"
    for _ in range(8):
        for reply in world.replies:
            if reply.message is None:
                reply.resolve(ProduceResponse())
        world.turn.run()
    assert not world.wire.is_paused
    assert world.memory.used_bytes == 0
    assert world.wire.correlation_ids() == list(range(1, 9))


async def test_a_long_line_pauses_reading(world):
    world.memory.limit_bytes = 1 << 30
    world.turn.spent_units = -(1 << 40)  # one burst does all of it
    count = REQUESTS_IN_FLIGHT_MAX + 500
    world.send(b"".join(heartbeat(number) for number in range(count)))
    assert world.wire.is_paused
    assert len(world.replies) == REQUESTS_IN_FLIGHT_MAX
    for _ in range(2):
        for reply in world.replies:
            if reply.message is None:
                reply.resolve(HeartbeatResponse())
        world.turn.run()
    assert not world.wire.is_paused
    assert world.wire.correlation_ids() == list(range(count))


async def test_a_slow_reader_is_not_worked_for(world, monkeypatch):
    """Replies that nobody takes stop the handling of what was received already."""
    monkeypatch.setattr(Wire, "unsent_bytes", property(lambda wire: wire.backlog))
    Wire.backlog = UNSENT_BYTES_MAX + 1
    world.send(metadata(1) + metadata(2) + metadata(3))
    assert world.wire.correlation_ids() == [1]
    assert world.wire.is_paused
    Wire.backlog = 0
    world.connection.drained()
    world.turn.run()
    assert world.wire.correlation_ids() == [1, 2, 3]
    assert not world.wire.is_paused


async def test_nothing_is_handled_behind_a_refused_frame(world):
    world.send(struct.pack(">ihhih", 10, 999, 0, 1, -1) + metadata(2))
    assert world.wire.is_closed
    assert world.dispatcher.counts[ApiKey.METADATA][0] == 0


async def test_a_client_that_left_abandons_its_replies(world):
    world.send(heartbeat(1) + heartbeat(2))
    left = []
    for reply in world.replies:
        reply.on_abandoned = lambda: left.append(True)
    world.replies[0].resolve(HeartbeatResponse())
    world.turn.spent_units = 0
    world.connection.closed()
    assert left == [True]
    assert world.turn.spent_units == ABANDONED_UNITS, "thousands may leave together"
    world.replies[1].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == [1]
    assert world.memory.used_bytes == 0
    assert not world.dispatcher.connections


async def test_a_response_that_cannot_be_encoded_costs_its_connection_alone(nursery, caplog):
    """A bug in a handler, found out only when its answer is put on the wire."""
    world = World(nursery, strict=False)
    world.send(heartbeat(1) + heartbeat(2) + metadata(3))
    world.replies[1].resolve(HeartbeatResponse(error_code="no number"))
    assert world.wire.is_closed
    assert "handler_failed" in caplog.text
    world.connection.closed()
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.written == b""
    assert world.memory.used_bytes == 0


async def test_a_stopped_dispatcher_still_answers_appends_and_takes_no_more():
    """A broker that stops closes its partitions, which takes a while, and its connections last: a
    request that came meanwhile raised «Nursery is closed» in the network's loop. (Seed 4 of the
    simulation, rolling restarts of two brokers.)"""
    async with trio.open_nursery() as requests:
        world = World(requests)
        world.send(heartbeat(1) + encode_request(ListGroupsRequest(), 4, 2, None))
        world.dispatcher.stop()
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == [1]
    assert not world.wire.is_closed
    world.send(encode_request(ListGroupsRequest(), 4, 3, None))
    assert world.wire.is_closed
    assert world.wire.correlation_ids() == [1]


# -- what requests hold, and for how long -------------------------------------------------------


async def test_what_waits_does_not_hold_its_frame(world):
    """A heartbeat that is answered later was copied out of its frame when it was parsed."""
    world.send(heartbeat(1))
    assert world.replies
    assert world.memory.used_bytes == 0
    world.send(produce(2))
    assert world.memory.used_bytes > 0, "records are views into theirs"


async def test_what_follows_a_body_is_refused_but_for_a_few_bytes(world):
    def followed(correlation_id, count):
        request = metadata(correlation_id)
        (size,) = struct.unpack_from(">i", request)
        return struct.pack(">i", size + count) + request[4:] + bytes(count)

    world.send(followed(1, TRAILING_BYTES_MAX))
    assert world.wire.correlation_ids() == [1]
    world.send(followed(2, TRAILING_BYTES_MAX + 1))
    assert world.wire.is_closed
    assert world.wire.correlation_ids() == [1]


async def test_a_stranger_begins_with_a_small_frame_unless_it_produces(nursery):
    def begins(key, version, size, *, known=False):
        world = World(nursery)
        world.connection._receiver.frame_bytes_max = 100 << 20
        if known:
            world.send(metadata(1))
        world.send(struct.pack(">ihhi", size, key, version, 2) + bytes(100))
        return not world.wire.is_closed

    large = STRANGER_FRAME_BYTES_MAX + 1
    assert begins(ApiKey.METADATA, 12, STRANGER_FRAME_BYTES_MAX)
    assert not begins(ApiKey.METADATA, 12, large)
    assert begins(ApiKey.METADATA, 12, large, known=True)
    assert not begins(ApiKey.METADATA, 12, OTHER_FRAME_BYTES_MAX + 1, known=True)
    assert begins(ApiKey.PRODUCE, 9, 100 << 20)
    assert not begins(ApiKey.PRODUCE, 99, large)
    assert not begins(999, 0, large)


async def test_frames_that_are_never_finished_leave_room_for_others(nursery):
    """Five half-sent frames of 100 MiB took 350 MB; now all together have half of the limit, but
    for the oldest, and whoever is not let in is not read."""
    world = World(nursery, memory=8 << 20)
    connections, wires = [], []
    for number in range(5):
        wire = Wire()
        connection = KafkaConnection(
            wire,
            world.dispatcher,
            world.memory,
            ReceiveChunks(),
            ConnectionInfo(str(number), "127.0.0.1", "PLAINTEXT"),
            100 << 20,
            world.answers,
        )
        world.dispatcher.connection_opened(connection)
        connections.append(connection)
        wires.append(wire)
        world.connection, world.wire = connection, wire
        start = struct.pack(">ihhi", 100 << 20, ApiKey.PRODUCE, 9, 1)
        for data in [start] + [bytes(1 << 20)] * 20:
            if not wire.is_paused:
                world.send(data)
    # The oldest one may go on, so that something can be finished; of the rest:
    assert not wires[0].is_paused
    assert all(wire.is_paused for wire in wires[1:])
    oldest = world.memory._unfinished[connections[0]]
    assert world.memory.unfinished_bytes - oldest <= 4 << 20
    # Others are served meanwhile.
    world.memory.take(3 << 20)
    assert not world.memory.is_full
    world.memory.give(3 << 20)
    # In the end those that never finish are given up.
    overdue = []
    for _ in range(20):
        overdue = overdue or world.memory.overdue()
    assert connections[0] in overdue
    for connection in connections:
        connection.closed()
    assert world.memory.used_bytes == 0


async def test_a_frame_that_waited_for_memory_goes_on(nursery):
    world = World(nursery, memory=4 << 20)

    class Other:
        frame_bytes_received = 0

        def memory_free(self):
            pass

    first, second = Other(), Other()
    assert world.memory.take_unfinished(first, 1 << 20)
    assert world.memory.take_unfinished(second, 1 << 19)
    world.connection._receiver.frame_bytes_max = 100 << 20
    large = struct.pack(">ihhi", 3 << 20, ApiKey.PRODUCE, 9, 1)
    world.send(large)
    assert world.wire.is_paused
    assert not world.wire.is_closed
    world.memory.give_unfinished(first)
    world.turn.run()
    assert not world.wire.is_paused
    world.memory.give_unfinished(second)
    world.send(bytes((3 << 20) - 8))
    assert world.wire.is_closed, "it is no request; but it came in whole"


async def test_a_task_may_end_with_its_connection(world):
    world.send(encode_request(FetchRequest(), 12, 1, "c"))
    await trio.testing.wait_all_tasks_blocked()
    assert world.memory.used_bytes == 0
    world.connection.closed()
    with trio.fail_after(5):
        await world.ended.wait()


# -- long requests ------------------------------------------------------------------------------


class OnlyGroup(Rules):
    """An authorizer: everybody may read one group and describe any."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def decide(self, principal, host, operation, resource, name):
        may = name == self.group or (operation.name, resource.name) == ("DESCRIBE", "GROUP")
        return Decision(may, Reason.DEFAULT_ALLOW if may else Reason.DEFAULT_DENY)


async def test_an_authorizer_is_asked_before_the_handler(nursery):
    world = World(nursery, authorizer=OnlyGroup("mine"))
    world.send(heartbeat(1, "theirs") + heartbeat(2, "mine") + describe(3, [7]))
    assert len(world.replies) == 1  # the second one's
    _, refused = decode_response(ApiKey.HEARTBEAT, 4, world.wire.frames()[0])
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == [1, 2, 3]
    assert world.steps == 1


async def test_many_questions_do_not_hold_the_loop(nursery):
    """A request may name very many groups: each question is a step of its own."""
    world = World(nursery, authorizer=OnlyGroup("mine"))
    world.send(describe(1, [0] * (STEP_UNITS + 1)))
    assert world.wire.correlation_ids() == []
    await until_answered(world, 1)
    assert world.steps == STEP_UNITS + 1


async def until_answered(world, count):
    with trio.fail_after(30):
        while len(world.wire.correlation_ids()) < count:
            await trio.lowlevel.checkpoint()
            world.turn.run()


async def test_cheap_steps_are_answered_at_once(world):
    world.send(describe(1, [10] * 100) + metadata(2))
    assert world.wire.correlation_ids() == [1, 2]


async def test_dear_steps_are_sliced_and_what_follows_waits_its_turn(world):
    world.send(describe(1, [STEP_UNITS // 2] * 20) + metadata(2))
    assert world.steps == 2
    assert world.wire.correlation_ids() == []
    assert world.dispatcher.counts[ApiKey.METADATA][0] == 0, "the connection is held"
    await until_answered(world, 2)
    assert world.wire.correlation_ids() == [1, 2]
    assert world.memory.used_bytes == 0


async def test_steps_end_with_their_connection(world):
    world.send(describe(1, [STEP_UNITS] * 50))
    world.connection.closed()
    await trio.testing.wait_all_tasks_blocked()
    assert world.steps < 5
    assert world.memory.used_bytes == 0


async def test_a_bug_in_a_later_step_closes_or_answers_as_any(nursery, caplog):
    world = World(nursery, strict=False)
    world.send(describe(1, [STEP_UNITS, STEP_UNITS, STEP_UNITS, -1]))
    await trio.testing.wait_all_tasks_blocked()
    assert world.wire.is_closed
    assert "a bug in a step" in caplog.text


async def test_many_elements_are_decoded_in_slices_and_in_order(world):
    many = ELEMENTS_INLINE * 10
    world.connection._receiver.frame_bytes_max = 100 << 20
    asked = [MetadataRequestTopic(name="t") for _ in range(many)]
    world.send(metadata(1))
    world.send(encode_request(MetadataRequest(topics=asked), 12, 2, "c"))
    assert world.wire.is_paused
    assert world.wire.correlation_ids() == [1]
    await until_answered(world, 2)
    assert not world.wire.is_paused
    world.send(metadata(3))
    await until_answered(world, 3)
    assert world.wire.correlation_ids() == [1, 2, 3]
    assert world.memory.used_bytes == 0


@pytest.mark.parametrize("what", ["elements", "tags", "tags of elements"])
async def test_more_elements_than_any_request_has_are_refused(world, what):
    def varint(value):
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes(out) + bytes([value])

    head = struct.pack(">hhihB", ApiKey.METADATA, 12, 2, 0, 0)
    topic = bytes(16) + b"\0"
    if what == "elements":
        body = varint(ELEMENTS_MAX + 1) + (topic + b"\0") * ELEMENTS_MAX + bytes(3)
    elif what == "tags":
        body = varint(1) + bytes(2) + varint(100_000) + b"\x63\0" * 100_000
    else:
        tagged = topic + varint(200) + b"\x63\0" * 200
        body = varint(2001) + tagged * 2000 + bytes(3)
    frame = head + body
    world.connection._receiver.frame_bytes_max = 100 << 20
    world.send(metadata(1))
    world.send(struct.pack(">i", len(frame)) + frame)
    with trio.fail_after(30):
        while not world.wire.is_closed:
            await trio.lowlevel.checkpoint()
    assert world.memory.used_bytes == 0


async def test_a_response_of_many_elements_is_encoded_in_slices(world):
    topics = [MetadataResponseTopic(name=f"t{n}") for n in range(ELEMENTS_INLINE * 5)]
    world.dispatcher._routes.clear()
    world.dispatcher._apis[ApiKey.METADATA] = Api(
        ApiKey.METADATA, 0, 13, lambda request: MetadataResponse(topics=list(topics))
    )
    world.send(metadata(1) + heartbeat(2))
    assert world.wire.correlation_ids() == []
    await until_answered(world, 1)
    _, response = decode_response(ApiKey.METADATA, 12, world.wire.frames()[0])
    assert response.topics == topics
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == [1, 2]


async def test_a_pipeline_does_not_hold_the_loop(world, nursery):
    """So many requests that each is short and all together are not: others come in between."""
    nursery.start_soon(world.turn.serve)
    count = 5 * SPENT_UNITS // REQUEST_UNITS
    world.turn.begin()
    world.send(b"".join(metadata(number) for number in range(count)))
    world.turn.run()
    handled = world.dispatcher.counts[ApiKey.METADATA]
    assert handled[0] < count / 2
    assert world.wire.is_paused
    steps = 0
    with trio.fail_after(10):
        while handled[0] < count:
            steps += 1
            await trio.lowlevel.checkpoint()
    assert steps >= 3
    assert world.wire.correlation_ids() == list(range(count))
    nursery.cancel_scope.cancel()


async def test_who_leaves_now_and_then_does_not_keep_the_others_frames_for_ever():
    """One client holds all memory of unfinished frames and has more of them in line. As often as
    one of its own leaves, nobody was found overdue, and whoever stands behind waited for ever."""

    class Holder:
        frame_bytes_received = 0

        def memory_free(self):
            pass

    memory = RequestMemory(1000)
    holders = [Holder() for _ in range(50)]
    inside = [holder for holder in holders if memory.take_unfinished(holder, 100)]
    assert len(inside) == 5
    given_up = []
    for look in range(100):
        given_up += memory.overdue()
        if look % 6 == 5:
            memory.give_unfinished(next(iter(memory._unfinished)))
            waiting = [holder for holder in holders if holder not in memory._unfinished]
            assert memory.take_unfinished(waiting[-1], 100)
            assert not memory.take_unfinished(waiting[0], 100)
    assert given_up, "frames that were under way for 20 looks and more were never given up"


async def test_a_frame_counts_what_has_arrived_of_it(world):
    """What the look at unfinished frames compares."""
    world.connection._receiver.frame_bytes_max = 100 << 20
    world.send(struct.pack(">ihhi", 300_000, ApiKey.PRODUCE, 9, 1))
    assert world.connection.frame_bytes_received == 8
    world.send(bytes(100_000))
    assert world.connection.frame_bytes_received == 100_008
    world.send(bytes(200_000 - 8))
    assert world.connection.frame_bytes_received == 0
    assert world.memory.unfinished_bytes == 0


class Plain(PlainReply, Reply):
    """Of Produce v9, whose answer is the letter P."""

    __slots__ = ("version",)

    def __init__(self, correlation_id):
        super().__init__()
        self.version = 9
        self.correlation_id = correlation_id

    def answer(self):
        self.parts = [struct.pack(">iis", 5, self.correlation_id, b"P")]
        if self.line is not None:
            self.line.reply_resolved(self)


class PlainProduces:
    """Takes Produce with odd correlation ids; what it takes is in `taken`."""

    def __init__(self, *, is_immediate=False):
        self.taken = []
        self.asked = 0
        self.is_immediate = is_immediate

    def __call__(self, frame):
        self.asked += 1
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if (key, version) != (ApiKey.PRODUCE, 9) or not correlation_id % 2:
            return None
        if correlation_id == 666 + 1:
            raise RuntimeError("a bug in what is plain")
        reply = Plain(correlation_id)
        self.taken.append(reply)
        if self.is_immediate:
            reply.answer()
        return reply


async def test_plain_replies_keep_their_place_in_line(nursery):
    plain = PlainProduces()
    world = World(nursery, plain=plain)
    world.send(produce(1) + heartbeat(2) + produce(3) + produce(4) + produce(5))
    assert [reply.correlation_id for reply in plain.taken] == [1, 3, 5]
    assert world.memory.used_bytes == sum(map(len, map(produce, (1, 3, 4, 5)))) - 4 * 4
    assert world.dispatcher.counts[ApiKey.PRODUCE] == [4, 0]
    plain.taken[1].answer()
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == []
    plain.taken[0].answer()
    assert world.wire.correlation_ids() == [1, 2, 3]
    plain.taken[2].resolve(ProduceResponse())  # which is how it says that something went wrong
    world.replies[1].resolve(ProduceResponse())
    assert world.wire.correlation_ids() == [1, 2, 3, 4, 5]
    assert world.wire.frames()[2][4:] == b"P"
    assert decode_response(ApiKey.PRODUCE, 9, world.wire.frames()[4])[1] == ProduceResponse()
    assert world.memory.used_bytes == 0


async def test_a_plain_reply_may_be_there_at_once(nursery):
    world = World(nursery, plain=PlainProduces(is_immediate=True))
    world.send(produce(1) + produce(3))
    assert world.wire.correlation_ids() == [1, 3]
    world.send(heartbeat(4) + produce(5))
    assert world.wire.correlation_ids() == [1, 3]
    world.replies[0].resolve(HeartbeatResponse())
    assert world.wire.correlation_ids() == [1, 3, 4, 5]
    assert world.memory.used_bytes == 0


async def test_a_plain_reply_holds_its_memory_until_it_is_there(nursery):
    plain = PlainProduces()
    world = World(nursery, plain=plain)
    world.send(produce(1))
    world.connection.closed()
    assert world.memory.used_bytes > 0
    plain.taken[0].answer()
    assert world.memory.used_bytes == 0
    assert world.wire.correlation_ids() == []


async def test_a_bug_in_a_plain_handler_closes_as_any(nursery, caplog):
    world = World(nursery, strict=False, plain=PlainProduces())
    world.send(produce(667))
    assert world.wire.is_closed
    assert [record.message for record in caplog.records] == ["handler_failed"]
    assert world.dispatcher.counts[ApiKey.PRODUCE] == [1, 1]
    assert world.memory.used_bytes == 0


class NoQuotas:
    def accounted(self, connection, request, route, size_bytes):
        return route


async def test_nothing_is_plain_where_somebody_has_quotas_or_rights(nursery):
    plain = PlainProduces()
    world = World(nursery, plain=plain)
    world.dispatcher.accounting = NoQuotas()
    world.send(produce(1))
    assert not plain.asked
    world.dispatcher.accounting = None
    world.send(produce(3))
    assert plain.asked == 1
    world = World(nursery, plain=plain, authorizer=Rules())
    world.send(produce(5))
    assert plain.asked == 1


async def test_a_pipeline_of_plain_requests_does_not_hold_the_loop(nursery):
    """They cost the turn what others of their API do."""
    world = World(nursery, plain=PlainProduces())
    world.turn.begin()
    world.send(produce(1))
    plain_units = world.turn.spent_units
    world.send(produce(2))
    assert world.turn.spent_units == 2 * plain_units > 0


async def test_an_answered_abandonable_keeps_nothing_of_its_answer(nursery):
    """A cycle that has grown old is never found: servers look at young objects only."""

    async def answer(_):
        await trio.lowlevel.checkpoint()
        return FetchResponse()

    def replies():
        return sum(type(each) is Reply for each in gc.get_objects())

    world = World(nursery)
    world.dispatcher._apis[ApiKey.FETCH] = Api(
        ApiKey.FETCH, 4, 18, lambda request: Abandonable(answer)
    )
    gc.collect()
    gc.disable()
    try:
        before = replies()
        world.send(encode_request(FetchRequest(max_wait_ms=0, min_bytes=0), 12, 3, "c"))
        await trio.testing.wait_all_tasks_blocked()
        assert world.wire.correlation_ids() == [3]
        assert replies() == before
    finally:
        gc.enable()

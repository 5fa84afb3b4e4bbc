"""Dispatch and connection: replies in request order, refusals, back-pressure, bad bytes."""

import struct

import pytest
import trio

from broker.api import Api, ConnectionInfo, Reply
from broker.connection import REQUESTS_IN_FLIGHT_MAX, UNSENT_BYTES_MAX, KafkaConnection
from broker.dispatch import Dispatcher
from broker.handlers.api_versions import ApiVersionsHandler
from runtime.receive import ReceiveChunks
from runtime.request_memory import RequestMemory
from runtime.turn import Turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
)


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
    def __init__(self, nursery, *, strict=True, memory=1 << 20):
        self.replies = []
        self.versions = ApiVersionsHandler()
        self.release = trio.Event()
        apis = [
            Api(ApiKey.HEARTBEAT, 0, 4, self.later),
            Api(ApiKey.LIST_GROUPS, 0, 5, self.slow),
            Api(ApiKey.METADATA, 0, 13, lambda request: MetadataResponse()),
            *self.versions.apis(),
        ]
        self.versions.serve(apis)
        self.turn = Turn()
        self.dispatcher = Dispatcher(apis, nursery, self.turn, strict=strict)
        self.memory = RequestMemory(memory)
        self.wire = Wire()
        self.connection = KafkaConnection(
            self.wire,
            self.dispatcher,
            self.memory,
            ReceiveChunks(),
            ConnectionInfo("1", "127.0.0.1", "PLAINTEXT"),
            1 << 20,
        )
        self.dispatcher.connection_opened(self.connection)

    def later(self, request):
        if request.body.group_id == "broken":
            raise RuntimeError("a bug")
        if request.body.group_id == "silent":
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
        (3, 0, 13),
        (12, 0, 4),
        (16, 0, 5),
        (18, 0, 4),
    ]
    assert world.connection.info.client_software_name == "a-client"


async def test_api_versions_of_the_future_is_answered_in_version_0(world):
    frame = bytearray(encode_request(ApiVersionsRequest("x", "1"), 4, 9, "c"))
    struct.pack_into(">h", frame, 6, 77)
    world.send(bytes(frame))
    body = world.wire.frames()[0]
    assert struct.unpack_from(">ih", body) == (9, ErrorCode.UNSUPPORTED_VERSION)
    _, response = decode_response(ApiKey.API_VERSIONS, 0, body)
    assert {entry.api_key for entry in response.api_keys} == {3, 12, 16, 18}
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
    world.send(b"".join(heartbeat(number) for number in range(1, 9)))
    assert world.wire.is_paused
    assert len(world.replies) == 2, "requests behind the limit are not even looked at"
    for _ in range(8):
        for reply in world.replies:
            if reply.message is None:
                reply.resolve(HeartbeatResponse())
        world.turn.run()
    assert not world.wire.is_paused
    assert world.memory.used_bytes == 0
    assert world.wire.correlation_ids() == list(range(1, 9))


async def test_a_long_line_pauses_reading(world):
    world.memory.limit_bytes = 1 << 30
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
    world.connection.closed()
    assert left == [True]
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

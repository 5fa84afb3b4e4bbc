"""What no client should send, against the whole server on real sockets.

After each burst a well-behaved client writes and reads; at the end no handler may have failed
(conftest looks at the log), nobody was answered UNKNOWN_SERVER_ERROR, and no memory is held.
"""

import math
import random
import resource
import struct
import uuid

import pytest
import trio
from crc32c import crc32c

from broker.connection import UNSENT_BYTES_MAX
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import request_class
from wire.kafka.compiling import carried_fields
from wire.kafka.errors import WireError
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.message import (
    BOOL,
    BYTES,
    FLOAT64,
    RECORDS,
    STRING,
    UUID,
    ZERO_UUID,
    Array,
    Primitive,
)
from wire.kafka.messages import (
    FetchRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    ProduceResponse,
)
from wire.kafka.messages.produce import PartitionProduceResponse, TopicProduceResponse
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

UNKNOWN_SERVER_ERROR = -1
STRINGS = [
    "t", "t", "u", "g", "g", "range", "consumer", "", "m-1", "__consumer_offsets", "0",
    "retention.ms", "cleanup.policy", "compact", "a b", "ä", "x" * 300, "classic", "Stable",
]  # fmt: skip
NUMBERS = [0, 0, 1, 1, 2, 3, -1, -2, -5, 7, 100, 127, -128]
LARGE = [2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 1 << 20]
#: Small, so that a test does not wait, and few things are made.
BOUNDED = {"num_partitions": [-1, 0, 1, 3, 2**31 - 1], "count": [-1, 0, 1, 3, 2**31 - 1]}


class Good:
    """The client that nobody may harm."""

    def __init__(self, client, requests):
        self.client = client
        self.requests = requests
        self.next_offset = 0

    async def check(self):
        with trio.fail_after(5):
            answer = await self.client.produce("good", [b"%d" % self.next_offset])
            assert (answer.error_code, answer.base_offset) == (0, self.next_offset)
            got = await self.client.fetch("good", self.next_offset)
            assert self.requests.values(got.records) == [
                (self.next_offset, b"%d" % self.next_offset)
            ]
        self.next_offset += 1


@pytest.fixture
async def good(server, requests):
    client = await server.connect()
    for name in ("good", "t", "u"):
        await client.create_topic(name, 2)
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    return Good(client, requests)


async def drain(stream, received):
    """Reads until the server closes or a whole frame is there."""
    try:
        while data := await stream.receive_some(1 << 16):
            received += data
            if len(received) >= 4 and len(received) >= 4 + struct.unpack_from(">i", received)[0]:
                return
    except trio.BrokenResourceError:
        pass


async def throw(server, data, *, seconds=0.05):
    """Sends it on a connection of its own; what came back: a frame, or until the time or the
    close."""
    received = bytearray()
    stream = await trio.open_tcp_stream(*server.address)
    async with stream:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, stream, received)
                try:
                    await stream.send_all(data)
                except trio.BrokenResourceError:
                    nursery.cancel_scope.cancel()
    return bytes(received)


def batches(rng):
    """Records of all kinds of damage."""
    records = [
        Record(n, n, b"k", b"v" * rng.randrange(50), []) for n in range(rng.randrange(1, 20))
    ]
    batch = bytearray(
        build_batch(
            records,
            base_timestamp=1_700_000_000_000,
            compression=rng.choice(list(Compression)),
            producer_id=rng.choice([-1, -1, 5]),
            producer_epoch=rng.choice([-1, 0]),
            base_sequence=rng.choice([-1, 0, 1]),
        )
    )
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        batch[rng.randrange(len(batch))] = rng.randrange(256)
    if rng.random() < 0.7:
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    if rng.random() < 0.1:
        del batch[rng.randrange(len(batch)) :]
    return bytes(batch)


class Maker:
    """Well-formed requests whose values are plausible, odd or extreme."""

    def __init__(self, rng, ids):
        self.rng = rng
        self.ids = [ZERO_UUID, uuid.UUID(int=9), *ids]

    def make(self, cls, version, depth=0):
        made = cls()
        for name, spec in carried_fields(cls, version):
            setattr(made, name, self.value(name, spec, version, depth))
        return made

    def value(self, name, spec, version, depth):
        rng, kind = self.rng, spec.kind
        if spec.nullable.covers(version) and rng.random() < 0.3:
            return None
        if isinstance(kind, Array):
            return [
                self.single(name, kind.element, version, depth)
                for _ in range(rng.choice([0, 1, 1, 2]))
            ]
        return self.single(name, kind, version, depth)

    def single(self, name, kind, version, depth):
        rng = self.rng
        if not isinstance(kind, Primitive):
            return self.make(kind, version, depth + 1)
        if kind is STRING:
            return rng.choice(STRINGS)
        if kind is BYTES:
            return rng.randbytes(rng.choice([0, 1, 40]))
        if kind is RECORDS:
            return batches(rng)
        if kind is BOOL:
            return rng.random() < 0.5
        if kind is UUID:
            return rng.choice(self.ids)
        if kind is FLOAT64:
            return rng.choice([0.0, -1.0, 1e-300, 1e308, math.inf, -math.inf, math.nan])
        if name in BOUNDED:
            return rng.choice(BOUNDED[name])
        if name.endswith("_ms"):
            return rng.choice([0, 1, 20, -1])
        number = rng.choice(NUMBERS if rng.random() < 0.9 else LARGE)
        least, most = ends(kind)
        return max(least, min(most, number))


def ends(kind):
    """The least and the greatest number of a type."""
    bits = int(kind.value.removeprefix("u").removeprefix("int"))
    if kind.value.startswith("u"):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def error_codes(value):
    """Every error code in a message."""
    for name in getattr(type(value), "__slots__", ()):
        inner = getattr(value, name)
        if name == "error_code":
            yield inner
        elif isinstance(inner, list):
            for one in inner:
                yield from error_codes(one)
        else:
            yield from error_codes(inner)


def served(server):
    apis = server.parts["Dispatcher"]._apis.values()
    return [(api.key, v) for api in apis for v in range(api.version_min, api.version_max + 1)]


def settled(server):
    memory = server.parts["KafkaServer"].memory
    return memory.used_bytes == 0 and len(server.parts["Dispatcher"].connections) == 1


@pytest.fixture
def all_settled(server, wait_until):
    """All but the good client are gone, and so is what they held."""
    return lambda: wait_until(lambda: settled(server))


# --------------------------------------------------------------------------------------------------


async def test_odd_requests_that_are_well_formed(server, good, all_settled):
    """Each is answered (or, where no answer can be, closed) without a failure of ours."""
    rng = random.Random(11)
    logs = server.parts["LogManager"]
    maker = Maker(rng, [logs.get("t", 0).topic.id, logs.get("u", 0).topic.id])
    answered = set()

    async def ask(key, version, body):
        frame = encode_request(body, version, 7, rng.choice([None, "c", ""]))
        data = await throw(server, frame, seconds=0.5)
        if data:
            correlation_id, answer = decode_response(key, version, data[4:])
            assert correlation_id == 7
            assert UNKNOWN_SERVER_ERROR not in set(error_codes(answer)), (key, version, body)
            answered.add(key)

    for _ in range(25):
        async with trio.open_nursery() as nursery:
            for key, version in served(server):
                nursery.start_soon(ask, key, version, maker.make(request_class(key), version))
        await good.check()
    await all_settled()
    assert answered == {key for key, _ in served(server)}


def mutated(rng, frame):
    """The frame with some bytes changed, removed or put in, and its size made right again (mostly:
    what is behind the size is what is to be reached)."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(body))
        what = rng.random()
        if what < 0.6:
            body[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif what < 0.75:
            del body[at : at + rng.randrange(1, 9)]
        elif what < 0.9:
            body[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            body[at : at + 4] = struct.pack(">i", rng.choice([-1, -2, 2**31 - 1, 1 << 20]))
        if not body:
            body = bytearray(b"\0")
    return struct.pack(">i", len(body)) + body


async def test_mutated_frames(server, good, all_settled):
    rng = random.Random(12)
    logs = server.parts["LogManager"]
    maker = Maker(rng, [logs.get("t", 0).topic.id])
    routes = served(server)
    for _ in range(25):
        frames = []
        for _ in range(60):
            key, version = rng.choice(routes)
            frame = encode_request(maker.make(request_class(key), version), version, 7, "c")
            frames.append(mutated(rng, frame))
        async with trio.open_nursery() as nursery:
            for frame in frames:
                nursery.start_soon(throw, server, frame)
        await good.check()
    await all_settled()


async def test_random_bytes(server, good, all_settled):
    rng = random.Random(13)
    for _ in range(20):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                data = rng.randbytes(rng.randrange(1, 400))
                if rng.random() < 0.7:  # a size and a key that exist
                    head = struct.pack(
                        ">ihhi", len(data) + 8, rng.randrange(80), rng.randrange(14), 7
                    )
                    data = head + data
                nursery.start_soon(throw, server, data)
        await good.check()
    await all_settled()


async def test_frames_cut_short_at_every_byte(server, good, requests, all_settled):
    frame = encode_request(requests.produce(("t", 0, [b"x"])), 9, 1, "c")
    async with trio.open_nursery() as nursery:
        for end in range(len(frame)):
            nursery.start_soon(throw, server, frame[:end])
    await good.check()
    await all_settled()
    assert server.parts["LogManager"].get("t", 0).high_watermark == 0


async def test_a_slow_trickle_is_served(server, good, requests, all_settled):
    """A byte at a time, on many connections at once, frames of several sizes."""
    frames = [
        encode_request(requests.produce(("t", 1, [b"x" * size])), 9, 1, "c")
        for size in (1, 500, 100_000)
    ]

    async def trickle(frame):
        stream = await trio.open_tcp_stream(*server.address)
        async with stream:
            for byte in frame[:200]:
                await stream.send_all(bytes([byte]))
            await stream.send_all(frame[200:])
            data = await stream.receive_some(1000)
            _, answer = decode_response(ApiKey.PRODUCE, 9, data[4:])
            assert answer.responses[0].partition_responses[0].error_code == 0

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            for frame in frames:
                nursery.start_soon(trickle, frame)
        for _ in range(5):
            await good.check()
    assert server.parts["LogManager"].get("t", 1).high_watermark == 30
    await all_settled()


async def test_announced_and_not_sent_costs_nothing(server, good, all_settled):
    """A hundred connections that each announce 90 MiB."""
    before = peak_bytes()
    streams = [await trio.open_tcp_stream(*server.address) for _ in range(100)]
    for stream in streams:
        await stream.send_all(struct.pack(">ihhi", 90 << 20, 0, 9, 1) + b"\0" * 1000)
    await good.check()
    await good.check()
    assert peak_bytes() - before < 200 << 20
    for stream in streams:
        await stream.aclose()
    await all_settled()


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_sizes_out_of_bounds_close_at_once(server, good, all_settled):
    for size in (0, -1, -(2**31), 2**31 - 1, (100 << 20) + 1):
        stream = await trio.open_tcp_stream(*server.address)
        async with stream:
            with trio.fail_after(2):
                await stream.send_all(struct.pack(">i", size))
                received = bytearray()
                await drain(stream, received)
            assert received == b""
    await good.check()
    await all_settled()


async def test_clients_that_leave_in_the_middle(server, good, requests, all_settled):
    """With requests half sent, unanswered, and answers unread."""
    rng = random.Random(14)
    fetch = encode_request(requests.fetch(("good", 0, 0), max_wait_ms=60_000), 12, 1, "c")
    waits = encode_request(requests.fetch(("t", 0, 0), max_wait_ms=60_000), 12, 1, "c")
    produce = encode_request(requests.produce(("u", 0, [b"x" * 50_000])), 9, 1, "c")
    asks = encode_request(MetadataRequest(topics=None), 12, 1, "c")

    async def come_and_go():
        stream = await trio.open_tcp_stream(*server.address)
        async with stream:
            data = b"".join(rng.choice([fetch, waits, produce, asks]) for _ in range(20))
            await stream.send_all(data[: rng.randrange(len(data))])

    await good.check()
    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for _ in range(15):
                nursery.start_soon(come_and_go)
        await good.check()
    await all_settled()
    assert not server.parts["LogManager"].get("t", 0)._watchers


async def test_a_client_that_reads_nothing_is_not_read_from_for_ever(server, good, all_settled):
    """It asks for megabytes again and again: what waits for it is bounded, by not reading on."""
    for _ in range(20):
        await good.client.produce("t", [b"x" * 900_000])
    before = peak_bytes()
    stream = await trio.open_tcp_stream(*server.address)
    async with stream:
        body = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 << 20)
        body.topics = good.requests.fetch(("t", 0, 0), partition_max_bytes=50 << 20).topics
        frame = encode_request(body, 12, 1, "c")
        with trio.move_on_after(1):
            while True:
                await stream.send_all(frame)
        await good.check()
        [reader] = [
            connection
            for connection in server.parts["Dispatcher"].connections
            if connection._transport.unsent_bytes
        ]
        assert reader._is_paused
        # At most one reply beyond the limit is waiting, as views, not copies.
        assert reader._transport.unsent_bytes < UNSENT_BYTES_MAX + (20 << 20)
        assert peak_bytes() - before < 512 << 20
    await all_settled()


def test_error_codes_finds_them():
    answer = ProduceResponse(
        responses=[TopicProduceResponse("t", ZERO_UUID, [PartitionProduceResponse(0, -1)])]
    )
    assert list(error_codes(answer)) == [-1]
    with pytest.raises(WireError):
        decode_response(ApiKey.PRODUCE, 9, b"")


def number_paths(cls, version, path=()):
    """((field, field, …), both ends) of each number that a request of this version may carry."""
    for name, spec in carried_fields(cls, version):
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if not isinstance(kind, Primitive):
            yield from number_paths(kind, version, (*path, name))
        elif kind.value.removeprefix("u").startswith("int") and not isinstance(spec.kind, Array):
            yield (*path, name), ends(kind)


def put(value, path, number):
    """Sets it in every element; whether there was any."""
    name, *rest = path
    if not rest:
        setattr(value, name, number)
        return True
    inner = getattr(value, name)
    found = [
        put(one, rest, number) for one in (inner if isinstance(inner, list) else [inner]) if one
    ]
    return any(found)


async def test_every_number_may_be_extreme(server, good, all_settled):
    """One number of a plausible request after the other, times among them, at both ends of its
    type: a sum or a product of it must fit in what carries it on. No handler fails."""
    rng = random.Random(13)
    maker = Maker(rng, [server.parts["LogManager"].get("t", 0).topic.id])

    async def ask(key, version, path, number):
        body = maker.make(request_class(key), version)
        while not put(body, path, number):
            body = maker.make(request_class(key), version)
        await throw(server, encode_request(body, version, 7, "c"), seconds=0.2)

    newest = dict(sorted(served(server)))
    oldest = dict(sorted(served(server), reverse=True))
    for key, version in sorted({*newest.items(), *oldest.items(), (ApiKey.OFFSET_COMMIT, 4)}):
        async with trio.open_nursery() as nursery:
            for path, both in number_paths(request_class(key), version):
                for number in both:
                    if path[-1] not in BOUNDED or number < 0:
                        for _ in range(3):
                            nursery.start_soon(ask, key, version, path, number)
        await good.check()
    await all_settled()

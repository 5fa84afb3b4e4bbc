"""A Kafka client of the simulation: frames over the simulated net, leaders from Metadata.

It does as little as a client may: one request at a time on a connection, a time-out after which the
connection is closed, a new look at the metadata after every error.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import trio

from runtime.receive import FrameReceiver, ReceiveChunks
from sim.history import Violation
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import MetadataRequest, MetadataResponse
from wire.kafka.messages.metadata import MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runtime.net import Connection, Transport
    from runtime.sim_net import SimNet
    from wire.kafka.message import Message

M = TypeVar("M", bound="Message")
L = TypeVar("L", bound="Connection")

FRAME_BYTES_MAX = 64 << 20
ANSWER_SECONDS = 6.0
CONNECT_SECONDS = 1.5
#: By API key: those that name topics, not ids.
VERSIONS = {
    0: 9,
    1: 12,
    2: 7,
    3: 12,
    8: 8,
    9: 7,
    10: 3,
    11: 7,
    12: 4,
    13: 5,
    14: 5,
    18: 3,
    19: 7,
    20: 6,
    21: 2,
    22: 4,
    37: 3,
    44: 1,
}


class Unanswered(Exception):
    """No answer came: nothing is known of what was asked."""


class KafkaLine:
    """One connection (runtime.net.Connection)."""

    def __init__(self, transport: Transport, chunks: ReceiveChunks) -> None:
        self._transport = transport
        self._receiver = FrameReceiver(chunks, FRAME_BYTES_MAX, self._on_frame)
        self._answer: bytes | None = None
        self._event = trio.Event()
        self._id = 0
        self.is_closed = False

    async def call(
        self, body: Message, seconds: float = ANSWER_SECONDS, *, version: int | None = None
    ) -> Message:
        """The answer. `version`: else that of VERSIONS. Unanswered: the connection is closed
        then."""
        key = body.INFO.key
        if version is None:
            version = VERSIONS[key]
        self._id += 1
        self._answer = None
        self._event = trio.Event()
        if self.is_closed:
            raise Unanswered("closed")
        self._transport.write([encode_request(body, version, self._id, "sim")])
        with trio.move_on_after(seconds):
            await self._event.wait()
        answered = self._taken()
        if answered is None:
            self.close()
            raise Unanswered("broken" if self._event.is_set() else "timed out")
        number, answer = decode_response(key, version, answered)
        assert number == self._id, "answers come in the order of requests"
        return answer

    def _taken(self) -> bytes | None:
        return self._answer

    def _on_frame(self, frame: memoryview) -> bool:
        self._answer = bytes(frame)
        self._event.set()
        return True

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        self._receiver.received(count)

    def drained(self) -> None:
        return

    def closed(self) -> None:
        self.is_closed = True
        self._event.set()

    def close(self) -> None:
        self._transport.close()


class KafkaClient:
    """Finds leaders and keeps a connection to each broker that it asks."""

    def __init__(self, net: SimNet, seeds: Iterable[tuple[str, int]]) -> None:
        self._net = net
        #: One address for each broker there may be.
        self.seeds = list(seeds)
        self._chunks = ReceiveChunks()
        self._lines: dict[tuple[str, int], KafkaLine] = {}
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._turn = 0

    async def _line(self, address: tuple[str, int]) -> KafkaLine:
        line = self._lines.get(address)
        if line is not None and not line.is_closed:
            return line

        def make(transport: Transport) -> KafkaLine:
            return KafkaLine(transport, self._chunks)

        try:
            with trio.fail_after(CONNECT_SECONDS):
                made = await self._net.connect(*address, make)
        except (OSError, trio.TooSlowError) as error:
            raise Unanswered(f"no connection: {error}") from error
        assert isinstance(made, KafkaLine)
        self._lines[address] = made
        return made

    async def try_connect(
        self, address: tuple[str, int], make: Callable[[Transport, ReceiveChunks], L]
    ) -> L | None:
        """A connection of the caller's own kind; None if there is none in time."""
        made: list[L] = []

        def connected(transport: Transport) -> L:
            made.append(make(transport, self._chunks))
            return made[0]

        with suppress(OSError), trio.move_on_after(CONNECT_SECONDS):
            await self._net.connect(*address, connected)
            return made[0]
        return None

    async def try_any(self, body: Message, answer: type[M]) -> M | None:
        """As `ask_any`; None without an answer."""
        try:
            return await self.ask_any(body, answer)
        except Unanswered:
            return None

    async def try_leader(self, topic: str, partition: int) -> tuple[str, int] | None:
        """Where it is led; None if nobody knows now."""
        if (topic, partition) not in self._leaders:
            with suppress(Unanswered):
                await self._look(topic)
        return self._leaders.get((topic, partition))

    async def ask_any(self, body: Message, answer: type[M]) -> M:
        """One broker after the other, one for each call."""
        self._turn += 1
        address = self.seeds[self._turn % len(self.seeds)]
        got = await (await self._line(address)).call(body)
        assert isinstance(got, answer)
        return got

    async def ask_at(
        self,
        address: tuple[str, int],
        body: Message,
        answer: type[M],
        version: int | None = None,
    ) -> M:
        got = await (await self._line(address)).call(body, version=version)
        assert isinstance(got, answer)
        return got

    async def ask_leader(
        self,
        topic: str,
        partition: int,
        body: Message,
        answer: type[M],
        version: int | None = None,
    ) -> M:
        """Unanswered also if the partition has no leader now."""
        address = self._leaders.get((topic, partition))
        if address is None:
            await self._look(topic)
            address = self._leaders.get((topic, partition))
            if address is None:
                raise Unanswered(f"{topic}-{partition} has no leader")
        try:
            got = await (await self._line(address)).call(body, version=version)
        except Unanswered:
            self.forget(topic, partition)
            raise
        assert isinstance(got, answer)
        return got

    def leader(self, topic: str, partition: int) -> str:
        """The host that was asked last."""
        return self._leaders[topic, partition][0]

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The newest that it was told of; -1: none yet."""
        return self._epochs.get((topic, partition), -1)

    def forget(self, topic: str, partition: int) -> None:
        """Who leads it is looked up anew."""
        self._leaders.pop((topic, partition), None)

    async def _look(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        request.allow_auto_topic_creation = False
        got = await self.ask_any(request, MetadataResponse)
        if not got.brokers:
            raise Violation("no brokers", f"{topic}: librdkafka would ask nobody ever again")
        addresses = {each.node_id: (each.host, each.port) for each in got.brokers}
        for found in got.topics:
            for each in found.partitions:
                key = topic, each.partition_index
                # As Java's client: who leads in an older epoch does not know yet that it is over.
                is_current = each.leader_epoch >= self._epochs.get(key, -1)
                if each.error_code == 0 and each.leader_id in addresses and is_current:
                    self._leaders[key] = addresses[each.leader_id]
                    self._epochs[key] = each.leader_epoch

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

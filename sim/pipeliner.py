"""A producer with several requests in flight on a connection, as real ones have.

`sim.workload.Producer` sends one batch at a time, so that what a broker does with the batches
behind one that it refused is never seen. This one has up to five requests in flight to each broker
and up to five batches of a partition, and does as Kafka's idempotent clients do when one of them
fails: the partition is *drained* (nothing more is sent until all its batches in flight are
answered), then all that was not acknowledged is sent again, in order, with its sequence numbers.
OUT_OF_ORDER_SEQUENCE_NUMBER is what a batch behind a failed one is to get.
Every other producer then goes on in a new epoch, as librdkafka does once all partitions are
drained, unless a batch may be in the log unknown to it; the others go on in the old one (Java's).

Judged, besides the history: a batch is acknowledged within ACKED_SECONDS of the heal, or of being
sent if that is later; whoever waits longer is told of with all that is known of it.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import trio

from runtime.receive import FrameReceiver
from sim.client import FRAME_BYTES_MAX, VERSIONS
from sim.fetching import RETRY_SECONDS
from sim.history import Violation
from sim.workload import RETRIABLE, THINK_SECONDS
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from sim.history import Partition
    from sim.world import World
    from wire.kafka.message import Message

#: On a connection; and of a partition, for which the broker remembers so many batches.
REQUESTS_MAX = 5
BATCHES_MAX = 5
#: After which a connection without an answer is closed.
ANSWER_SECONDS = 6.0
#: The longest that a batch may wait for its acknowledgement when nothing is wrong any more.
ACKED_SECONDS = 40.0
#: Partitions in one request, at most.
PARTITIONS_PER_REQUEST = 3


class NotAckedError(Exception):
    """A batch waits for too long although nothing is in its way."""


class PipelinedLine:
    """One connection (runtime.net.Connection) with many requests in flight."""

    def __init__(self, transport: Transport, chunks: ReceiveChunks) -> None:
        self._transport = transport
        self._receiver = FrameReceiver(chunks, FRAME_BYTES_MAX, self._on_frame)
        self._waiting: deque[tuple[int, int, float, Callable[[Message | None], None]]] = deque()
        self._id = 0
        self.is_closed = False

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def oldest_at(self) -> float:
        """When the oldest request without an answer was sent."""
        return self._waiting[0][2] if self._waiting else float("inf")

    def ask(self, body: Message, answered: Callable[[Message | None], None]) -> None:
        """`answered(None)` if the connection ends before the answer comes."""
        key = body.INFO.key
        self._id += 1
        self._waiting.append((self._id, key, trio.current_time(), answered))
        self._transport.write([encode_request(body, VERSIONS[key], self._id, "sim")])

    def _on_frame(self, frame: memoryview) -> bool:
        number, key, _, answered = self._waiting.popleft()
        told, answer = decode_response(key, VERSIONS[key], bytes(frame))
        assert told == number, "answers come in the order of requests"
        answered(answer)
        return True

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        self._receiver.received(count)

    def drained(self) -> None:
        return

    def closed(self) -> None:
        self.is_closed = True
        while self._waiting:
            self._waiting.popleft()[3](None)

    def close(self) -> None:
        self._transport.close()


class _Batch:
    __slots__ = ("is_unknown", "last_code", "sequence", "values", "wanted_at")

    def __init__(self, values: list[bytes], sequence: int) -> None:
        self.values = values
        self.sequence = sequence
        self.wanted_at = trio.current_time()
        #: It may be in the log, though nobody said so.
        self.is_unknown = False
        #: The last error; for people.
        self.last_code = ""


class _Lane:
    """A partition's batches that are not acknowledged, oldest first."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.batches: deque[_Batch] = deque()
        #: So many of them, from the first on, were sent; and those without an answer yet.
        self.sent = 0
        self.in_flight = 0
        self.is_draining = False
        self.next_sequence = 0


class Pipeliner:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._client = world.client(name)
        self._lines: dict[tuple[str, int], PipelinedLine] = {}
        self._lanes: dict[Partition, _Lane] = {}
        self._id = (-1, -1)
        self._count = 0
        #: Whether it is one that begins a new epoch.
        self._bumps = name[-1] in "13579"
        self._bump_wanted = False
        self._stirred = trio.Event()

    # -- the task --------------------------------------------------------------------------------

    async def run(self) -> None:
        world = self._world
        await self._init()
        think_until = 0.0
        while not world.is_draining or any(lane.batches for lane in self._lanes.values()):
            self._check_time()
            if not world.is_draining and trio.current_time() >= think_until:
                think_until = trio.current_time() + THINK_SECONDS * (1 + self._rng.random())
                self._make()
            await self._send_all()
            with trio.move_on_after(THINK_SECONDS):
                await self._stirred.wait()
            self._stirred = trio.Event()
        for line in self._lines.values():
            line.close()

    async def _init(self) -> None:
        while True:
            answer = await self._client.try_any(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                InitProducerIdResponse,
            )
            if answer is not None and answer.error_code == 0:
                self._id = (answer.producer_id, answer.producer_epoch)
                return
            await trio.sleep(RETRY_SECONDS)

    def _make(self) -> None:
        """A batch for some partitions that may have one more."""
        world = self._world
        for partition in world.partitions:
            lane = self._lanes.setdefault(partition, _Lane(partition))
            if len(lane.batches) >= BATCHES_MAX or self._rng.random() < 0.4:
                continue
            values = []
            for _ in range(1 + self._rng.randrange(3)):
                values.append(b"%s-%d-" % (self.name.encode(), self._count))
                self._count += 1
                world.history.sent_ms[values[-1]] = world.time_ms()
            world.history.send(partition, self.name, values)
            lane.batches.append(_Batch(values, lane.next_sequence))
            lane.next_sequence += len(values)

    def _check_time(self) -> None:
        world = self._world
        now = trio.current_time()
        for line in self._lines.values():
            if now - line.oldest_at > ANSWER_SECONDS and not line.is_closed:
                world.trace.count("pipelines timed out")
                line.close()
        if not world.is_healed:
            return
        for lane in self._lanes.values():
            if not lane.batches:
                continue
            waited = now - max(lane.batches[0].wanted_at, world.healed_at)
            if waited > ACKED_SECONDS:
                raise NotAckedError(
                    f"{self.name}: {lane.partition} has waited for {waited:.1f} s, "
                    f"last {lane.batches[0].last_code!r}, in flight {lane.in_flight}, "
                    f"draining {lane.is_draining}, in all "
                    f"{Counter(one.last_code for one in lane.batches)}"
                )

    # -- out -------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        if self._bump_wanted and not any(lane.in_flight for lane in self._lanes.values()):
            self._bump()
        if self._bump_wanted:
            return
        ready: dict[tuple[str, int], list[_Lane]] = {}
        for lane in list(self._lanes.values()):
            if lane.is_draining and not lane.in_flight:
                lane.is_draining, lane.sent = False, 0
            if lane.is_draining or lane.sent == len(lane.batches):
                continue
            address = await self._client.try_leader(*lane.partition)
            if address is not None:
                ready.setdefault(address, []).append(lane)
        for address, lanes in ready.items():
            line = await self._line(address)
            if line is None:
                for lane in lanes:
                    self._client.forget(*lane.partition)
                await trio.sleep(RETRY_SECONDS)
                continue
            self._fill(line, address[0], lanes)

    async def _line(self, address: tuple[str, int]) -> PipelinedLine | None:
        line = self._lines.get(address)
        if line is None or line.is_closed:
            line = await self._client.try_connect(address, PipelinedLine)
            if line is not None:
                self._lines[address] = line
        return line

    def _fill(self, line: PipelinedLine, host: str, lanes: list[_Lane]) -> None:
        """As many requests as the line may have, each with a batch of some of the partitions."""
        while line.in_flight < REQUESTS_MAX and not line.is_closed:
            may = [one for one in lanes if one.sent < len(one.batches) and not one.is_draining]
            if not may:
                return
            count = min(len(may), 1 + self._rng.randrange(PARTITIONS_PER_REQUEST))
            some = self._rng.sample(may, count)
            sent = []
            topics: dict[str, TopicProduceData] = {}
            for lane in some:
                batch = lane.batches[lane.sent]
                lane.sent += 1
                lane.in_flight += 1
                sent.append((lane, batch))
                topic, number = lane.partition
                found = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
                found.partition_data.append(
                    PartitionProduceData(index=number, records=self._encoded(batch))
                )
            request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=list(topics.values()))

            def answered(answer: Message | None, sent: list[tuple[_Lane, _Batch]] = sent) -> None:
                self._answered(host, sent, answer)

            line.ask(request, answered)

    def _encoded(self, batch: _Batch) -> bytes:
        producer_id, epoch = self._id
        return bytes(
            build_batch(
                [Record(n, 0, None, value) for n, value in enumerate(batch.values)],
                base_timestamp=self._world.history.sent_ms[batch.values[0]],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=batch.sequence,
            )
        )

    def _bump(self) -> None:
        """All is answered, and what was refused is in no log: it begins anew in the next epoch."""
        self._bump_wanted = False
        lanes = list(self._lanes.values())
        if any(batch.is_unknown for lane in lanes for batch in lane.batches):
            return
        self._id = (self._id[0], self._id[1] + 1)
        self._world.trace.count("producer epochs bumped")
        for lane in lanes:
            lane.sent, lane.next_sequence = 0, 0
            for batch in lane.batches:
                batch.sequence = lane.next_sequence
                lane.next_sequence += len(batch.values)

    # -- in --------------------------------------------------------------------------------------

    def _answered(
        self, host: str, sent: list[tuple[_Lane, _Batch]], answer: Message | None
    ) -> None:
        self._stirred.set()
        results: dict[Partition, tuple[ErrorCode, int]] = {}
        if answer is not None:
            assert isinstance(answer, ProduceResponse)
            for topic in answer.responses:
                for one in topic.partition_responses:
                    code = ErrorCode(one.error_code)
                    results[topic.name or "", one.index] = code, one.base_offset
        for lane, batch in sent:
            lane.in_flight -= 1
            told, offset = results.get(lane.partition, (None, -1))
            try:
                self._settle(host, lane, batch, told, offset)
            except Violation as violation:
                self._world.fail(violation)

    def _settle(
        self, host: str, lane: _Lane, batch: _Batch, code: ErrorCode | None, offset: int
    ) -> None:
        world = self._world
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._acked(host, lane, batch, offset if code is ErrorCode.NONE else -1)
            return
        is_first = bool(lane.batches) and lane.batches[0] is batch
        batch.last_code = "no answer" if code is None else code.name
        lane.is_draining = True
        if code is not None and not is_first:
            world.trace.count("pipelined batches behind a failed one")
        if code is None or code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            batch.is_unknown = True
            self._client.forget(*lane.partition)
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first:
            self._bump_wanted |= self._bumps
        elif code not in RETRIABLE:
            raise Violation(
                "refused", f"{self.name}: {lane.partition} {batch.values[0]!r}: {code.name}"
            )
        else:
            self._client.forget(*lane.partition)
        world.trace.count(f"pipelined {batch.last_code}")

    def _acked(self, host: str, lane: _Lane, batch: _Batch, base_offset: int) -> None:
        """And so are those before it: the log has them in front of it."""
        world = self._world
        while lane.batches:
            done = lane.batches.popleft()
            lane.sent = max(lane.sent - 1, 0)
            if done is batch:
                break
        else:
            return  # acknowledged with a later one before
        if base_offset >= 0:
            world.history.ack(lane.partition, base_offset, batch.values, host)
        world.trace.event(self.name, "acked", f"{lane.partition} {base_offset}")
        world.made_progress(self.name)

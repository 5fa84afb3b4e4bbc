"""Clients of a compacted topic: writers of a few keys, who delete too, and readers of all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.fetching import RETRY_SECONDS, fetch_and_tell, records_of
from sim.keyed_history import Keyed
from sim.names import KEYED_PARTITION
from sim.preset import BROKER_PROPERTIES
from sim.transactions.decided import committed, parse
from sim.workload import EARLIEST, LATEST, Consumer, Producer
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import ProduceRequest
from wire.kafka.messages.fetch import FetchPartition
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.history import Partition
    from sim.keyed_history import Pair
    from sim.world import World
    from wire.kafka.messages.fetch import PartitionData

KEY_COUNT = 12
TOMBSTONE_SHARE = 0.2
THINK_SECONDS = 0.2
#: A reader that does not come to the end of a reading begins anew.
READING_FETCHES_MAX = 200


class KeyedWriter(Producer):
    """Idempotent, and sends until it is acknowledged."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, is_idempotent=True)
        self._pairs: list[Pair] = []

    async def run(self) -> None:
        world, rng = self._world, self._rng
        await self._init()
        while not world.is_draining:
            self._pairs = []
            for _ in range(1 + rng.randrange(4)):
                key = b"key-%d" % rng.randrange(KEY_COUNT)
                value = b"%s-%d-" % (self.name.encode(), self._count) + b"." * rng.randrange(80)
                self._count += 1
                is_tombstone = rng.random() < TOMBSTONE_SHARE
                self._pairs.append((key, None if is_tombstone else value))
            await self._send(KEYED_PARTITION, [key for key, _ in self._pairs])
            await trio.sleep(THINK_SECONDS * rng.random())

    def _note_sent(self, partition: Partition, values: Sequence[bytes]) -> None:
        self._world.keyed.send(self._pairs)

    def _note_acked(self, partition: Partition, base_offset: int, values: Sequence[bytes]) -> None:
        self._world.keyed.ack(base_offset, self._pairs)

    def _request(self, partition: Partition, values: Sequence[bytes]) -> ProduceRequest:
        producer_id, epoch = self._id
        codec = Compression.NONE if self._rng.random() < 0.7 else Compression.GZIP
        batch = build_batch(
            [Record(n, n, key, value) for n, (key, value) in enumerate(self._pairs)],
            base_timestamp=self._world.time_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences.get(partition, 0),
            compression=codec,
        )
        data = PartitionProduceData(index=partition[1], records=batch)
        topic = TopicProduceData(name=partition[0], partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])


class KeyedReader:
    """Reads the whole partition, again and again: where there are transactions, all of it that is
    committed."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._consumer = Consumer(world, name)
        self._isolation_level = int(bool(world.txn_partitions))

    async def run(self) -> None:
        while not self._world.is_draining:
            await self.read_all(fetches_max=READING_FETCHES_MAX)
            await trio.sleep(1.0 + self._rng.random())

    async def read_all(self, *, fetches_max: int | None = None) -> int | None:
        """One reading, judged; how many records it found. None if it did not come to its end."""
        world, consumer, keyed = self._world, self._consumer, self._world.keyed
        start = await consumer.offset(KEYED_PARTITION, EARLIEST)
        end = await consumer.offset(KEYED_PARTITION, LATEST, self._isolation_level)
        if start is None or end is None:
            return None
        records: list[Keyed] = []
        began_at = trio.current_time()
        position, last, fetches = start, end, 0
        while position < last:
            fetches += 1
            if fetches_max is not None and fetches > fetches_max:
                return None
            answer = await self._fetch(position)
            if answer is None:
                continue
            found, position, readable = answer
            records += found
            last = max(last, readable)
        start = await consumer.offset(KEYED_PARTITION, EARLIEST)
        if start is None:
            return None
        took_ms = (trio.current_time() - began_at) * 1000
        keeps_up = took_ms < int(BROKER_PROPERTIES["log.cleaner.delete.retention.ms"])
        keyed.check_reading(records, log_start=start, known_before=end, keeps_up=keeps_up)
        world.trace.count("keyed readings")
        world.made_progress(self.name)
        return len(records)

    async def _fetch(self, position: int) -> tuple[list[Keyed], int, int] | None:
        """(records, where to go on, up to where it may be read); None: to be tried again."""
        consumer, world = self._consumer, self._world
        data = FetchPartition(
            partition=KEYED_PARTITION[1],
            fetch_offset=position,
            partition_max_bytes=1 + self._rng.randrange(2000),
        )
        answer = await fetch_and_tell(
            world, self.name, consumer.client, KEYED_PARTITION, data, self._isolation_level
        )
        if answer is None:
            return None
        result, code = answer
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await consumer.offset(KEYED_PARTITION, EARLIEST)
            if start is not None and start > position:
                return [], start, -1
            consumer.client.forget(*KEYED_PARTITION)
            await trio.sleep(RETRY_SECONDS)
            return None
        if code is not ErrorCode.NONE:
            consumer.check_code(code)
            consumer.client.forget(*KEYED_PARTITION)
            await trio.sleep(RETRY_SECONDS)
            return None
        found, position = self._take(position, result)
        world.made_progress(self.name)
        is_committed = bool(self._isolation_level)
        return found, position, result.last_stable_offset if is_committed else result.high_watermark

    def _take(self, position: int, result: PartitionData) -> tuple[list[Keyed], int]:
        batches = list(parse(records_of(result)))
        found: list[Keyed] = []
        for offset, record in committed(batches, result.aborted_transactions or ()):
            if offset >= position:
                assert record.key is not None
                found.append(Keyed(offset, record.key, record.value))
                self._world.txns.read(KEYED_PARTITION, offset, record.value)
        if batches:
            position = max(position, batches[-1].header.last_offset + 1)
        for one in found:
            self._world.keyed.see(one)
        return found, position

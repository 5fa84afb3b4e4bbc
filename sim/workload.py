"""What clients do: producers, consumers, offset commits, topics that come and go.

Each is a task that goes on until `world.is_draining`; its progress is in `world.progress`, by which
the world knows that everything goes on after the faults.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from sim.client import KafkaClient, Unanswered
from sim.fetching import RETRY_SECONDS, fetch_and_tell, records_of
from sim.history import Violation
from sim.preset import SHORT_LIVED_CONFIGS
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from wire.kafka.messages.fetch import FetchPartition
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    DeleteTopicState,
)
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from sim.history import Partition
    from sim.world import World

EARLIEST, LATEST = -2, -1
#: The type of a resource, and what is done to a setting (IncrementalAlterConfigs).
GROUP_RESOURCE, SET = 32, 0
RECORDS_MAX = 1 << 20
#: Of the topic that all use.
PARTITIONS_MAX = 4
#: Between a client's requests, in seconds.
THINK_SECONDS = 0.12
#: Codes after which a client looks for the leader and tries again.
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_CONTROLLER,
    }
)


async def init_producer_id(client: KafkaClient) -> tuple[int, int]:
    """(id, epoch) of a new idempotent producer; asked for until it is given."""
    while True:
        try:
            answer = await client.ask_any(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
                InitProducerIdResponse,
            )
        except Unanswered:
            await trio.sleep(RETRY_SECONDS)
            continue
        if answer.error_code == 0:
            return answer.producer_id, answer.producer_epoch
        await trio.sleep(RETRY_SECONDS)


class Producer:
    """Idempotent: every batch is sent until it is acknowledged. Else: once, and never again."""

    def __init__(self, world: World, name: str, *, is_idempotent: bool) -> None:
        self._world = world
        self.name = name
        self._rng: random.Random = world.rng_for(name)
        self._client: KafkaClient = world.client(name)
        self._is_idempotent = is_idempotent
        self._sequences: dict[Partition, int] = {}
        self._count = 0
        self._id = (-1, -1)

    async def run(self) -> None:
        world = self._world
        if self._is_idempotent:
            await self._init()
        while not world.is_draining:
            partition = world.partitions[self._rng.randrange(len(world.partitions))]
            values = []
            for _ in range(1 + self._rng.randrange(4)):
                size = self._rng.randrange(120)
                values.append(b"%s-%d-" % (self.name.encode(), self._count) + b"." * size)
                self._count += 1
            await self._send(partition, values)
            await trio.sleep(THINK_SECONDS * self._rng.random())

    async def _init(self) -> None:
        self._id = await init_producer_id(self._client)

    def _request(self, partition: Partition, values: Sequence[bytes]) -> ProduceRequest:
        producer_id, epoch = self._id
        now_ms = self._world.time_ms()
        for value in values:
            self._world.history.sent_ms[value] = now_ms
        batch = build_batch(
            [Record(n, 0, None, value) for n, value in enumerate(values)],
            base_timestamp=now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences.get(partition, 0) if self._is_idempotent else -1,
        )
        data = PartitionProduceData(index=partition[1], records=batch)
        topic = TopicProduceData(name=partition[0], partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])

    async def _send(self, partition: Partition, values: Sequence[bytes]) -> None:
        world = self._world
        request = self._request(partition, values)
        self._note_sent(partition, values)
        while True:
            code = ErrorCode.REQUEST_TIMED_OUT
            try:
                answer = await self._client.ask_leader(*partition, request, ProduceResponse)
            except Unanswered:
                pass
            else:
                result = answer.responses[0].partition_responses[0]
                code = ErrorCode(result.error_code)
                if code is ErrorCode.NONE:
                    self._acked(partition, result.base_offset, values)
                    return
            if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._is_idempotent:
                self._acked(partition, -1, values)
                return
            if code not in RETRIABLE:
                raise Violation(
                    "refused", f"{self.name}: {partition} {values[0][:12]!r}: {code.name}"
                )
            world.trace.count(f"produce {code.name}")
            self._client.forget(*partition)
            if not self._is_idempotent:
                return
            await trio.sleep(RETRY_SECONDS)

    def _acked(self, partition: Partition, base_offset: int, values: Sequence[bytes]) -> None:
        world = self._world
        if self._is_idempotent:
            self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        world.trace.event(self.name, "acked", f"{partition[0]}-{partition[1]} {base_offset}")
        self._note_acked(partition, base_offset, values)
        world.made_progress(self.name)

    def _note_sent(self, partition: Partition, values: Sequence[bytes]) -> None:
        self._world.history.send(partition, self.name, values)

    def _note_acked(self, partition: Partition, base_offset: int, values: Sequence[bytes]) -> None:
        """`base_offset` -1: it is in the log, nobody says where."""
        if base_offset >= 0:
            teller = self._client.leader(*partition)
            self._world.history.ack(partition, base_offset, values, teller)


class Consumer:
    """Reads one partition after the other, from the start on, and then what comes."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng: random.Random = world.rng_for(name)
        self.client: KafkaClient = world.client(name)
        self.positions: dict[Partition, int] = {}

    async def run(self) -> None:
        world = self._world
        while not world.is_draining:
            partition = world.partitions[self._rng.randrange(len(world.partitions))]
            await self.poll(partition)
            await trio.sleep(THINK_SECONDS * self._rng.random())

    async def poll(self, partition: Partition) -> list[tuple[int, bytes]] | None:
        """One fetch; None if it had no answer, or an error."""
        position = self.positions.get(partition)
        if position is None:
            position = await self.offset(partition, EARLIEST)
            if position is None:
                return None
            self.positions[partition] = position
        data = FetchPartition(
            partition=partition[1], fetch_offset=position, partition_max_bytes=RECORDS_MAX
        )
        answer = await fetch_and_tell(self._world, self.name, self.client, partition, data)
        if answer is None:
            return None
        result, code = answer
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(partition, position)
            return None
        if code is not ErrorCode.NONE:
            self.check_code(code)
            self.client.forget(*partition)
            await trio.sleep(RETRY_SECONDS)
            return None
        return self._take(partition, position, records_of(result))

    def _take(self, partition: Partition, position: int, data: bytes) -> list[tuple[int, bytes]]:
        records: list[tuple[int, bytes]] = []
        at = 0
        for header in scan_batches(data):
            batch = memoryview(data)[at : at + header.size]
            at += header.size
            for record in iter_records(batch, header, size_max=RECORDS_MAX):
                offset = header.base_offset + record.offset_delta
                if offset >= position:
                    assert record.value is not None
                    records.append((offset, record.value))
        for offset, value in records:
            self._world.history.see(partition, offset, value)
        if records:
            self.positions[partition] = records[-1][0] + 1
            self._world.trace.event(
                self.name, "read", f"{partition[0]}-{partition[1]} to {records[-1][0]}"
            )
        self._world.made_progress(self.name)
        return records

    async def _out_of_range(self, partition: Partition, position: int) -> None:
        """Only below the log start may this be."""
        start = await self.offset(partition, EARLIEST)
        if start is None:
            return
        if position >= start:
            end = await self.offset(partition, LATEST)
            if end is None or position <= end:
                return  # it moved meanwhile
            if self._world.has_rivals:  # one of them has not heard yet that it is none any more
                self.client.forget(*partition)
                return
            raise Violation(
                "backwards", f"{partition}: {self.name} was at {position}, the log is {start}-{end}"
            )
        self.positions[partition] = start

    async def offset(
        self, partition: Partition, timestamp: int, isolation_level: int = 0
    ) -> int | None:
        asked = ListOffsetsPartition(partition_index=partition[1], timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=partition[0], partitions=[asked])],
        )
        try:
            answer = await self.client.ask_leader(*partition, request, ListOffsetsResponse)
        except Unanswered:
            await trio.sleep(RETRY_SECONDS)
            return None
        result = answer.topics[0].partitions[0]
        if result.error_code:
            self.check_code(ErrorCode(result.error_code))
            self.client.forget(*partition)
            await trio.sleep(RETRY_SECONDS)
            return None
        return result.offset

    def check_code(self, code: ErrorCode) -> None:
        if code not in RETRIABLE:
            raise Violation("refused", f"{self.name}: {code.name}")


class Admin:
    """Creates topics, fills nothing into them, deletes them; moves log starts."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng: random.Random = world.rng_for(name)
        self._client: KafkaClient = world.client(name)
        self._count = 0

    async def run(self) -> None:
        while not self._world.is_draining:
            await trio.sleep(0.5 + 2 * self._rng.random())
            choice = self._rng.random()
            if choice < 0.1 and self._world.partition_count() < PARTITIONS_MAX:
                await self._grow()
            elif choice < 0.5:
                self._count += 1
                name = f"churn-{self._count}"
                await self.create(name, 1 + self._rng.randrange(2), SHORT_LIVED_CONFIGS)
                await trio.sleep(self._rng.random())
                await self._delete(name)
            else:
                await self._delete_records()

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Until it is there."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(*pair) for pair in configs.items()],
        )
        fine = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        while True:
            try:
                answer = await self._client.ask_any(
                    CreateTopicsRequest(topics=[topic], timeout_ms=2000), CreateTopicsResponse
                )
            except Unanswered:
                await trio.sleep(RETRY_SECONDS)
                continue
            if answer.topics[0].error_code in fine:
                self._world.trace.event(self.name, "created", name)
                return
            await trio.sleep(RETRY_SECONDS)

    async def set_group(self, group: str, configs: Mapping[str, str]) -> None:
        """Until its settings are these."""
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=GROUP_RESOURCE,
            resource_name=group,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(
                    name=name, config_operation=SET, value=value
                )
                for name, value in configs.items()
            ],
        )
        while True:
            with suppress(Unanswered):
                answer = await self._client.ask_any(
                    IncrementalAlterConfigsRequest(resources=[resource]),
                    IncrementalAlterConfigsResponse,
                )
                if not answer.responses[0].error_code:
                    return
            await trio.sleep(RETRY_SECONDS)

    async def _delete(self, name: str) -> None:
        fine = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        while True:
            try:
                answer = await self._client.ask_any(
                    DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=2000),
                    DeleteTopicsResponse,
                )
            except Unanswered:
                await trio.sleep(RETRY_SECONDS)
                continue
            if answer.responses[0].error_code in fine:
                self._world.trace.event(self.name, "deleted", name)
                self._world.trace.count("topics deleted")
                self._world.made_progress(self.name)
                return
            await trio.sleep(RETRY_SECONDS)

    async def _grow(self) -> None:
        """One more partition of the topic that all use; until it is there."""
        world = self._world
        name, count = world.partitions[0][0], world.partition_count() + 1
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=2000,
        )
        # The second one: an attempt that was not answered has done it.
        fine = (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
        while True:
            try:
                answer = await self._client.ask_any(request, CreatePartitionsResponse)
            except Unanswered:
                await trio.sleep(RETRY_SECONDS)
                continue
            if answer.results[0].error_code in fine:
                world.partitions.append((name, count - 1))
                world.trace.event(self.name, "grown", f"{name} to {count}")
                world.trace.count("partitions added")
                world.made_progress(self.name)
                return
            await trio.sleep(RETRY_SECONDS)

    async def _delete_records(self) -> None:
        """Up to something that was acknowledged; what is in the way may be lost from now on."""
        world = self._world
        partition = world.partitions[self._rng.randrange(len(world.partitions))]
        acked = sorted(world.history.acked[partition])
        if not acked:
            return
        offset = acked[self._rng.randrange(len(acked))]
        asked = DeleteRecordsTopic(
            name=partition[0],
            partitions=[DeleteRecordsPartition(partition_index=partition[1], offset=offset)],
        )
        request = DeleteRecordsRequest(topics=[asked], timeout_ms=2000)
        try:
            answer = await self._client.ask_leader(*partition, request, DeleteRecordsResponse)
        except Unanswered:
            return
        result = answer.topics[0].partitions[0]
        if result.error_code == 0:
            if result.low_watermark < offset:
                raise Violation("refused", f"DeleteRecords to {offset}: {result.low_watermark}")
            world.trace.count("records deleted")
        else:
            self._client.forget(*partition)
        world.made_progress(self.name)

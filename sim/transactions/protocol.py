"""One producer's half of the protocol: what a client library of transactions asks, and keeps.

Of transaction version 1 (KIP-98: partitions are added before anything is written to them, the epoch
stays) and 2 (KIP-890: Produce adds them, every end gives the next epoch). Each call is one request
and its answer, None if there was none; who tries again, and when, is its user's affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from sim.client import KafkaClient, Unanswered
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.messages.transactions import (
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.history import Partition
    from wire.kafka.message import Message

    M = TypeVar("M", bound=Message)

TV1, TV2 = 1, 2
KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION = 0, 1
#: By transaction version: those that say which one a client is of.
PRODUCE_VERSIONS = {TV1: 9, TV2: 12}
END_VERSIONS = {TV1: 3, TV2: 5}
OFFSET_VERSIONS = {TV1: 3, TV2: 5}
INIT_VERSION = 4
#: The coordinator is another one, or none.
MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

_VERSIONS_REQUEST = ApiVersionsRequest(client_software_name="sim", client_software_version="1")

Pair = tuple[bytes | None, bytes | None]


class Coordinated:
    """Asks the coordinator of one group or transactional id."""

    def __init__(self, client: KafkaClient, key: str, key_type: int) -> None:
        self._client = client
        self._key = key
        self._key_type = key_type
        self._address: tuple[str, int] | None = None

    def forget(self) -> None:
        self._address = None

    async def ask(self, body: Message, answer: type[M], version: int) -> M | None:
        try:
            if self._address is None:
                request = FindCoordinatorRequest(key=self._key, key_type=self._key_type)
                found = await self._client.ask_any(request, FindCoordinatorResponse)
                if found.error_code:
                    return None
                self._address = (found.host, found.port)
            return await self._client.ask_at(self._address, body, answer, version)
        except Unanswered:
            self._address = None
            return None


class TxnProtocol:
    """Id, epoch and sequence numbers of one producer."""

    def __init__(
        self, client: KafkaClient, transactional_id: str, version: int, timeout_ms: int
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.group = f"group of {transactional_id}"
        self._coordinator = Coordinated(client, transactional_id, KEY_TYPE_TRANSACTION)
        self._group_coordinator = Coordinated(client, self.group, KEY_TYPE_GROUP)
        self._sequences: dict[Partition, int] = {}
        #: The last batch that was acknowledged.
        self.last_request: tuple[Partition, ProduceRequest] | None = None

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def serves(self, key: int) -> bool | None:
        """Whether an API is served."""
        answer = await self.client.try_any(_VERSIONS_REQUEST, ApiVersionsResponse)
        return None if answer is None else any(each.api_key == key for each in answer.api_keys)

    async def served_version(self) -> int | None:
        """Of transactions, by all brokers; 0 if none says so."""
        answer = await self.client.try_any(_VERSIONS_REQUEST, ApiVersionsResponse)
        if answer is None:
            return None
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        return levels.get("transaction.version", 0)

    # -- the coordinator of the transaction --------------------------------------------------------

    async def _ask(self, body: Message, answer: type[M], version: int) -> M | None:
        return await self._coordinator.ask(body, answer, version)

    def _code(self, error_code: int) -> ErrorCode:
        code = ErrorCode(error_code)
        if code in MOVED:
            self._coordinator.forget()
        return code

    async def init(self, *, is_named: bool) -> ErrorCode | None:
        """`is_named`: it goes on, and names its id and epoch (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        if is_named:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = await self._ask(request, InitProducerIdResponse, INIT_VERSION)
        if answer is None:
            return None
        if answer.error_code == 0:
            self._sequences.clear()
            self.begin_epoch(answer.producer_id, answer.producer_epoch)
        return self._code(answer.error_code)

    async def add(self, partitions: Sequence[Partition]) -> ErrorCode | None:
        """Version 1: the worst that any of them was told."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(*each) for each in topics.items()],
        )
        answer = await self._ask(request, AddPartitionsToTxnResponse, 3)
        if answer is None:
            return None
        codes = [
            each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]
        return self._code(next((code for code in codes if code), 0))

    def end_request(self, *, is_commit: bool) -> EndTxnRequest:
        return EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, is_commit)

    async def end(self, request: EndTxnRequest) -> ErrorCode | None:
        answer = await self._ask(request, EndTxnResponse, END_VERSIONS[self.version])
        if answer is None:
            return None
        if answer.error_code == 0 and self.version >= TV2:
            self.begin_epoch(answer.producer_id, answer.producer_epoch)
        return self._code(answer.error_code)

    async def end_late(self, request: EndTxnRequest) -> ErrorCode | None:
        """As `end`, of a request that was held up on its way: nobody waits for its answer."""
        answer = await self._ask(request, EndTxnResponse, END_VERSIONS[self.version])
        return None if answer is None else self._code(answer.error_code)

    async def end_unheard(self, request: EndTxnRequest) -> None:
        """As `end`, by somebody who dies before the answer comes."""
        with trio.move_on_after(0.002):
            await self._ask(request, EndTxnResponse, END_VERSIONS[self.version])
        self.client.close()

    # -- partitions --------------------------------------------------------------------------------

    async def produce(
        self, partition: Partition, pairs: Sequence[Pair], now_ms: int
    ) -> tuple[ErrorCode | None, int]:
        """What the partition said, and the base offset. The same again is a retry."""
        request = self._request(partition, pairs, now_ms)
        code, base_offset = await self.send(partition, request)
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._sequences[partition] = self._sequences.get(partition, 0) + len(pairs)
            self.last_request = (partition, request)
            return ErrorCode.NONE, base_offset if code is ErrorCode.NONE else -1
        return code, base_offset

    async def send(
        self, partition: Partition, request: ProduceRequest
    ) -> tuple[ErrorCode | None, int]:
        """A request as it is."""
        version = PRODUCE_VERSIONS[self.version]
        try:
            answer = await self.client.ask_leader(*partition, request, ProduceResponse, version)
        except Unanswered:
            return None, -1
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code:
            self.client.forget(*partition)
        return code, result.base_offset

    def _request(self, partition: Partition, pairs: Sequence[Pair], now_ms: int) -> ProduceRequest:
        batch = build_batch(
            [Record(n, 0, key, value) for n, (key, value) in enumerate(pairs)],
            base_timestamp=now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0),
            is_transactional=True,
        )
        data = PartitionProduceData(index=partition[1], records=batch)
        topic = TopicProduceData(name=partition[0], partition_data=[data])
        return ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=5000, topic_data=[topic]
        )

    async def send_plain(
        self, partition: Partition, values: Sequence[bytes], now_ms: int
    ) -> tuple[ErrorCode | None, int]:
        """Without a transaction, a producer id, or a sequence number."""
        records = [Record(n, 0, None, value) for n, value in enumerate(values)]
        batch = build_batch(records, base_timestamp=now_ms)
        data = PartitionProduceData(index=partition[1], records=batch)
        topic = TopicProduceData(name=partition[0], partition_data=[data])
        return await self.send(
            partition, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])
        )

    # -- offsets -----------------------------------------------------------------------------------

    async def add_offsets(self) -> ErrorCode | None:
        """Version 1."""
        request = AddOffsetsToTxnRequest(
            self.transactional_id, self.producer_id, self.epoch, self.group
        )
        answer = await self._ask(request, AddOffsetsToTxnResponse, 3)
        return None if answer is None else self._code(answer.error_code)

    async def commit_offset(self, partition: Partition, offset: int) -> ErrorCode | None:
        """The group's, within the transaction."""
        one = TxnOffsetCommitRequestPartition(partition[1], offset, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(partition[0], [one])],
        )
        answer = await self._group_coordinator.ask(
            request, TxnOffsetCommitResponse, OFFSET_VERSIONS[self.version]
        )
        if answer is None:
            return None
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code in MOVED:
            self._group_coordinator.forget()
        return code

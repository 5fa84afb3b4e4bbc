"""Produce (key 0), versions 3-13; advertised from 0 (KAFKA-18659), where 0-2 close the connection.

Two stages (docs/architecture.md). Stage 1, this module's plain `def`, runs in request order: each
partition's batch is checked, numbered and queued. Stage 2 runs as the acks come: when the last
partition of the request is answered, the reply is resolved.

acks: 0 gets no reply, and an error closes the connection, as in Kafka: the producer must notice.
1 and -1 mean the same here: a batch is acknowledged when it is durable on the ack quorum; there is
no weaker promise to give. But only -1 is refused, with NOT_ENOUGH_REPLICAS, while fewer bookies
take writes than min.insync.replicas says (broker/cluster/durability.py). Anything else is
INVALID_REQUIRED_ACKS. So is 0 on a topic with quire.locks=required.

Transactional batches of a request have one producer id and epoch, else INVALID_PRODUCER_ID_MAPPING
for all of it. The first of a transaction in a partition waits there for the coordinator's word:
from version 12 on the partition is added to the transaction, before that it is asked whether it was
(broker/log/transactions/gate.py). Without a transactional id they are refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, they alone, where Kafka refuses the whole request. They are
INVALID_TXN_STATE while the broker serves no transactions (LogManager's `verifier`).

Known deviations: `timeout_ms` is not enforced (a ledger that stalls stalls the reply, and the
client's own request timeout ends it).
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps
from broker.authorization import AclOperation
from broker.handlers.produce_plain import PlainAppend, PlainPlace, tell_outcome
from broker.log.append.queue import Append
from broker.log.locks.lock_headers_core import REQUIRED
from broker.log.transactions.origin import Origin
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.kafka.plain_produce import plain_produce
from wire.kafka.records.batch import BATCH_OVERHEAD, TRANSACTIONAL_MASK
from wire.kafka.records.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.durability import Bookies
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from wire.kafka.message import Message

TOPIC_ID_VERSION = 13
ZSTD_VERSION = 7
#: Of a request with many partitions, so many are submitted in one step; what one costs, in units of
#: `Steps`.
PARTITIONS_PER_STEP = 20
PARTITION_UNITS = 30
#: Partitions whose ordinary requests are remembered.
PLACES_MAX = 20_000
#: Who else may write to internal topics, as in Kafka: a tool that repairs them.
ADMIN_CLIENT_ID = "__admin_client"
ACKS_ALL = -1
ACKS_ALLOWED = (ACKS_ALL, 0, 1)
NO_RECORDS = memoryview(bytearray())
#: Where a batch's attributes have the codec.
ATTRIBUTES_LOW_BYTE = 22
#: Producer id and epoch of a batch.
_PRODUCER = Struct(">qh")
_PRODUCER_OFFSET = 43


class _Pending(Reply):
    """A produce reply and the number of its partitions that are still on their way, and one more
    until all were queued."""

    __slots__ = ("append_kind", "outstanding", "refusal", "request", "response")

    def __init__(self, response: ProduceResponse, request: Request) -> None:
        super().__init__()
        self.response = response
        self.request = request
        self.outstanding = 1
        self.append_kind = _ProduceAppend
        #: Of all partitions.
        self.refusal: KafkaError | None = None

    def all_queued(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.resolve(self.response)


class _Unanswered(_Pending):
    """acks=0: nobody reads a reply, so a closed connection is the only way to say no."""

    __slots__ = ()

    def __init__(self, response: ProduceResponse, request: Request) -> None:
        super().__init__(response, request)
        self.is_silent = True

    def resolve(self, message: Message) -> None:
        super().resolve(message)
        if any(
            result.error_code
            for topic in self.response.responses
            for result in topic.partition_responses
        ):
            self.request.connection.close()


class _ProduceAppend(Append):
    """Stage 2 of one partition of one request."""

    __slots__ = ("handler", "pending", "result")

    def __init__(
        self,
        records: memoryview,
        handler: ProduceHandler,
        pending: _Pending,
        result: PartitionProduceResponse,
    ) -> None:
        super().__init__(records)
        self.handler = handler
        self.pending = pending
        self.result = result

    def finished(self) -> None:
        tell_outcome(self, self.result)
        pending = self.pending
        pending.outstanding -= 1
        if not pending.outstanding:
            pending.resolve(pending.response)


class _TransactionalAppend(_ProduceAppend):
    """Of a request that names a transactional id."""

    __slots__ = ("origin",)

    def __init__(
        self,
        records: memoryview,
        handler: ProduceHandler,
        pending: _Pending,
        result: PartitionProduceResponse,
    ) -> None:
        super().__init__(records, handler, pending, result)
        request = pending.request
        self.origin = Origin(request.body.transactional_id, request.version)


class ProduceHandler:
    def __init__(self, logs: LogManager, bookies: Bookies) -> None:
        self._logs = logs
        self._bookies = bookies
        self.requests_count = 0
        self.failed_count = 0
        self.bytes_in = 0
        #: By version and the bytes that name it: of partitions that were found here.
        self._places: OrderedDict[tuple[int, bytes], PlainPlace] = OrderedDict()

    def apis(self) -> list[Api]:
        plain = None if plain_produce is None else self.plain
        return [
            Api(
                ApiKey.PRODUCE,
                3,
                TOPIC_ID_VERSION,
                self.produce,
                version_min_advertised=0,
                plain=plain,
            )
        ]

    def plain(self, frame: memoryview) -> PlainAppend | None:
        """`Api.plain`: what `produce` does of an ordinary request that nothing speaks against."""
        assert plain_produce is not None
        found = plain_produce(frame)
        if found is None:
            return None
        version, correlation_id, acks, key, start, end = found
        place = self._places.get((version, key))
        try:
            if place is None:
                place = self._new_place(version, key)
            if place.topic_id is None:
                log = self._logs.get(place.topic, place.partition)
            else:
                log = self._logs.get_by_id(place.topic_id, place.partition)
        except (KafkaError, UnicodeDecodeError):
            return None
        if log.topic.internal or (
            acks == ACKS_ALL and self._bookies.is_short(log.copies, log.config)
        ):
            return None
        self.requests_count += 1
        self.bytes_in += end - start
        append = PlainAppend(frame[start:end], place, correlation_id, log.log_start_offset)
        log.submit(append)
        return append

    def _new_place(self, version: int, key: bytes) -> PlainPlace:
        """UnicodeDecodeError; KafkaError if there is no such partition here."""
        place = PlainPlace(version, key)
        if place.topic_id is None:
            self._logs.get(place.topic, place.partition)
        else:
            self._logs.get_by_id(place.topic_id, place.partition)
        if len(self._places) >= PLACES_MAX:
            self._places.popitem(last=False)
        self._places[version, key] = place
        return place

    def produce(self, request: Request) -> Reply | Steps[Reply]:
        body: ProduceRequest = request.body
        self.requests_count += 1
        pending = (_Pending if body.acks else _Unanswered)(ProduceResponse(), request)
        if body.transactional_id is not None:
            pending.append_kind = _TransactionalAppend
        if len(body.topic_data) > 1 or (
            body.topic_data and len(body.topic_data[0].partition_data) > PARTITIONS_PER_STEP
        ):
            return self._steps(request, pending)
        if body.transactional_id is not None and body.topic_data:
            pending.refusal = _mixed(transactional_producers(body.topic_data[0].partition_data))
        for topic in body.topic_data:
            response = TopicProduceResponse(topic.name, topic.topic_id)
            pending.response.responses.append(response)
            self._submit(request, pending, topic, topic.partition_data, response)
        pending.all_queued()
        return pending

    def _steps(self, request: Request, pending: _Pending) -> Steps[Reply]:
        """A request for many partitions: nothing of its connection is handled before all of them
        were submitted, so that the order of requests is still that of offsets."""
        body: ProduceRequest = request.body
        if body.transactional_id is not None:
            producers: set[tuple[int, int]] = set()
            for topic in body.topic_data:
                for start in range(0, len(topic.partition_data), PARTITIONS_PER_STEP):
                    some = topic.partition_data[start : start + PARTITIONS_PER_STEP]
                    producers |= transactional_producers(some)
                    yield len(some)
            pending.refusal = _mixed(producers)
        for topic in body.topic_data:
            response = TopicProduceResponse(topic.name, topic.topic_id)
            pending.response.responses.append(response)
            for start in range(0, len(topic.partition_data), PARTITIONS_PER_STEP):
                some = topic.partition_data[start : start + PARTITIONS_PER_STEP]
                self._submit(request, pending, topic, some, response)
                yield len(some) * PARTITION_UNITS
        pending.all_queued()
        return pending

    def _submit(
        self,
        request: Request,
        pending: _Pending,
        topic: TopicProduceData,
        partition_data: list[PartitionProduceData],
        response: TopicProduceResponse,
    ) -> None:
        for data in partition_data:
            result = PartitionProduceResponse(data.index)
            response.partition_responses.append(result)
            records = NO_RECORDS if data.records is None else data.records
            assert isinstance(records, memoryview)
            self.bytes_in += len(records)
            pending.outstanding += 1
            append = pending.append_kind(records, self, pending, result)
            try:
                if pending.refusal is not None:
                    raise pending.refusal
                log = self._log_of(request, topic, data.index)
                if request.version < ZSTD_VERSION:
                    _check_codec(records)
            except KafkaError as error:
                append.fail(error)
                continue
            result.log_start_offset = log.log_start_offset
            log.submit(append)

    def _log_of(self, request: Request, topic: TopicProduceData, partition: int) -> PartitionLog:
        if request.body.acks not in ACKS_ALLOWED:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        if request.version >= TOPIC_ID_VERSION:
            log = self._logs.get_by_id(topic.topic_id, partition)
        else:
            log = self._logs.get(topic.name, partition)
        if not request.body.acks and log.config.quire_locks == REQUIRED:
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"{log.topic.name} has quire.locks=required: acks=0 hears of no conflict",
            )
        if log.topic.internal and not _may_write_internal(request):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic.name} is written by brokers only"
            )
        if request.body.acks == ACKS_ALL and self._bookies.is_short(log.copies, log.config):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{self._bookies.count} bookies take writes"
            )
        return log


def _may_write_internal(request: Request) -> bool:
    """With an authorizer an administrator only: a client calls itself what it likes."""
    if request.client_id != ADMIN_CLIENT_ID:
        return False
    return request.rights is None or request.rights.allows_cluster(AclOperation.ALTER)


def transactional_producers(some: Sequence[PartitionProduceData]) -> set[tuple[int, int]]:
    """(producer id, epoch) of those batches that say they are part of a transaction."""
    found = set()
    for data in some:
        records = NO_RECORDS if data.records is None else data.records
        assert isinstance(records, memoryview)
        if len(records) >= BATCH_OVERHEAD and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_MASK:
            found.add(_PRODUCER.unpack_from(records, _PRODUCER_OFFSET))
    return found


def _mixed(producers: set[tuple[int, int]]) -> KafkaError | None:
    if len(producers) <= 1:
        return None
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional batches of {len(producers)} producers or epochs in one request",
    )


def _check_codec(records: memoryview) -> None:
    """KafkaError UNSUPPORTED_COMPRESSION_TYPE: clients this old cannot know zstd (KIP-110), so
    that it can only be a mistake, and consumers as old could not read it."""
    if len(records) >= BATCH_OVERHEAD and records[ATTRIBUTES_LOW_BYTE] & 0x07 == Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)

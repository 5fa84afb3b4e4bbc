"""WriteTxnMarkers (key 27), versions 1-2, and DescribeProducers (key 61), version 0.

WriteTxnMarkers ends transactions in the partitions that this broker leads. Coordinators send it to
each other's brokers, and `kafka-transactions abort` sends it for a transaction that no coordinator
ends. An answer has an error per partition and comes when each marker is acknowledged or refused:

- UNKNOWN_TOPIC_OR_PARTITION if the partition is not here, as in Kafka: the coordinator looks for
  its leader again. NOT_LEADER_OR_FOLLOWER if it went away before the marker was acknowledged.
- INVALID_PRODUCER_EPOCH for a marker that is too late, TRANSACTION_COORDINATOR_FENCED for one of a
  coordinator that was replaced (broker/log/append/producer_state.py).
- NOT_ENOUGH_REPLICAS while no bookies take writes.
- INVALID_RECORD for a marker without a producer id, or without an epoch.

A marker for `__consumer_offsets` is written by the coordinator of groups, and answered when the
transaction's offsets are committed or dropped in memory, too; NOT_LEADER_OR_FOLLOWER while the
groups are being loaded.

Version 1 says nothing of the transaction's version, which is then 0: whoever aborts by hand sends
the producer's own epoch (KIP-1228).

DescribeProducers lists all producers that a partition remembers, with -1 for what there is not: no
batch with a sequence number, no open transaction, no marker yet. Only the partition's leader
answers, else NOT_LEADER_OR_FOLLOWER; a name that no topic can have is INVALID_TOPIC_EXCEPTION. A
partition that is named twice is answered once: there may be 20,000 producers, and the answer is no
larger than what is remembered.

Known deviation: nothing tells a broker's WriteTxnMarkers from another client's.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps
from broker.cluster.topic import OFFSETS_TOPIC, check_name
from broker.coordinator.units import Marker
from broker.log.transactions.markers import MarkerAppend
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from wire.kafka.messages.transactions_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from wire.kafka.records.control import EndTransactionMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.groups.transactional import GroupTransactions
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from runtime.turn import Turn
    from wire.kafka.messages.transactions import WritableTxnMarker

#: Of one request in one turn: some 40 us each with the entry that it makes, as the turn is told.
MARKERS_PER_TURN = 50
WRITTEN_UNITS = 40
#: What each part of a request costs before that, in units of `Steps`.
MARKER_UNITS = 1
#: What a producer costs that is listed, and a partition, in units of `Steps`.
PRODUCER_UNITS = 4
PARTITION_UNITS = 10


class _Writing:
    """One request, and how many of its markers are not answered yet."""

    __slots__ = ("done", "outstanding", "response", "todo")

    def __init__(self, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        self.response = WriteTxnMarkersResponse()
        self.todo: deque[tuple[WritableTxnMarker, str, WritableTxnMarkerPartitionResult]] = deque()
        self.outstanding = 0
        self.done = done

    def fill(self, body: WriteTxnMarkersRequest) -> Iterator[int]:
        """From the request; yields what each part cost, in units of `Steps`."""
        for marker in body.markers:
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            self.response.markers.append(result)
            yield MARKER_UNITS
            for topic in marker.topics:
                of_topic = WritableTxnMarkerTopicResult(name=topic.name)
                result.topics.append(of_topic)
                yield MARKER_UNITS
                for number in topic.partition_indexes:
                    answer = WritableTxnMarkerPartitionResult(partition_index=number)
                    of_topic.partitions.append(answer)
                    self.todo.append((marker, topic.name, answer))
                    yield MARKER_UNITS


class _RequestedMarker(MarkerAppend):
    """One partition's marker of one request."""

    __slots__ = ("_answer", "_writing")

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        writing: _Writing,
        answer: WritableTxnMarkerPartitionResult,
    ) -> None:
        super().__init__(producer_id, producer_epoch, marker, transaction_version)
        self._writing = writing
        self._answer = answer

    def finished(self) -> None:
        _written(self._writing, self._answer, self.error)


def _written(writing: _Writing, answer: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
    if error:
        answer.error_code = int(error)
    writing.outstanding -= 1
    assert writing.outstanding >= 0, "each is answered once"
    if not writing.outstanding:
        writing.done(writing.response)


class TransactionMarkersHandler:
    """`groups`: who writes markers of `__consumer_offsets`."""

    def __init__(self, logs: LogManager, turn: Turn, groups: GroupTransactions) -> None:
        self._logs = logs
        self._turn = turn
        self._groups = groups

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, self.write_txn_markers),
            Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, self.describe_producers),
        ]

    # -- WriteTxnMarkers -------------------------------------------------------------------------

    def write_txn_markers(self, request: Request) -> Steps[Reply]:
        reply = Reply()
        writing = _Writing(reply.resolve)
        yield from writing.fill(request.body)
        self._begin(writing)
        return reply

    def write_markers(
        self, body: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]
    ) -> None:
        """`done` once each partition's marker is acknowledged or refused, possibly before this
        returns. Also a plain call, of the coordinator on this broker."""
        writing = _Writing(done)
        for _ in writing.fill(body):
            pass  # the coordinator's requests are short
        self._begin(writing)

    def _begin(self, writing: _Writing) -> None:
        # Counted before the first is appended: one that is refused at once is not all of them.
        writing.outstanding = len(writing.todo)
        if not writing.outstanding:
            writing.done(writing.response)
        self._write_some(writing)

    def _write_some(self, writing: _Writing) -> None:
        count = min(MARKERS_PER_TURN, len(writing.todo))
        self._turn.spent_units += WRITTEN_UNITS * count
        for _ in range(count):
            self._write(writing, *writing.todo.popleft())
        if writing.todo:
            self._turn.later(partial(self._write_some, writing))

    def _write(
        self,
        writing: _Writing,
        marker: WritableTxnMarker,
        topic: str,
        answer: WritableTxnMarkerPartitionResult,
    ) -> None:
        try:
            log = self._logs.get(topic, answer.partition_index)
        except KafkaError:
            _written(writing, answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        producer_id, producer_epoch = marker.producer_id, marker.producer_epoch
        if producer_id < 0 or producer_epoch < 0:
            # Nobody's: it would end nothing, and stay in the log for ever.
            _written(writing, answer, ErrorCode.INVALID_RECORD)
            return
        end = EndTransactionMarker(marker.transaction_result, marker.coordinator_epoch)
        version = marker.transaction_version
        if topic == OFFSETS_TOPIC:
            ending = Marker(producer_id, producer_epoch, end, version)
            written = partial(_written, writing, answer)
            self._groups.end(answer.partition_index, ending, written)
        else:
            log.submit_marker(
                _RequestedMarker(producer_id, producer_epoch, end, version, writing, answer)
            )

    # -- DescribeProducers -----------------------------------------------------------------------

    def describe_producers(self, request: Request) -> Steps[DescribeProducersResponse]:
        body: DescribeProducersRequest = request.body
        response = DescribeProducersResponse()
        shown: set[PartitionLog] = set()
        for topic in body.topics:
            result = TopicResponse(name=topic.name)
            response.topics.append(result)
            is_name = _is_name(topic.name)
            for number in topic.partition_indexes:
                yield PARTITION_UNITS
                answer = PartitionResponse(partition_index=number)
                try:
                    if not is_name:
                        # Of very many partitions, perhaps: without the name.
                        invalid = "Topic name is invalid"
                        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, invalid)
                    log = self._logs.get(topic.name, number)
                    log.check_online()
                except KafkaError as error:
                    answer.error_code = int(error.code)
                    answer.error_message = error.message
                    result.partitions.append(answer)
                    continue
                if log in shown:
                    continue
                shown.add(log)
                result.partitions.append(answer)
                for each in log.producers.producers():
                    yield PRODUCER_UNITS
                    answer.active_producers.append(
                        ProducerState(
                            producer_id=each.producer_id,
                            producer_epoch=each.producer_epoch,
                            last_sequence=each.last_sequence,
                            last_timestamp=each.last_timestamp,
                            coordinator_epoch=each.coordinator_epoch,
                            current_txn_start_offset=each.transaction_start_offset,
                        )
                    )
        return response


def _is_name(topic: str) -> bool:
    try:
        check_name(topic)
    except KafkaError:
        return False
    return True

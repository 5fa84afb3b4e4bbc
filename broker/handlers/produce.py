"""Produce (key 0), versions 3-13; advertised from 0 (KAFKA-18659), where 0-2 close the connection.

Two stages (design.md §3). Stage 1, this module's plain `def`, runs in request order: each
partition's batch is checked, numbered and queued. Stage 2 runs as the acks come: when the last
partition of the request is answered, the reply is resolved.

acks: 0 gets no reply, and an error closes the connection, as in Kafka: the producer must notice.
1 and -1 mean the same here: a batch is acknowledged when it is durable on the ack quorum; there is
no weaker promise to give. Anything else is INVALID_REQUIRED_ACKS.

Known deviations: `timeout_ms` is not enforced (a ledger that stalls stalls the reply, and the
client's own request timeout ends it); per-record errors are not given, the message names the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request
from broker.log.append_queue import Append
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from broker.log.manager import LogManager

TOPIC_ID_VERSION = 13
ACKS_ALLOWED = (-1, 0, 1)
NO_RECORDS = memoryview(bytearray())


class _Pending(Reply):
    """A produce reply and the number of its partitions that are still on their way."""

    __slots__ = ("outstanding", "response", "sealed")

    def __init__(self, response: ProduceResponse) -> None:
        super().__init__()
        self.response = response
        self.outstanding = 0
        self.sealed = False

    def answered(self) -> None:
        self.outstanding -= 1
        if not self.outstanding and self.sealed:
            self.resolve(self.response)

    def seal(self) -> None:
        """All partitions were queued; those that were answered meanwhile are counted already."""
        self.sealed = True
        if not self.outstanding:
            self.resolve(self.response)


class _Partition:
    """Stage 2 of one partition of one request."""

    __slots__ = ("handler", "pending", "result")

    def __init__(
        self, handler: ProduceHandler, pending: _Pending, result: PartitionProduceResponse
    ) -> None:
        self.handler = handler
        self.pending = pending
        self.result = result

    def done(self, append: Append) -> None:
        result = self.result
        if append.error:
            result.error_code = int(append.error)
            result.error_message = append.error_message
            result.base_offset = -1
            self.handler.failed_count += 1
        else:
            result.base_offset = append.base_offset
            result.log_append_time_ms = append.log_append_time_ms
        self.pending.answered()


class ProduceHandler:
    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self.requests_count = 0
        self.failed_count = 0
        self.bytes_in = 0

    def apis(self) -> list[Api]:
        return [Api(ApiKey.PRODUCE, 3, TOPIC_ID_VERSION, self.produce, version_min_advertised=0)]

    def produce(self, request: Request) -> Reply | ProduceResponse | None:
        body: ProduceRequest = request.body
        self.requests_count += 1
        response = ProduceResponse()
        pending = _Pending(response)
        for topic in body.topic_data:
            topic_response = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            response.responses.append(topic_response)
            for data in topic.partition_data:
                result = PartitionProduceResponse(index=data.index)
                topic_response.partition_responses.append(result)
                records = NO_RECORDS if data.records is None else data.records
                assert isinstance(records, memoryview)
                self.bytes_in += len(records)
                pending.outstanding += 1
                part = _Partition(self, pending, result)
                try:
                    if body.acks not in ACKS_ALLOWED:
                        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                    if request.version >= TOPIC_ID_VERSION:
                        log = self._logs.get_by_id(topic.topic_id, data.index)
                    else:
                        log = self._logs.get(topic.name, data.index)
                except KafkaError as error:
                    Append(records, part.done).fail(error)
                    continue
                result.log_start_offset = log.log_start_offset
                log.append_nowait(records, part.done)
        if body.acks == 0:
            self._close_on_error(request, pending)
            return None
        pending.seal()
        return pending

    def _close_on_error(self, request: Request, pending: _Pending) -> None:
        """acks=0: nobody reads a reply, so a closed connection is the only way to say no."""

        def look(message: object) -> None:
            if any(
                result.error_code
                for topic in pending.response.responses
                for result in topic.partition_responses
            ):
                request.connection.close()

        pending.on_resolved(look)
        pending.seal()

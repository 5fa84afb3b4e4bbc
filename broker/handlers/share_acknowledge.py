"""ShareAcknowledge (key 79), versions 1-2 (KIP-932, KIP-1222).

- the request belongs to a share session, as a ShareFetch does; epoch 0 is
  INVALID_SHARE_SESSION_EPOCH, -1 closes the session: what is acknowledged counts first, then all
  that the member holds at this broker is released;
- all or nothing for each partition: INVALID_REQUEST for batches that do not ascend, types that are
  not known, and offsets that were never delivered; INVALID_RECORD_STATE for records that the member
  does not hold (any more); offsets below the share partition's start are over, and ignored;
- version 2: type 4 renews a lock, if `is_renew_ack` says so (else INVALID_REQUEST) and
  share.renew.acknowledge.enable does not forbid it (INVALID_RECORD_STATE);
- everything is UNSUPPORTED_VERSION while not every broker of the cluster serves share groups;
- answered when stored: after that no record that was accepted or rejected is delivered again.

Known deviations: a partition that this broker leads but has no state of yet, since it took it over
after the records were delivered, is INVALID_RECORD_STATE (Kafka: UNKNOWN_TOPIC_OR_PARTITION).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps, run_steps
from broker.handlers.share_answers import (
    ANSWER_UNITS,
    Acknowledging,
    at_once,
    check_names,
    count_of,
)
from broker.share.sessions.share_session_core import FINAL_EPOCH
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import (
    NodeEndpoint,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.handlers.share_answers import Leaders
    from broker.share.partition.share_partitions import SharePartitions
    from broker.share.sessions.share_session_core import ShareSession, ShareSessions
    from runtime.turn import Turn

#: More, or more topics, are refused: as many as a session may have.
PARTITIONS_MAX = 10_000
#: More are acknowledged in slices.
PARTITIONS_AT_ONCE = 50
TYPES_AT_ONCE = 500

ShareAcknowledgeResult = ShareAcknowledgeResponse | Reply


class ShareAcknowledgeHandler:
    def __init__(
        self,
        sessions: ShareSessions,
        partitions: SharePartitions,
        leaders: Leaders,
        turn: Turn,
        *,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_on`: as ShareFetchHandler has it."""
        self.sessions = sessions
        self.partitions = partitions
        self.leaders = leaders
        self.turn = turn
        self._is_on = is_on
        self.requests_count = 0

    def apis(self) -> list[Api]:
        return [Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, self.share_acknowledge)]

    def share_acknowledge(
        self, request: Request
    ) -> ShareAcknowledgeResult | Steps[ShareAcknowledgeResult]:
        body: ShareAcknowledgeRequest = request.body
        self.requests_count += 1
        if not self._is_on():
            return ShareAcknowledgeResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        if len(body.topics) > PARTITIONS_MAX or count_of(body.topics) > PARTITIONS_MAX:
            return ShareAcknowledgeResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        steps = self._steps(request)
        return steps if is_long(body) else at_once(self.turn, steps)

    def _steps(self, request: Request) -> Steps[ShareAcknowledgeResult]:
        body: ShareAcknowledgeRequest = request.body
        epoch = body.share_session_epoch
        try:
            group, member = check_names(body)
            session = self.sessions.acknowledge(group, member, epoch, request.connection.id)
        except KafkaError as error:
            return ShareAcknowledgeResponse(error_code=int(error.code), error_message=error.message)
        reply = _Acknowledged(self, session, request.connection.listener)
        yield from reply.begin(request, body.topics)
        reply.all_begun(closes=epoch == FINAL_EPOCH)
        return reply


def is_long(body: ShareAcknowledgeRequest | ShareFetchRequest) -> bool:
    """Whether it is to be handled in slices."""
    partitions = types = 0
    for topic in body.topics:
        partitions += len(topic.partitions)
        if partitions > PARTITIONS_AT_ONCE:
            return True
        for each in topic.partitions:
            for batch in each.acknowledgement_batches:
                types += 1 + len(batch.acknowledge_types)
                if types > TYPES_AT_ONCE:
                    return True
    return False


class _Acknowledged(Acknowledging):
    __slots__ = ("_handler", "_listener")

    def __init__(
        self, handler: ShareAcknowledgeHandler, session: ShareSession, listener: str
    ) -> None:
        super().__init__(session, handler.sessions, handler.partitions)
        self._handler = handler
        self._listener = listener

    def is_stored(self) -> None:
        settings = self.partitions.around.groups.settings(self.session.group)
        response = ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=settings.record_lock_duration_ms
        )
        run_steps(self._handler.turn, self._answer(response), lambda: self.resolve(response))

    def _answer(self, response: ShareAcknowledgeResponse) -> Steps[None]:
        endpoints: dict[int, NodeEndpoint] = {}
        topic: ShareAcknowledgeTopicResponse | None = None
        for key, error in self.acknowledged.items():
            yield ANSWER_UNITS
            if topic is None or topic.topic_id != key.topic_id:
                topic = ShareAcknowledgeTopicResponse(topic_id=key.topic_id)
                response.responses.append(topic)
            answer = ShareAcknowledgeResponsePartitionData(
                partition_index=key.number, error_code=int(error)
            )
            self._handler.leaders.tell(answer, key, (error,), self._listener, endpoints)
            topic.partitions.append(answer)
        response.node_endpoints = list(endpoints.values())

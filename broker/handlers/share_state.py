"""The share coordinator's requests (KIP-932), which brokers send each other:
InitializeShareGroupState (key 83, version 0), ReadShareGroupState (84, 0), WriteShareGroupState
(85, 0-1), DeleteShareGroupState (86, 0) and ReadShareGroupStateSummary (87, 0-1).

Each is about the share partitions of one group, and has an answer with an error for each of them,
which comes when all are stored or refused. Errors of a partition:

- NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE: ask again, and whom.
- FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH: somebody newer was here before.
- UNKNOWN_TOPIC_OR_PARTITION, but for a deletion: the topic may be gone.
- INVALID_REQUEST: a read or a write before the partition was initialised, a number that cannot be,
  more than 10,000 batches. INVALID_GROUP_ID without a group.

Read tells -1 as the leader epoch to fence nobody. Summary fences nobody whatever it says.

Known deviations: nothing tells a broker's request from another client's. A deletion of a partition
whose topic is gone is done, where Kafka answers UNKNOWN_TOPIC_OR_PARTITION and keeps the state.
What a repeated request does: broker/share/state/share_state_core.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.api import Api, Reply, Request, Steps
from broker.share.ports import ShareKey, ShareState, StateBatch
from broker.share.state.share_state_core import Write
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import share_state as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.share.questions import StateRequests
    from wire.kafka.message import Message

    Fill = Callable[[Any, ShareState], None]

#: What a partition of a request costs, in units of `Steps`, and a batch of what is read.
PARTITION_UNITS = 40
BATCHES_PER_UNIT = 2

#: Where Kafka says more than the error's name.
_MESSAGES = {
    ErrorCode.INVALID_REQUEST: "not initialised, or a number that cannot be",
    ErrorCode.FENCED_STATE_EPOCH: "the state epoch is older than the one that is stored",
    ErrorCode.FENCED_LEADER_EPOCH: "a newer leader has read the state",
}


class _Asking:
    """One request, and how many of its partitions are not answered yet."""

    __slots__ = ("_left", "_response", "reply")

    def __init__(self, response: Message) -> None:
        self.reply = Reply()
        self._response = response
        # One more than the partitions, until all were asked about.
        self._left = 1

    def about(
        self,
        result: Any,  # noqa: ANN401
        fill: Fill | None = None,
    ) -> Callable[[ShareState], None]:
        """What is called with the answer about one partition."""
        self._left += 1
        return partial(self._came, result, fill)

    def asked_all(self) -> Reply:
        self._one_less()
        return self.reply

    def _came(self, result: Any, fill: Fill | None, state: ShareState) -> None:  # noqa: ANN401
        result.error_code = int(state.error)
        if state.error:
            result.error_message = _MESSAGES.get(state.error, state.error.name)
        elif fill is not None:
            fill(result, state)
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        assert self._left >= 0, "each is answered once"
        if not self._left:
            self.reply.resolve(self._response)


class ShareStateHandler:
    def __init__(self, coordinator: StateRequests) -> None:
        self._coordinator = coordinator

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, self.initialize),
            Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, self.read),
            Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, self.write),
            Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, self.delete),
            Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, self.read_summary),
        ]

    def initialize(self, request: Request) -> Steps[Reply]:
        response = wire.InitializeShareGroupStateResponse()
        asking = _Asking(response)
        for key, data, results in _partitions(
            request.body, response.results, wire.InitializeStateResult
        ):
            result = wire.InitializeShareGroupStateResponsePartitionResult(key.partition)
            results.append(result)
            told = asking.about(result)
            self._coordinator.initialize(key, data.state_epoch, data.start_offset, told)
            yield PARTITION_UNITS
        return asking.asked_all()

    def read(self, request: Request) -> Steps[Reply]:
        response = wire.ReadShareGroupStateResponse()
        asking = _Asking(response)
        for key, data, results in _partitions(request.body, response.results, wire.ReadStateResult):
            result = wire.ReadShareGroupStateResponsePartitionResult(key.partition)
            results.append(result)
            self._coordinator.read(key, data.leader_epoch, asking.about(result, _fill_state))
            yield PARTITION_UNITS
        return asking.asked_all()

    def write(self, request: Request) -> Steps[Reply]:
        response = wire.WriteShareGroupStateResponse()
        asking = _Asking(response)
        for key, data, results in _partitions(
            request.body, response.results, wire.WriteStateResult
        ):
            result = wire.WriteShareGroupStateResponsePartitionResult(key.partition)
            results.append(result)
            batches = []
            for each in data.state_batches:
                batches.append(
                    StateBatch(
                        each.first_offset,
                        each.last_offset,
                        each.delivery_state,
                        each.delivery_count,
                    )
                )
                if not len(batches) % 100:
                    yield 100 // BATCHES_PER_UNIT
            write = Write(
                data.state_epoch,
                data.leader_epoch,
                data.start_offset,
                data.delivery_complete_count,
                batches,
            )
            yield from self._coordinator.write(key, write, asking.about(result))
        return asking.asked_all()

    def delete(self, request: Request) -> Steps[Reply]:
        response = wire.DeleteShareGroupStateResponse()
        asking = _Asking(response)
        for key, _, results in _partitions(request.body, response.results, wire.DeleteStateResult):
            result = wire.DeleteShareGroupStateResponsePartitionResult(key.partition)
            results.append(result)
            self._coordinator.delete(key, asking.about(result))
            yield PARTITION_UNITS
        return asking.asked_all()

    def read_summary(self, request: Request) -> Steps[Reply]:
        response = wire.ReadShareGroupStateSummaryResponse()
        asking = _Asking(response)
        for key, _, results in _partitions(
            request.body, response.results, wire.ReadStateSummaryResult
        ):
            result = wire.ReadShareGroupStateSummaryResponsePartitionResult(key.partition)
            results.append(result)
            self._coordinator.read_summary(key, asking.about(result, _fill_summary))
            yield PARTITION_UNITS
        return asking.asked_all()


def _partitions(
    body: Any,  # noqa: ANN401  # any of the five, which have the same form
    results: list[Any],
    result: Callable[..., Any],
) -> Iterator[tuple[ShareKey, Any, list[Any]]]:
    """Each partition of a request: its key, what is said of it, and where its result belongs."""
    for topic in body.topics:
        of_topic = result(topic_id=topic.topic_id)
        results.append(of_topic)
        for data in topic.partitions:
            key = ShareKey(body.group_id, topic.topic_id, data.partition)
            yield key, data, of_topic.partitions


def _fill_state(result: wire.ReadShareGroupStateResponsePartitionResult, state: ShareState) -> None:
    result.state_epoch = state.state_epoch
    result.start_offset = state.start_offset
    result.state_batches = [wire.StateBatch(*batch) for batch in state.batches]


def _fill_summary(
    result: wire.ReadShareGroupStateSummaryResponsePartitionResult, state: ShareState
) -> None:
    result.state_epoch = state.state_epoch
    result.leader_epoch = state.leader_epoch
    result.start_offset = state.start_offset
    result.delivery_complete_count = state.delivery_complete_count

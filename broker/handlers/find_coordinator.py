"""FindCoordinator, key 10, versions 0-6: which broker coordinates a group or a transactional id.

Behaviour: key type 0 (or none, version 0) is a group, 1 a transactional id (1+). The coordinator is
the leader of the partition, of the coordinator's topic, that the key hashes to. If the topic is not
there it is created, and the answer waits for it and, if the partition is ours, until it is loaded,
so that the next request need not be repeated. Without a live leader: COORDINATOR_NOT_AVAILABLE,
node id -1, host "", port -1. From 4 on several keys at once (KIP-699), each with its own answer.

Known deviations: share groups' state (key type 2) is not served: INVALID_REQUEST, as Kafka answers
without a share coordinator. Without a transaction coordinator, a transactional id is refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: clients ask for ever after most other errors. Kafka answers
COORDINATOR_NOT_AVAILABLE while it creates the topic; we answer when it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.api import Api, HandlerResult, Request, Steps, in_slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.coordinator.ports import Leaders
    from broker.coordinator.topic import CoordinatorTopic

#: What a key costs, in units of `Steps`, and characters of it that cost one: it is hashed.
KEY_UNITS = 10
CHARACTERS_PER_UNIT = 20

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1


@dataclass(slots=True, frozen=True)
class KeyType:
    """A kind of coordinator: its topic, and what makes it ready to coordinate a key."""

    topic: CoordinatorTopic
    ensure_ready: Callable[[str], Awaitable[None]]  # KafkaError


class FindCoordinatorHandler:
    """`key_types`: which coordinators this broker may have, by the protocol's key type."""

    def __init__(self, key_types: dict[int, KeyType], leaders: Leaders) -> None:
        self._key_types = key_types
        self._leaders = leaders

    def apis(self) -> list[Api]:
        return [Api(ApiKey.FIND_COORDINATOR, 0, 6, self.find)]

    def find(self, request: Request) -> HandlerResult:
        """At once if the topic is there, which it is but for the first time."""
        body: FindCoordinatorRequest = request.body
        kind = self._key_types.get(body.key_type)
        if kind is None or kind.topic.exists:
            return self._steps(request)
        return self._create_and_find(request, kind)

    async def _create_and_find(self, request: Request, kind: KeyType) -> FindCoordinatorResponse:
        for key in _keys(request):
            try:
                await kind.ensure_ready(key)
            except KafkaError:
                break  # there is no leader then, which is what the answer says
        return await in_slices(self._steps(request))

    def _steps(self, request: Request) -> Steps[FindCoordinatorResponse]:
        body: FindCoordinatorRequest = request.body
        listener = request.connection.listener
        found = []
        for key in _keys(request):
            yield KEY_UNITS + len(key) // CHARACTERS_PER_UNIT
            found.append(self._find(body.key_type, key, listener))
        if request.version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, key_type: int, key: str, listener: str) -> Coordinator:
        kind = self._key_types.get(key_type)
        if kind is None and key_type == KEY_TYPE_TRANSACTION:
            return _failure(
                key,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "this server has no transaction coordinator",
            )
        if kind is None:
            return _failure(key, ErrorCode.INVALID_REQUEST, f"no coordinator of type {key_type}")
        topic = kind.topic
        leader = None
        if topic.exists:
            leader = self._leaders.leader(topic.name, topic.partition_for(key), listener)
        if leader is None:
            return _failure(
                key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available."
            )
        return Coordinator(key, leader.node_id, leader.host, leader.port)


def _keys(request: Request) -> list[str]:
    body: FindCoordinatorRequest = request.body
    return body.coordinator_keys if request.version >= 4 else [body.key]


def _failure(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key, node_id=-1, host="", port=-1, error_code=error, error_message=message)

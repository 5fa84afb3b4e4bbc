"""FindCoordinator, key 10, versions 0-6: which broker coordinates a group, a transactional id,
or the state of a share partition.

Behaviour: key type 0 (or none, version 0) is a group, 1 a transactional id (1+), 2 a share
partition (6+; `group:topic id:partition`, else INVALID_REQUEST). The coordinator is
the leader of the partition, of the coordinator's topic, that the key hashes to. If the topic is not
there it is created, and the answer waits for it and, if the partition is ours, until it is loaded,
so that the next request need not be repeated. Without a live leader: COORDINATOR_NOT_AVAILABLE,
node id -1, host "", port -1. From 4 on several keys at once (KIP-699), each with its own answer.

A key type that this broker has no coordinator of gets INVALID_REQUEST, as in Kafka.

Known deviation: Kafka answers COORDINATOR_NOT_AVAILABLE while it creates the topic; we answer when
it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, HandlerResult, Request, Steps, in_slices
from wire.dataclass import dataclass
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
KEY_TYPE_SHARE = 2


def _as_it_is(key: str) -> str | None:
    return key


@dataclass(slots=True, frozen=True)
class KeyType:
    """A kind of coordinator: its topic, and what makes it ready to coordinate a key."""

    topic: CoordinatorTopic
    ensure_ready: Callable[[str], Awaitable[None]]  # KafkaError
    #: What is hashed of a key; None: it is none.
    canonical: Callable[[str], str | None] = _as_it_is
    #: Of requests in which it may be asked for.
    version_min: int = 0


class FindCoordinatorHandler:
    """`key_types`: which coordinators this broker may have, by the protocol's key type."""

    def __init__(self, key_types: dict[int, KeyType], leaders: Leaders) -> None:
        self._key_types = key_types
        self._leaders = leaders

    def apis(self) -> list[Api]:
        return [Api(ApiKey.FIND_COORDINATOR, 0, 6, self.find)]

    def find(self, request: Request) -> HandlerResult:
        """At once if the topic is there, which it is but for the first time."""
        kind = self._kind(request)
        if kind is None or kind.topic.exists:
            return self._steps(request)
        return self._create_and_find(request, kind)

    def _kind(self, request: Request) -> KeyType | None:
        kind = self._key_types.get(request.body.key_type)
        return None if kind is None or request.version < kind.version_min else kind

    async def _create_and_find(self, request: Request, kind: KeyType) -> FindCoordinatorResponse:
        for key in filter(None, map(kind.canonical, _keys(request))):
            try:
                await kind.ensure_ready(key)
            except KafkaError:
                break  # there is no leader then, which is what the answer says
        return await in_slices(self._steps(request))

    def _steps(self, request: Request) -> Steps[FindCoordinatorResponse]:
        body: FindCoordinatorRequest = request.body
        kind = self._kind(request)
        listener = request.connection.listener
        found = []
        for key in _keys(request):
            yield KEY_UNITS + len(key) // CHARACTERS_PER_UNIT
            found.append(self._find(kind, body.key_type, key, listener))
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

    def _find(self, kind: KeyType | None, key_type: int, key: str, listener: str) -> Coordinator:
        if kind is None:
            return _failure(key, ErrorCode.INVALID_REQUEST, f"no coordinator of type {key_type}")
        hashed = kind.canonical(key)
        if hashed is None:
            return _failure(key, ErrorCode.INVALID_REQUEST, f"no key of type {key_type}")
        topic = kind.topic
        leader = None
        if topic.exists:
            leader = self._leaders.leader(topic.name, topic.partition_for(hashed), listener)
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

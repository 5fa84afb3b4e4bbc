"""What a handler is: the shape that `dispatch` knows.

A handler module in broker/handlers/ has one class that is given its collaborators and offers
`apis()`, the list of (key, versions, function). ApiVersions answers exactly the union of these
lists: what is not declared here is not advertised.

A handler function takes a `Request` and gives one of
- a response message: a plain `def` that needs no waiting (answered in the same turn);
- a `Reply` that it will resolve later (Produce, Fetch: stage 1 ran, stage 2 completes it);
- an awaitable (`async def`): dispatch starts a task for it.
In every case the replies of one connection leave in the order of its requests.

Errors: `KafkaError` is for a handler's own per-partition loop. A handler that lets anything else
escape is a bug: dispatch logs it with the request id and answers UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wire.kafka.message import Message

if TYPE_CHECKING:
    from wire.kafka.api_keys import ApiKey


@dataclass(slots=True)
class ConnectionInfo:
    """What a handler may know about the connection that a request came by."""

    id: str  # unique in this broker's life: «local-remote-n»
    peer_host: str
    listener: str
    principal: str = "User:ANONYMOUS"
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    close: Callable[[], None] = lambda: None


class Reply:
    """A response that is not there yet. `resolve` once, on the loop's thread.

    A handler that would rather not go on for a client that left sets `on_abandoned`."""

    __slots__ = ("_on_resolved", "message", "on_abandoned")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self._on_resolved: Callable[[Message], None] | None = None

    def resolve(self, message: Message) -> None:
        assert self.message is None, "a reply is resolved once"
        self.message = message
        if self._on_resolved is not None:
            self._on_resolved(message)

    def on_resolved(self, function: Callable[[Message], None]) -> None:
        """Dispatch's hook; called at once if the response is there already."""
        self._on_resolved = function
        if self.message is not None:
            function(self.message)

    def abandon(self) -> bool:
        """The connection is gone, nobody will see the response. Whether the handler gave it up:
        then it may never be resolved."""
        if self.message is not None or self.on_abandoned is None:
            return False
        self.on_abandoned()
        return True


@dataclass(slots=True)
class Request:
    """One decoded request. `body` is the message class of its key."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    connection: ConnectionInfo
    body: Any


HandlerResult = Message | Reply | Awaitable[Message] | None
HandlerFunction = Callable[[Request], HandlerResult]


@dataclass(slots=True, frozen=True)
class Api:
    """One served API. `version_min_advertised` is for Produce alone (KAFKA-18659)."""

    key: ApiKey
    version_min: int
    version_max: int
    handle: HandlerFunction
    version_min_advertised: int | None = None

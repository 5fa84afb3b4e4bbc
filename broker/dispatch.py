"""Dispatch: one frame -> header -> API table -> version check -> decode -> handler -> reply.

The only catch-all of the server is here (design.md §6): an exception that escapes a handler is our
bug, is logged with the request's id and answered UNKNOWN_SERVER_ERROR, where the response has a
place for it, or with a closed connection where it has not. `strict` (tests) lets it through.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request
from broker.handlers.api_versions import unsupported_version_reply
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decoder_of, request_class, response_class
from wire.kafka.errors import ErrorCode, UnsupportedVersionError, WireError
from wire.kafka.headers import RequestHeader, decode_request_header, response_encoder
from wire.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    import trio

    from broker.connection import KafkaConnection
    from runtime.turn import Turn

logger = logging.getLogger(__name__)


def request_name(key: ApiKey) -> str:
    """As Kafka writes it in metrics (`request=`): LIST_OFFSETS is ListOffsets."""
    return "".join(word.capitalize() for word in key.name.split("_"))


class ApiRoute:
    """One (key, version) that is served: all that a request of it needs, by one look-up."""

    __slots__ = ("counts", "decode", "encode", "handle", "name")

    def __init__(self, api: Api, version: int, counts: list[int]) -> None:
        self.handle = api.handle
        self.name = request_name(api.key)
        self.counts = counts
        self.decode = decoder_of(request_class(api.key), version)
        #: Only Fetch carries records that are worth not copying.
        self.encode = response_encoder(api.key, version, by_reference=api.key == ApiKey.FETCH)


class Dispatcher:
    def __init__(
        self, apis: Iterable[Api], nursery: trio.Nursery, turn: Turn, *, strict: bool = False
    ) -> None:
        """Tasks of asynchronous handlers run in `nursery`. ValueError if a key is served twice."""
        self.turn = turn
        self._apis: dict[int, Api] = {}
        for api in apis:
            if api.key in self._apis:
                raise ValueError(f"API key {api.key!r} has two handlers")
            self._apis[api.key] = api
        self._routes: dict[tuple[int, int], ApiRoute] = {}
        self._nursery = nursery
        self._strict = strict
        #: In the order in which they came: a set's would be that of memory addresses.
        self.connections: dict[KafkaConnection, None] = {}
        #: Requests and failures by key, for metrics: [requests, handler exceptions].
        self.counts: dict[int, list[int]] = {key: [0, 0] for key in self._apis}
        self.bad_requests_count = 0
        self._is_stopped = False
        self._did = turn.watch.did

    def stop(self) -> None:
        """The broker closes its partitions now: requests that have a task end without an answer,
        appends are still answered, and a connection that asks for more is closed."""
        self._is_stopped = True
        self._nursery.cancel_scope.cancel()

    def connection_opened(self, connection: KafkaConnection) -> None:
        self.connections[connection] = None

    def connection_closed(self, connection: KafkaConnection) -> None:
        self.connections.pop(connection, None)

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        """Handles one request frame; a malformed one closes the connection, with one log line."""
        if self._is_stopped:
            connection.close()
            return
        try:
            header, offset = decode_request_header(frame)
            key, version = header.api_key, header.api_version
            route = self._routes.get((key, version))
            if route is None:
                route = self._make_route(header)
            # What may follow the body is ignored, as Kafka does: librdkafka 2.16 writes a null
            # array of Metadata v13 in four bytes instead of one.
            body, _ = route.decode(frame, offset)
        except WireError as error:
            self._refuse(connection, error)
            return
        correlation_id = header.correlation_id
        request = Request(
            key, version, correlation_id, header.client_id or "", connection.info, body
        )
        route.counts[0] += 1
        try:
            result = route.handle(request)
        except Exception:  # the one catch-all: a handler's bug must not end the server
            result = self._failed(request, route.counts)
            if result is None:
                connection.close()
                return
        if isinstance(result, Reply):
            connection.reply_later(result, route, correlation_id, len(frame))
        elif isinstance(result, Message):
            connection.reply_now(route, correlation_id, result)
        elif result is not None:
            reply = Reply()
            connection.reply_later(reply, route, correlation_id, len(frame))
            self._nursery.start_soon(
                self._finish, request, result, reply, connection, route, name=route.name
            )
        self._did(route.name)

    def _make_route(self, header: RequestHeader) -> ApiRoute:
        """UnsupportedVersionError unless it is served."""
        key, version = header.api_key, header.api_version
        api = self._apis.get(key)
        if api is None or not api.version_min <= version <= api.version_max:
            raise UnsupportedVersionError(
                key, version, header.correlation_id, known_key=api is not None
            )
        route = self._routes[key, version] = ApiRoute(api, version, self.counts[key])
        return route

    async def _finish(
        self,
        request: Request,
        result: Awaitable[Message],
        reply: Reply,
        connection: KafkaConnection,
        route: ApiRoute,
    ) -> None:
        try:
            message: Message | None = await result
        except Exception:  # the same catch-all, for handlers that wait
            message = self._failed(request, route.counts)
        if message is None:
            connection.give_memory(reply)
            connection.close()
        else:
            reply.resolve(message)

    def _failed(self, request: Request, counts: list[int]) -> Message | None:
        """A handler's bug: log it, answer it if the response has a place for an error."""
        if self._strict:
            raise  # called only while an exception is handled
        counts[1] += 1
        logger.exception(
            "handler_failed",
            kv(
                api=ApiKey(request.key).name,
                version=request.version,
                correlation_id=request.correlation_id,
                client_id=request.client_id,
                connection=request.connection.id,
            ),
        )
        response = response_class(request.key)()
        if not hasattr(response, "error_code"):
            return None
        response.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        return response

    def _refuse(self, connection: KafkaConnection, error: WireError) -> None:
        if (
            isinstance(error, UnsupportedVersionError)
            and error.api_key == ApiKey.API_VERSIONS
            and error.version >= 0
        ):
            # Never by closing: the client steps down to what this reply names (KIP-511).
            connection.reply_now(
                self._make_route(RequestHeader(error.api_key, 0, error.correlation_id, None)),
                error.correlation_id,
                unsupported_version_reply(self._apis.values()),
            )
            return
        self.bad_requests_count += 1
        logger.warning("bad_request", kv(peer=connection.peer, error=error))
        connection.close()

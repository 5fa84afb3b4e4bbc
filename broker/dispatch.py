"""Dispatch: one frame -> header -> API table -> version check -> decode -> handler -> reply.

The only catch-all of the server is here (design.md §6): an exception that escapes a handler is our
bug, is logged with the request's id and answered UNKNOWN_SERVER_ERROR, where the response has a
place for it, or with a closed connection where it has not. `strict` (tests) lets it through.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request
from broker.handlers.api_versions import unsupported_version_reply
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode, request_class, response_class
from wire.kafka.errors import ErrorCode, UnsupportedVersionError, WireError
from wire.kafka.headers import RequestHeader, decode_request_header
from wire.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    import trio

    from broker.connection import KafkaConnection, Slot

logger = logging.getLogger(__name__)


class Dispatcher:
    def __init__(self, apis: Iterable[Api], nursery: trio.Nursery, *, strict: bool = False) -> None:
        """Tasks of asynchronous handlers run in `nursery`. ValueError if a key is served twice."""
        self._apis: dict[int, Api] = {}
        for api in apis:
            if api.key in self._apis:
                raise ValueError(f"API key {api.key!r} has two handlers")
            self._apis[api.key] = api
        self._nursery = nursery
        self._strict = strict
        self.connections: set[KafkaConnection] = set()
        #: Requests and failures by key, for metrics: [requests, handler exceptions].
        self.counts: dict[int, list[int]] = {key: [0, 0] for key in self._apis}
        self.bad_requests_count = 0

    def connection_opened(self, connection: KafkaConnection) -> None:
        self.connections.add(connection)

    def connection_closed(self, connection: KafkaConnection) -> None:
        self.connections.discard(connection)

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        """Handles one request frame; a malformed one closes the connection, with one log line."""
        try:
            header, offset = decode_request_header(frame)
            api = self._apis.get(header.api_key)
            if api is None or not api.version_min <= header.api_version <= api.version_max:
                raise UnsupportedVersionError(
                    header.api_key,
                    header.api_version,
                    header.correlation_id,
                    known_key=api is not None,
                )
            # What may follow the body is ignored, as Kafka does: librdkafka 2.16 writes a null
            # array of Metadata v13 in four bytes instead of one.
            body, _ = decode(request_class(header.api_key), header.api_version, frame, offset)
        except WireError as error:
            self._refuse(connection, error)
            return
        request = Request(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id or "",
            connection.info,
            body,
        )
        counts = self.counts[header.api_key]
        counts[0] += 1
        try:
            result = api.handle(request)
        except Exception:
            result = self._failed(request, counts)
            if result is None:
                connection.close()
                return
        if result is None:
            return
        if isinstance(result, Message):
            connection.reply_now(header, result)
            return
        slot = connection.reply_later(header, len(frame))
        if isinstance(result, Reply):
            slot.reply = result
            result.on_resolved(slot.resolved)
        else:
            assert isawaitable(result)
            self._nursery.start_soon(self._finish, request, result, slot, counts)

    async def _finish(
        self, request: Request, result: Awaitable[Message], slot: Slot, counts: list[int]
    ) -> None:
        try:
            message: Message | None = await result
        except Exception:
            message = self._failed(request, counts)
        if message is None:
            slot.give_memory()
            slot.connection.close()
            return
        slot.resolved(message)

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
            header = RequestHeader(error.api_key, 0, error.correlation_id, None)
            connection.reply_now(header, unsupported_version_reply(self._apis.values()))
            return
        self.bad_requests_count += 1
        logger.warning("bad_request", kv(peer=connection.peer, error=error))
        connection.close()

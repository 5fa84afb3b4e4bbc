"""Dispatch: one frame -> header -> API table -> version check -> decode -> handler -> reply.

The only catch-all of the server is here (invariants E): an exception that escapes a handler is our
bug, is logged with the request's id and answered UNKNOWN_SERVER_ERROR, where the response has a
place for it, or with a closed connection where it has not. `strict` (tests) lets it through.

A request that would hold the loop does not: decoding, a handler's steps (broker/api.py), encoding
go on in a task, slice by slice, when they turn out to be long; the connection is held meanwhile, as
Kafka's is for every request, so that its requests stay in order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import trio

from broker.api import (
    ELEMENTS_INLINE,
    STEP_UNITS,
    Abandonable,
    Api,
    PlainReply,
    Reply,
    Request,
    let_go,
    while_open,
)
from broker.guard import guarded
from broker.handlers.api_versions import unsupported_version_reply
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decoder_of, request_class, response_class, sliced_decoder_of
from wire.kafka.errors import ErrorCode, UnsupportedVersionError, WireError
from wire.kafka.headers import (
    RequestHeader,
    decode_request_header,
    encode_response_sliced,
    response_encoder,
    sends_records,
)
from wire.kafka.message import Message
from wire.kafka.primitives import ManyElementsError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from broker.api import Accounting, Served, Steps
    from broker.connection import KafkaConnection
    from broker.rights import Authorizer
    from runtime.turn import Turn
    from wire.buffers import Buffer

logger = logging.getLogger(__name__)

#: Elements of a request altogether, in slices: a commit for 100,000 partitions is a large one.
ELEMENTS_MAX = 250_000
#: What may follow a body: librdkafka 2.16 writes a null array of Metadata v13 in four bytes instead
#: of one. Kafka looks at nothing that follows.
TRAILING_BYTES_MAX = 16
#: What a request costs beside its steps, in units of about a microsecond.
FREQUENT_UNITS = 30
REQUEST_UNITS = 100
#: Of Produce and Fetch the loop's watch is told of every fourth.
MEASURED_EVERY_MASK = 3
#: Large frames: of requests without records, and of the first request of a connection. Only records
#: come in tens of megabytes; what socket.request.max.bytes says holds, too.
OTHER_FRAME_BYTES_MAX = 16 << 20
STRANGER_FRAME_BYTES_MAX = 256 << 10
FRAME_BYTES_UNLIMITED = (1 << 31) - 1


def request_name(key: ApiKey) -> str:
    """As Kafka writes it in metrics (`request=`): LIST_OFFSETS is ListOffsets."""
    return "".join(word.capitalize() for word in key.name.split("_"))


class ApiRoute:
    """One (key, version) that is served: all that a request of it needs, by one look-up."""

    __slots__ = (
        "_key", "_version", "counts", "decode", "encode", "handle", "holds_frame", "is_frequent",
        "name", "units",
    )  # fmt: skip

    def __init__(
        self, api: Api, version: int, counts: list[int], authorizer: Authorizer | None
    ) -> None:
        self.name = request_name(api.key)
        self.handle = api.handle
        if authorizer is not None:
            self.handle = guarded(api.key, self.name, api.handle, authorizer)
        self.counts = counts
        self._key = api.key
        self._version = version
        self.decode = decoder_of(request_class(api.key), version)
        self.encode = response_encoder(api.key, version, by_reference=sends_records(api.key))
        #: Records are views into the frame; of all else, values are copied when it is parsed.
        self.holds_frame = api.key == ApiKey.PRODUCE
        self.is_frequent = api.key in (ApiKey.PRODUCE, ApiKey.FETCH)
        self.units = FREQUENT_UNITS if self.is_frequent else REQUEST_UNITS

    def decode_sliced(
        self, frame: memoryview, offset: int
    ) -> Generator[None, None, tuple[Any, int]]:
        decode = sliced_decoder_of(request_class(self._key), self._version)
        return decode(frame, offset, ELEMENTS_MAX)

    def encode_sliced(
        self, message: Message, correlation_id: int
    ) -> Generator[None, None, list[Buffer]]:
        return encode_response_sliced(message, self._key, self._version, correlation_id)


#: A handler failed, and its response has no place for an error.
_NO_ANSWER = object()


def _check_end(frame: memoryview, end: int) -> None:
    if len(frame) - end > TRAILING_BYTES_MAX:
        raise WireError(f"{len(frame) - end} bytes follow the body of a request")


class Dispatcher:
    def __init__(
        self,
        apis: Iterable[Api],
        nursery: trio.Nursery,
        turn: Turn,
        *,
        authorizer: Authorizer | None = None,
        strict: bool = False,
    ) -> None:
        """Tasks of asynchronous handlers run in `nursery`. Without an `authorizer` everybody may do
        everything. ValueError if a key is served twice."""
        self.turn = turn
        self._authorizer = authorizer
        self._apis: dict[int, Api] = {}
        #: Asked first, about each frame, and the key of its API.
        self._plain: tuple[ApiKey, Callable[[memoryview], PlainReply | None]] | None = None
        for api in apis:
            if api.key in self._apis:
                raise ValueError(f"API key {api.key!r} has two handlers")
            self._apis[api.key] = api
            if api.plain is not None and authorizer is None:
                self._plain = api.key, api.plain
        self._routes: dict[tuple[int, int], ApiRoute] = {}
        self._nursery = nursery
        self._strict = strict
        #: In the order in which they came: a set's would be that of memory addresses.
        self.connections: dict[KafkaConnection, None] = {}
        #: Told of each of them that is gone.
        self.on_closed: Callable[[KafkaConnection], None] = lambda connection: None
        #: Requests and failures by key, for metrics: [requests, handler exceptions].
        self.counts: dict[int, list[int]] = {key: [0, 0] for key in self._apis}
        self.bad_requests_count = 0
        self.is_stopped = False
        self._did = turn.watch.did
        self._unmeasured = 0
        #: None while no client has a quota: a request then costs this one look more.
        self.accounting: Accounting | None = None

    def stop(self) -> None:
        """The broker closes its partitions now: requests that have a task end without an answer,
        appends are still answered, and a connection that asks for more is closed."""
        self.is_stopped = True
        self._nursery.cancel_scope.cancel()

    def connection_opened(self, connection: KafkaConnection) -> None:
        self.connections[connection] = None

    def connection_closed(self, connection: KafkaConnection) -> None:
        if self.connections.pop(connection, self) is None:
            self.on_closed(connection)

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        """Handles one request frame; a malformed one closes the connection, with one log line."""
        if self.is_stopped:
            connection.close()
            return
        if self._plain is not None and self.accounting is None and self._take(connection, frame):
            return
        try:
            header, offset = decode_request_header(frame)
            route = self._routes.get((header.api_key, header.api_version))
            if route is None:
                route = self._make_route(header)
            try:
                body, end = route.decode(frame, offset, ELEMENTS_INLINE)
            except ManyElementsError:
                connection.hold(len(frame))
                self.start(
                    *(self._decode_sliced, connection, header, route, frame, offset),
                    name=route.name,
                )
                return
            _check_end(frame, end)
        except WireError as error:
            self._refuse(connection, error)
            return
        self._handle(connection, header, route, body, len(frame))
        if route.is_frequent:
            # Of what comes tens of thousands of times a second, reading the clock is a percent.
            self._unmeasured += 1
            if self._unmeasured & MEASURED_EVERY_MASK:
                return
        self._did(route.name)

    def _take(self, connection: KafkaConnection, frame: memoryview) -> bool:
        """Whether a handler takes the frame as it is (`Api.plain`), and answers it."""
        assert self._plain is not None
        key, plain = self._plain
        try:
            reply = plain(frame)
        except Exception:  # as in `_result`
            self._failed_plain(connection, frame)
            return True
        if reply is None:
            return False
        route = self._routes.get((key, reply.version))
        if route is None:
            route = self._make_route(RequestHeader(key, reply.version, reply.correlation_id, None))
        connection.is_known = True
        route.counts[0] += 1
        self.turn.spent_units += FREQUENT_UNITS
        connection.reply_later(reply, route, reply.correlation_id, len(frame))
        self._unmeasured += 1
        if not self._unmeasured & MEASURED_EVERY_MASK:
            self._did(route.name)
        return True

    def _failed_plain(self, connection: KafkaConnection, frame: memoryview) -> None:
        header, _ = decode_request_header(frame)
        counts = self.counts[header.api_key]
        counts[0] += 1
        request = Request(
            *(header.api_key, header.api_version, header.correlation_id, header.client_id or ""),
            connection=connection.info,
            body=None,
        )
        self._failed(request, counts)
        connection.close()

    async def _decode_sliced(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        route: ApiRoute,
        frame: memoryview,
        offset: int,
    ) -> None:
        """A request of very many elements: the connection is held until it is handled."""
        body: Message | None = None
        is_used_up = True
        try:
            try:
                decoded = await while_open(connection, route.decode_sliced(frame, offset))
                if decoded is not None:
                    body, end = decoded
                    _check_end(frame, end)
            except WireError as error:
                self._refuse(connection, error)
            else:
                if body is not None:
                    is_used_up = self._handle(
                        connection, header, route, body, len(frame), is_large=True
                    )
        finally:
            connection.release(len(frame))
        if body is not None and is_used_up:
            await let_go(body)

    def _handle(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        route: Served,
        body: Message,
        size_bytes: int,
        *,
        is_large: bool = False,
    ) -> bool:
        """Whether a large body is the caller's to empty: no task of the request's does it."""
        request = Request(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id or "",
            connection.info,
            body,
            is_large,
        )
        connection.is_known = True
        route.counts[0] += 1
        if self.accounting is not None:
            route = self.accounting.accounted(connection, request, route, size_bytes)
        self.turn.spent_units += route.units + (0 if route.holds_frame else size_bytes >> 4)
        result = self._result(request, route)
        if type(result) is GeneratorType:
            connection.hold(size_bytes)
            self.start(
                *(self._go_on, connection, request, route, result, size_bytes), name=route.name
            )
            return False
        self._answer(connection, request, route, result, size_bytes)
        return is_large and not isinstance(result, Awaitable)

    def _result(
        self,
        request: Request,
        route: Served,
        steps: Steps[Any] | None = None,
    ) -> Any:  # noqa: ANN401  # whatever the handler gives, or _NO_ANSWER
        """What the handler gives, asked for the first time or after `steps` of it; its steps if
        there are more than may be done at once."""
        try:
            result: Any = route.handle(request) if steps is None else steps
            return self._some_steps(result) if type(result) is GeneratorType else result
        except Exception:  # the one catch-all: a handler's bug must not end the server
            return self._failed(request, route.counts) or _NO_ANSWER

    def _some_steps(self, steps: Steps[Any]) -> Any:  # noqa: ANN401  # what they lead to
        """As much as may be done at once; `steps` itself if that is not all."""
        left = STEP_UNITS
        try:
            while left > 0:
                left -= next(steps)
        except StopIteration as end:
            return end.value
        finally:
            self.turn.spent_units += STEP_UNITS - left
        return steps

    async def _go_on(
        self,
        connection: KafkaConnection,
        request: Request,
        route: Served,
        steps: Steps[Any],
        size_bytes: int,
    ) -> None:
        """The rest of a handler's steps; nobody wants them once the connection is gone."""
        try:
            while not connection.is_closed:
                await trio.lowlevel.checkpoint()
                result = self._result(request, route, steps)
                if result is not steps:
                    self._answer(connection, request, route, result, size_bytes)
                    if request.is_large and not isinstance(result, Awaitable):
                        await let_go(request.body)
                    return
        finally:
            steps.close()
            connection.release(size_bytes)

    def _answer(
        self,
        connection: KafkaConnection,
        request: Request,
        route: Served,
        result: Any,  # noqa: ANN401  # what a handler gave, or _NO_ANSWER
        size_bytes: int,
    ) -> None:
        if isinstance(result, Reply):
            # What is not produced was copied out of the frame by now.
            size_bytes = size_bytes if route.holds_frame else 0
            connection.reply_later(result, route, request.correlation_id, size_bytes)
        elif isinstance(result, Message):
            connection.reply_now(route, request.correlation_id, result)
        elif result is _NO_ANSWER:
            connection.close()
        elif result is not None:
            reply = Reply()
            if isinstance(result, Abandonable):
                reply.on_abandoned = result.abandon
                result.reply = reply
                size_bytes = 0
            connection.reply_later(reply, route, request.correlation_id, size_bytes)
            self.start(self._finish, request, result, reply, connection, route, name=route.name)

    def start(
        self,
        function: Callable[..., Awaitable[None]],
        *arguments: Any,  # noqa: ANN401  # the function's
        name: str,
    ) -> None:
        self._nursery.start_soon(function, *arguments, name=name)

    def frame_bytes_max(self, key: int, version: int, *, is_known: bool) -> int:
        api = self._apis.get(key)
        if api is None or not api.version_min <= version <= api.version_max:
            return 0
        if key == ApiKey.PRODUCE:
            return FRAME_BYTES_UNLIMITED
        return OTHER_FRAME_BYTES_MAX if is_known else STRANGER_FRAME_BYTES_MAX

    def _make_route(self, header: RequestHeader) -> ApiRoute:
        """UnsupportedVersionError unless it is served."""
        key, version = header.api_key, header.api_version
        api = self._apis.get(key)
        if api is None or not api.version_min <= version <= api.version_max:
            raise UnsupportedVersionError(
                key, version, header.correlation_id, known_key=api is not None
            )
        route = self._routes[key, version] = ApiRoute(
            api, version, self.counts[key], self._authorizer
        )
        return route

    async def _finish(
        self,
        request: Request,
        result: Awaitable[Message | None],
        reply: Reply,
        connection: KafkaConnection,
        route: Served,
    ) -> None:
        try:
            message = await result
        except Exception:  # as in `_result`, for handlers that wait
            message = self._failed(request, route.counts)
        if message is None:
            connection.give_memory(reply)
            connection.close()
        else:
            reply.resolve(message)
        # They know each other, and what has grown old is looked through for cycles hardly ever.
        reply.on_abandoned = None
        if isinstance(result, Abandonable):
            result.reply = None
        if request.is_large:
            await let_go(request.body)

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

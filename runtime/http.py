"""A small HTTP/1.1 server for operators: metrics, health, administration.

    async def handle(request: HttpRequest) -> HttpResponse: ...
    address = await nursery.start(partial(serve, handle, "127.0.0.1", 9600))

The protocol is h11's (sans-IO); here are the sockets, the limits and the time-outs. A connection is
one task; requests follow each other on it. What a client can cost is bounded: head and body sizes,
lines of a head, connections, the time it may take to send a request and to take an answer. Nothing
that it sends holds the loop: h11 is given pieces of RECEIVE_SIZE_BYTES, and of a body in chunks
others have the loop after a few.

An answer's body is bytes, or an iterator of chunks that is asked for the next one only when the
last was sent: a list of a million things never is in memory as a whole. Its first chunk is awaited
before the head is sent, so that what fails at once is still an error answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

from runtime.logs import kv
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Iterator

    from runtime.renewed_tls import RenewedTls

logger = logging.getLogger(__name__)

HEAD_SIZE_MAX_BYTES = 16 * 1024
#: Each line takes h11 some microseconds, all of them at once.
HEAD_LINES_MAX = 200
#: Of a chunk's head, and of the lines behind the last chunk, which nobody looks at.
TRAILER_SIZE_MAX_BYTES = 1024
BODY_SIZE_MAX_BYTES = 256 * 1024
QUERY_FIELDS_MAX = 32
CONNECTIONS_MAX = 32
#: To send a whole request once its first byte came, and between two requests.
REQUEST_TIMEOUT_SECONDS = 10.0
IDLE_TIMEOUT_SECONDS = 60.0
#: To take the next piece of an answer, of at most SEND_SIZE_BYTES.
SEND_TIMEOUT_SECONDS = 20.0
SEND_SIZE_BYTES = 64 * 1024
#: What h11 is given at once.
RECEIVE_SIZE_BYTES = 4 * 1024
#: Chunks of a body between two chances for others to run: some 1 ms.
CHUNKS_PER_TURN = 100
#: Of a list in an answer, before others run.
VALUES_PER_TURN = 100
#: After an error that ends the connection: input that is still read, so that the answer arrives.
LINGER_SECONDS = 1.0

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_SecureStream = trio.SSLStream[trio.SocketStream]
_Stream = trio.SocketStream | _SecureStream

_CONTINUE = h11.InformationalResponse(status_code=100, headers=[])
_BLANK_LINE = re.compile(rb"\n\r?\n")


@dataclass(slots=True, frozen=True)
class HttpRequest:
    method: str
    #: Decoded, without the query.
    path: str
    #: The last value of each field.
    query: Mapping[str, str]
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes = b""
    #: The other side's address, "" if unknown.
    peer: str = ""


@dataclass(slots=True)
class HttpResponse:
    status: int = 200
    body: bytes | AsyncGenerator[bytes, None] = b""
    content_type: str = TEXT
    headers: list[tuple[str, str]] = field(default_factory=list)


class HttpError(Exception):
    """An answer that is an error: `{"error": message}` with this status, and these headers."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    def response(self) -> HttpResponse:
        answer = error_response(self.status, self.message)
        answer.headers.extend(self.headers)
        return answer


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


def json_response(value: object, status: int = 200) -> HttpResponse:
    """The value as indented JSON, for programs and for people with curl."""
    return HttpResponse(status, json.dumps(value, indent=2).encode() + b"\n", JSON)


def json_list_response(values: Iterable[object]) -> HttpResponse:
    """A list of any length, one value a line: each is asked for when it is sent."""
    return HttpResponse(200, _json_list(values), JSON)


async def _json_list(values: Iterable[object]) -> AsyncGenerator[bytes, None]:
    yield b"["
    for number, value in enumerate(values):
        yield (b",\n" if number else b"\n") + json.dumps(value).encode()
        if number % VALUES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    yield b"\n]\n"


def text_response(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(status, text.encode(), TEXT)


def error_response(status: int, message: str) -> HttpResponse:
    return json_response({"error": message}, status)


async def serve(
    handler: Handler,
    host: str,
    port: int,
    *,
    connections_max: int = CONNECTIONS_MAX,
    tls: RenewedTls | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` with the address that is really bound. OSError if it
    cannot be. Connections beyond the limit wait in the listener's backlog, and one that is silent
    goes for each. `tls`: https."""
    try:
        opened = await trio.open_tcp_listeners(port, host=host, backlog=connections_max)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {host}:{port}") from error
    address = opened[0].socket.getsockname()
    room = _Room(connections_max)
    listeners = [_Admitting(each, room) for each in opened]

    async def accepted(stream: trio.SocketStream) -> None:
        try:
            peer = str(stream.socket.getpeername()[0])
            if tls is None:
                await _Connection(stream, handler, peer, room).run()
            elif (secured := await _secured(stream, tls.context, peer)) is not None:
                await _Connection(secured, handler, peer, room).run()
        finally:
            await trio.aclose_forcefully(stream)
            room.leave()

    task_status.started((address[0], address[1]))
    async with trio.open_nursery() as nursery:
        if tls is not None:
            nursery.start_soon(tls.run)
        await trio.serve_listeners(accepted, listeners)


class _Room:
    """Of connections. If there is none, who waits for no answer and has sent nothing for longest
    goes: with so many silent ones nobody else would be served for IDLE_TIMEOUT_SECONDS."""

    def __init__(self, places: int) -> None:
        self._free = trio.Semaphore(places)
        #: In the order in which they began to wait.
        self._silent: dict[trio.CancelScope, None] = {}

    async def enter(self) -> None:
        if not self._free.value and self._silent:
            next(iter(self._silent)).cancel()
        await self._free.acquire()

    def leave(self) -> None:
        self._free.release()

    @contextmanager
    def silent(self) -> Iterator[trio.CancelScope]:
        """While a connection has sent nothing of a request."""
        with trio.move_on_after(IDLE_TIMEOUT_SECONDS) as scope:
            self._silent[scope] = None
            try:
                yield scope
            finally:
                self._silent.pop(scope, None)


class _Admitting(trio.abc.Listener[trio.SocketStream]):
    """A listener that gives a connection when there is room for it, and accepts none meanwhile:
    each has a descriptor, of which the process has not many, and the disk needs them."""

    def __init__(self, listener: trio.SocketListener, room: _Room) -> None:
        self._listener = listener
        self._room = room

    async def accept(self) -> trio.SocketStream:
        stream = await self._listener.accept()
        try:
            await self._room.enter()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()


async def _secured(
    stream: trio.SocketStream, tls: ssl.SSLContext, peer: str
) -> _SecureStream | None:
    """None: whoever came does not shake hands."""
    secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
    try:
        with trio.fail_after(REQUEST_TIMEOUT_SECONDS):
            await secured.do_handshake()
    except (trio.BrokenResourceError, trio.TooSlowError, OSError) as error:
        reason = error.__cause__ or error
        logger.info("http_tls_refused", kv(peer=peer, reason=str(reason) or repr(reason)))
        await trio.aclose_forcefully(stream)
        return None
    return secured


class _Connection:
    def __init__(self, stream: _Stream, handler: Handler, peer: str, room: _Room) -> None:
        self._stream = stream
        self._room = room
        self._handler = handler
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX_BYTES)
        self._peer = peer
        self._is_head_only = False

    async def run(self) -> None:
        try:
            while await self._cycle():
                self._protocol.start_next_cycle()
            await self._linger()
        except (trio.BrokenResourceError, trio.TooSlowError, OSError) as error:
            logger.debug("http client left", kv(peer=self._peer, error=repr(error)))

    async def _cycle(self) -> bool:
        """One request and its answer; whether another may follow."""
        try:
            request = await self._receive()
        except h11.RemoteProtocolError as error:
            response = error_response(error.error_status_hint, f"no HTTP/1.1 request: {error}")
        except HttpError as error:
            response = error.response()
        else:
            if request is None:
                return False
            response = await self._answer(request)
        await self._send(response)
        states = (self._protocol.our_state, self._protocol.their_state)
        return states == (h11.DONE, h11.DONE)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return await self._handler(request)
        except HttpError as error:
            return error.response()
        except Exception as error:  # a request must not take down what it looks at
            return self._failed(error)

    @staticmethod
    def _failed(error: Exception) -> HttpResponse:
        logger.error("http request failed", kv(error=repr(error)), exc_info=error)
        return error_response(500, "the request failed; the server's log says why")

    # Receiving.

    async def _receive(self) -> HttpRequest | None:
        """None if the client closed, was idle for long, or too long for others who came.
        RemoteProtocolError, HttpError."""
        self._is_head_only = False
        event: object
        with self._room.silent() as idle:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA and not await self._feed():
                return None
        if idle.cancelled_caught:
            return None
        with trio.move_on_after(REQUEST_TIMEOUT_SECONDS):
            if event is h11.NEED_DATA:
                event = await self._next_event()
            if not isinstance(event, h11.Request):
                return None  # the connection was closed
            self._is_head_only = event.method == b"HEAD"
            return self._parsed(event, await self._receive_body())
        raise HttpError(408, f"the request took more than {REQUEST_TIMEOUT_SECONDS:g} seconds")

    async def _receive_body(self) -> bytes:
        body = bytearray()
        slices = Slices(CHUNKS_PER_TURN)
        while True:
            if slices.due():
                await slices.turn()
            event = await self._next_event()
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_SIZE_MAX_BYTES:
                    raise HttpError(413, f"the body is larger than {BODY_SIZE_MAX_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)

    async def _next_event(self) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            if self._protocol.they_are_waiting_for_100_continue:
                await self._write(self._encode(_CONTINUE))
            await self._feed()
        return event

    async def _feed(self) -> bool:
        """False at the end of the input. HttpError 431."""
        data = await self._stream.receive_some(RECEIVE_SIZE_BYTES)
        self._check_lines(data)
        self._protocol.receive_data(bytes(data))
        return bool(data)

    def _check_lines(self, data: bytes | bytearray) -> None:
        """Before h11 has them: it parses all lines of a head at once. HttpError 431."""
        left, _ = self._protocol.trailing_data
        if self._protocol.their_state is not h11.IDLE:
            if len(left) > TRAILER_SIZE_MAX_BYTES:
                raise HttpError(
                    431,
                    f"a chunk's head, or a trailer, of more than {TRAILER_SIZE_MAX_BYTES} bytes",
                )
            return
        left += data
        end = _BLANK_LINE.search(left)
        if left.count(b"\n", 0, end.start() if end is not None else len(left)) > HEAD_LINES_MAX:
            raise HttpError(431, f"a head of more than {HEAD_LINES_MAX} lines")

    def _parsed(self, head: h11.Request, body: bytes) -> HttpRequest:
        try:
            target = urlsplit(head.target.decode("ascii"))
            pairs = parse_qsl(target.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
            path = unquote(target.path, errors="strict")
        except ValueError as error:
            raise HttpError(400, f"bad request target: {error}") from error
        return HttpRequest(
            head.method.decode("ascii"),
            path,
            dict(pairs),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
            body,
            self._peer,
        )

    # Sending.

    async def _send(self, response: HttpResponse) -> None:
        body = response.body
        if not isinstance(body, bytes):
            async with aclosing(body):
                await self._stream_body(response, body)
            return
        data = self._encode(self._head(response, len(body)))
        if not self._is_head_only and body:
            data += self._encode(h11.Data(data=body))
        await self._write(data + self._encode(h11.EndOfMessage()))

    async def _stream_body(
        self, response: HttpResponse, chunks: AsyncGenerator[bytes, None]
    ) -> None:
        """What fails before the first chunk is still answered with its status; what fails later
        leaves the body without its end, which a client sees as a broken transfer."""
        try:
            chunk = await anext(chunks, b"")
        except HttpError as error:
            await self._send(error.response())
            return
        except Exception as error:  # as in _answer
            await self._send(self._failed(error))
            return
        await self._write(self._encode(self._head(response, None)))
        while chunk and not self._is_head_only:
            await self._write(self._encode(h11.Data(data=chunk)))
            try:
                chunk = await anext(chunks, b"")
            except Exception as error:  # as in _answer
                logger.warning("http body cut", kv(peer=self._peer, error=repr(error)))
                raise trio.BrokenResourceError from error
        await self._write(self._encode(h11.EndOfMessage()))

    def _head(self, response: HttpResponse, size: int | None) -> h11.Response:
        headers = [("Content-Type", response.content_type), *response.headers]
        if size is not None:
            headers.append(("Content-Length", str(size)))
        headers.append(("Cache-Control", "no-store"))
        return h11.Response(
            status_code=response.status,
            headers=headers,
            reason=HTTPStatus(response.status).phrase.encode(),
        )

    def _encode(self, event: h11.Event) -> bytes:
        return self._protocol.send(event) or b""

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), SEND_SIZE_BYTES):
            with trio.fail_after(SEND_TIMEOUT_SECONDS):
                await self._stream.send_all(view[start : start + SEND_SIZE_BYTES])

    async def _linger(self) -> None:
        """Closing with unread input would reset the connection under the answer."""
        with trio.move_on_after(LINGER_SECONDS):
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
            while await self._stream.receive_some(SEND_SIZE_BYTES):
                pass

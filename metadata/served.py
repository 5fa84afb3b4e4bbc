"""A metadata store for other processes of this machine: the server's side of metadata/remote.py.

Each client has a session of its own in the store, and in it its ephemeral nodes. A session outlives
a lost connection by its time-out, and ends when nothing was heard for that long, whether there is a
connection or not; `end_client` ends it at once (whoever sees a process die need not wait). Watches
belong to a connection: a client makes them anew on the next one.

Calls of one client run beside each other, so that one transaction takes all of them; their order is
the client's affair, as with every MetadataStore. A watch is set when its frame is read, before any
call that is behind it.

Bounded: sessions, calls and watches of a session, bytes of calls that are under way, bytes that a
client does not fetch. A client that breaks the protocol is cut off.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from metadata.remote_frames import (
    FRAME_SIZE_MAX_BYTES,
    PROTOCOL_VERSION,
    SECRET_SIZE_BYTES,
    Field,
    FrameError,
    Kind,
    Message,
    decode,
    encode,
    encode_error,
)
from metadata.served_calls import encode_answer, run_call
from metadata.store import MetadataError, MetadataUnavailableError
from runtime.logs import kv
from runtime.receive import FrameReceiver, ReceiveChunks
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from metadata.store import MetadataStore, Watch
    from runtime.env import Env
    from runtime.net import Listener, Transport

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MIN_MS = 100
SESSION_TIMEOUT_MAX_MS = 600_000
LOOK_SECONDS = 0.05
#: A look that comes so late says that it is this process that did not run.
STALL_SECONDS = 0.5
END_SECONDS_MAX = 5.0


@dataclass(slots=True, frozen=True)
class ServedLimits:
    sessions_max: int = 1_000
    calls_max: int = 2_000
    watches_max: int = 10_000
    #: Of calls under way; one more may be on top of it.
    call_bytes_max: int = 32 << 20
    unsent_bytes_max: int = 32 << 20


class _Session:
    """One client's, from its first HELLO on."""

    def __init__(
        self,
        number: int,
        secret: bytes,
        timeout_ms: int,
        name: str,
        store: MetadataStore,
        scope: trio.CancelScope,
    ) -> None:
        self.number = number
        self.secret = secret
        self.timeout_s = timeout_ms / 1000
        self.name = name
        self.store = store
        #: Of the store's `run`.
        self.scope = scope
        self.connection: _Connection | None = None
        self.heard_at = trio.current_time()
        self.is_ending = False
        self.ended = trio.Event()


async def _run_store(
    store: MetadataStore, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with scope:
        await store.run(task_status=task_status)


class MetadataServer:
    """Serves at `path` while `run` runs. `open_session()` makes a store that is one more session on
    the same nodes; it is run and closed here."""

    def __init__(
        self,
        env: Env,
        path: str,
        open_session: Callable[[], MetadataStore],
        limits: ServedLimits | None = None,
    ) -> None:
        self._env = env
        self._path = path
        self._open_session = open_session
        self.limits = limits if limits is not None else ServedLimits()
        self._chunks = ReceiveChunks()
        self._sessions: dict[int, _Session] = {}
        self._opening_count = 0
        self._last_number = 0
        self._connections: set[_Connection] = set()
        self._nursery: trio.Nursery | None = None

    @property
    def session_count(self) -> int:
        """For tests: those that are open."""
        return len(self._sessions)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; then the sessions end. OSError if the socket cannot be made."""
        listener: Listener | None = None
        async with trio.open_nursery() as stores:
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._stores = stores
                    listener = self._env.net.listen(self._path, 0, self._connected)
                    task_status.started()
                    await self._expire()
            finally:
                self._nursery = None
                if listener is not None:
                    listener.close()
                for connection in list(self._connections):
                    connection.close()
                # On a full disk they stay until the store is closed.
                with trio.move_on_after(END_SECONDS_MAX, shield=True):
                    for session in list(self._sessions.values()):
                        await self.end(session)
                stores.cancel_scope.cancel()

    def _connected(self, transport: Transport) -> _Connection:
        connection = _Connection(self, transport, self._chunks)
        self._connections.add(connection)
        return connection

    # -- sessions --------------------------------------------------------------------------------

    async def _expire(self) -> None:
        last = trio.current_time()
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = trio.current_time()
            stall, last = now - last - LOOK_SECONDS, now
            for session in list(self._sessions.values()):
                if stall > STALL_SECONDS:
                    session.heard_at += stall  # what it sent meanwhile is still to be read
                if now - session.heard_at > session.timeout_s and not session.is_ending:
                    logger.info("metadata_session_expired", kv(client=session.name))
                    self.spawn(self.end, session)

    async def end_client(self, name: str) -> None:
        """Ends the sessions of the client that called itself so."""
        for session in [each for each in self._sessions.values() if each.name == name]:
            await self.end(session)

    async def open(self, timeout_ms: int, name: str) -> _Session:
        """MetadataUnavailableError if there are too many."""
        if len(self._sessions) + self._opening_count >= self.limits.sessions_max:
            raise MetadataUnavailableError(
                self._path, f"there are {self.limits.sessions_max} sessions, and no more may be"
            )
        self._opening_count += 1
        try:
            store, scope = self._open_session(), trio.CancelScope()
            await self._stores.start(_run_store, store, scope)
        finally:
            self._opening_count -= 1
        self._last_number += 1
        session = _Session(
            self._last_number,
            self._env.rng.randbytes(SECRET_SIZE_BYTES),
            min(max(timeout_ms, SESSION_TIMEOUT_MIN_MS), SESSION_TIMEOUT_MAX_MS),
            name,
            store,
            scope,
        )
        self._sessions[session.number] = session
        return session

    def find(self, number: int, secret: bytes) -> _Session | None:
        session = self._sessions.get(number)
        if session is None or session.secret != secret or session.is_ending:
            return None
        return session

    async def end(self, session: _Session) -> None:
        if session.is_ending:
            await session.ended.wait()
            return
        session.is_ending = True
        try:
            await session.store.aclose()
        finally:
            session.scope.cancel()
            self._sessions.pop(session.number, None)
            session.ended.set()
            if session.connection is not None and not session.connection.has_said_goodbye:
                session.connection.close()

    # -- for connections -------------------------------------------------------------------------

    def spawn(self, function: Callable[..., object], *arguments: object) -> bool:
        """False if the server ends."""
        nursery = self._nursery
        if nursery is None or nursery.cancel_scope.cancel_called:
            return False
        nursery.start_soon(function, *arguments)  # type: ignore[arg-type]
        return True

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection:
    """runtime.net.Connection of one client."""

    def __init__(self, server: MetadataServer, transport: Transport, chunks: ReceiveChunks) -> None:
        self._server = server
        self._transport = transport
        self._receiver = FrameReceiver(chunks, FRAME_SIZE_MAX_BYTES, self._on_frame)
        self._session: _Session | None = None
        self._is_greeting = False
        self._is_closed = False
        self._is_paused = False
        self._watches: dict[int, tuple[Watch, trio.CancelScope]] = {}
        self._calls = 0
        self._call_bytes = 0
        #: CLOSE was asked for: its answer is still to be sent.
        self.has_said_goodbye = False

    # -- the driver's side -----------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        if self._session is not None:
            self._session.heard_at = trio.current_time()
        try:
            self._receiver.received(count)
        except ValueError as error:
            self._refuse(error)

    def drained(self) -> None:
        self._maybe_resume()

    def closed(self) -> None:
        self._is_closed = True
        for watch, scope in self._watches.values():
            watch.close()
            scope.cancel()
        self._watches.clear()
        session = self._session
        if session is not None and session.connection is self:
            session.connection = None
        self._server.closed(self)

    def close(self) -> None:
        self._transport.close()

    def _refuse(self, error: Exception) -> None:
        logger.warning("bad_metadata_request", kv(peer=self._transport.peer, error=error))
        self._is_closed = True
        self.close()

    # -- frames ----------------------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        message = decode(frame)
        if self._session is None:
            if message.kind is not Kind.HELLO or self._is_greeting:
                raise FrameError(f"{message.kind.name} comes before the session")
            self._greet(message)
        elif message.kind is Kind.PING:
            self.send(encode(Kind.PING, message.number))
        elif message.kind is Kind.WATCH:
            self._watch(message)
        elif message.kind is Kind.UNWATCH:
            self._unwatch(message.number)
        elif message.kind in _CALLS:
            self._start_call(message, len(frame))
        else:
            raise FrameError(f"{message.kind.name} is no request, or comes too late")
        limits = self._server.limits
        if (
            self._is_greeting
            or self._calls >= limits.calls_max
            or self._call_bytes >= limits.call_bytes_max
            or self._transport.unsent_bytes >= limits.unsent_bytes_max
        ):
            self._is_paused = True
            self._transport.pause_reading()
            return False
        return not self._is_closed

    def _maybe_resume(self) -> None:
        limits = self._server.limits
        if (
            not self._is_paused
            or self._is_closed
            or self._is_greeting
            or self._calls > limits.calls_max // 2
            or self._call_bytes > limits.call_bytes_max // 2
            or self._transport.unsent_bytes > limits.unsent_bytes_max // 2
        ):
            return
        self._is_paused = False
        try:
            self._receiver.go_on()
        except ValueError as error:
            self._refuse(error)
        if not self._is_paused and not self._is_closed:
            self._transport.resume_reading()

    def send(self, frame: bytes) -> None:
        self._transport.write([frame])

    # -- the session -----------------------------------------------------------------------------

    def _greet(self, message: Message) -> None:
        match message.fields:
            case [int(version), int(number), bytes(secret), int(timeout_ms), str(name)]:
                pass
            case _:
                raise FrameError("a HELLO with other fields than it has")
        if version != PROTOCOL_VERSION:
            raise FrameError(f"the client speaks version {version}, not {PROTOCOL_VERSION}")
        found = self._server.find(number, secret)
        if found is not None:
            self._attach(found, message.number, is_resumed=True)
            return
        self._is_greeting = self._server.spawn(self._open, message.number, timeout_ms, name[:200])
        if not self._is_greeting:
            self.close()

    async def _open(self, number: int, timeout_ms: int, name: str) -> None:
        try:
            session = await self._server.open(timeout_ms, name)
        except MetadataError as error:
            self.send(encode_error(number, error))
            self.close()
            return
        self._is_greeting = False
        # If the connection is gone meanwhile the session ends in its time.
        if not self._is_closed:
            self._attach(session, number, is_resumed=False)
            self._maybe_resume()

    def _attach(self, session: _Session, number: int, *, is_resumed: bool) -> None:
        if session.connection is not None:
            session.connection.close()
        session.connection = self
        session.heard_at = trio.current_time()
        self._session = session
        self.send(
            encode(
                Kind.HELLO,
                number,
                session.number,
                session.secret,
                int(session.timeout_s * 1000),
                int(is_resumed),
            )
        )

    # -- watches ---------------------------------------------------------------------------------

    def _watch(self, message: Message) -> None:
        match message.fields:
            case [str(path), int(is_children)]:
                pass
            case _:
                raise FrameError("a WATCH without a path")
        if message.number in self._watches or len(self._watches) >= self._server.limits.watches_max:
            raise FrameError(f"watch {message.number}: there is one, or there are too many")
        assert self._session is not None
        store = self._session.store
        watch = store.watch_children(path) if is_children else store.watch(path)
        scope = trio.CancelScope()
        self._watches[message.number] = watch, scope
        if not self._server.spawn(self._tell, message.number, watch, scope):
            self.close()

    async def _tell(self, number: int, watch: Watch, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await watch.changed()
                self.send(encode(Kind.EVENT, number))

    def _unwatch(self, number: int) -> None:
        found = self._watches.pop(number, None)
        if found is not None:
            found[0].close()
            found[1].cancel()

    # -- calls -----------------------------------------------------------------------------------

    def _start_call(self, message: Message, size_bytes: int) -> None:
        self.has_said_goodbye |= message.kind is Kind.CLOSE
        self._calls += 1
        self._call_bytes += size_bytes
        if not self._server.spawn(self._call, message, size_bytes):
            self.close()

    async def _call(self, message: Message, size_bytes: int) -> None:
        assert self._session is not None
        try:
            if message.kind is Kind.CLOSE:
                await self._server.end(self._session)
                fields: list[Field] = []
            else:
                fields = await run_call(self._session.store, message)
            answer = encode_answer(message, fields)
        except MetadataError as error:
            answer = encode_error(message.number, error)
        except ValueError as error:  # the client checks what it sends
            self._refuse(error)
            return
        finally:
            self._calls -= 1
            self._call_bytes -= size_bytes
        self.send(answer)
        if message.kind is Kind.CLOSE:
            self.close()
        self._maybe_resume()


_CALLS = frozenset(
    {
        Kind.CLOSE,
        Kind.GET_MANY,
        Kind.EXISTS,
        Kind.SYNC,
        Kind.TAKE_NUMBERS,
        Kind.CREATE,
        Kind.PUT,
        Kind.DELETE,
        Kind.CHILDREN,
        Kind.MULTI,
        Kind.OWNS,
    }
)

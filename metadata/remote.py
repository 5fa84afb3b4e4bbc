"""MetadataStore of another process of this machine, reached by a Unix socket (metadata/served.py).

`metadataServiceUri=quire+unix:///data/metadata.sock`. The session outlives a lost connection by its
time-out. Calls made while there is no connection wait for one; reads that were under way are sent
again; a change whose answer was lost raises MetadataUnknownOutcomeError, and one that was never
sent MetadataUnavailableError. Between two living processes a Unix socket does not break, so that
nothing more is done about it. After a new connection every watch fires: what happened meanwhile is
not known.

One task (`run`) connects and shows that we live; answers are handled as they are read.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from metadata.remote_frames import (
    DATA_SIZE_MAX_BYTES,
    FRAME_SIZE_MAX_BYTES,
    PROTOCOL_VERSION,
    SECRET_SIZE_BYTES,
    Field,
    FrameError,
    Kind,
    Message,
    decode,
    encode,
    op_field,
    parse_error,
)
from metadata.rules import ROOT, check_path
from metadata.store import (
    ANY_VERSION,
    NUMBERS_MAX,
    CreateOp,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    NoNodeError,
    PutOp,
    SessionState,
)
from metadata.watches import Listeners, LocalWatch
from runtime.logs import kv
from runtime.receive import FrameReceiver, ReceiveChunks
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metadata.rules import Change
    from metadata.store import Op
    from runtime.env import Env
    from runtime.net import Transport

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.05
#: How often in a session's time-out the server hears of us.
PINGS_PER_TIMEOUT = 4
PATHS_PER_CALL_MAX = 500
_READS = frozenset({Kind.GET_MANY, Kind.EXISTS, Kind.SYNC, Kind.CHILDREN, Kind.OWNS})


@dataclass(slots=True, frozen=True)
class RemoteOptions:
    path: str
    session_timeout_ms: int = 10_000
    #: How long a call waits for a connection and its answer.
    operation_timeout_ms: int = 20_000
    calls_max: int = 1_000
    #: What the server's log calls us, and who may say that we died.
    name: str = ""


class _Call:
    __slots__ = ("answer", "done", "error", "frame", "is_sent", "kind", "path")

    def __init__(self, kind: Kind, path: str, frame: bytes) -> None:
        self.kind = kind
        self.path = path
        self.frame = frame
        self.is_sent = False
        self.done = trio.Event()
        self.answer: list[Field] = []
        self.error: MetadataError | None = None


class RemoteStore:
    """Implements `metadata.store.MetadataStore`."""

    def __init__(self, env: Env, options: RemoteOptions) -> None:
        self._env = env
        self._options = options
        self._chunks = ReceiveChunks()
        self._listeners = Listeners()
        self.state = SessionState.SUSPENDED
        self._session_id = 0
        self._secret = bytes(SECRET_SIZE_BYTES)
        self._connection: _Connection | None = None
        self._lost = trio.Event()
        self._calls: dict[int, _Call] = {}
        self._watches: dict[int, LocalWatch] = {}
        self._watch_frames: dict[int, bytes] = {}
        self._last_number = 0
        self._slots = trio.Semaphore(options.calls_max)
        self._is_closing = False
        self._closing = trio.Event()
        self._finished: trio.Event | None = None

    # -- the session -----------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def _set_state(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            self._listeners.tell(state)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connects, serves until `aclose` or cancellation. MetadataUnavailableError if there is no
        session within the operation timeout; FrameError if the server speaks otherwise."""
        assert self._finished is None, "run() was called before"
        self._finished = trio.Event()
        try:
            with trio.move_on_after(self._options.operation_timeout_ms / 1000) as scope:
                await self._connect()
            if scope.cancelled_caught:
                raise MetadataUnavailableError(self._options.path, "no metadata is served there")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_connected)
                nursery.start_soon(self._ping)
                task_status.started()
                await self._closing.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._is_closing = True
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._fail_calls(MetadataClosedError, "the metadata store is closed")
            self._fire_watches()
            self._set_state(SessionState.LOST)
            self._finished.set()

    async def _connect(self) -> None:
        """Until there is a session."""
        while True:
            try:
                connection = await self._env.net.connect(
                    self._options.path, 0, partial(_Connection, self, self._chunks)
                )
            except OSError as error:
                logger.debug("metadata_unreachable", kv(path=self._options.path, error=error))
            else:
                assert isinstance(connection, _Connection)
                connection.send(self.hello())
                await connection.greeted.wait()
                if connection is self._connection:
                    return
            await trio.sleep(RECONNECT_SECONDS)

    async def _keep_connected(self) -> None:
        while True:
            await self._lost.wait()
            self._lost = trio.Event()
            logger.warning("metadata_connection_lost", kv(path=self._options.path))
            await self._connect()

    async def _ping(self) -> None:
        """A server that does not answer is as good as gone: its connection is dropped."""
        timeout = self._options.session_timeout_ms / 1000
        interval = timeout / PINGS_PER_TIMEOUT
        last = trio.current_time()
        while True:
            await trio.sleep(interval)
            stall, last = trio.current_time() - last - interval, trio.current_time()
            connection = self._connection
            if connection is None:
                continue
            if stall > interval:
                connection.heard_at += stall  # it was us who did not run
            if trio.current_time() - connection.heard_at > timeout:
                connection.close()
            else:
                connection.send(encode(Kind.PING, 0))

    def hello(self) -> bytes:
        return encode(
            Kind.HELLO,
            0,
            PROTOCOL_VERSION,
            self._session_id,
            self._secret,
            self._options.session_timeout_ms,
            self._options.name,
        )

    def greeted(self, connection: _Connection, message: Message) -> None:
        """The server's HELLO. FrameError."""
        match message.fields:
            case [int(number), bytes(secret), int(_), int(is_resumed)]:
                pass
            case _:
                raise FrameError("a HELLO with other fields than it has")
        had_session = self._session_id != 0
        self._session_id, self._secret = number, secret
        self._connection = connection
        for frame in self._watch_frames.values():
            connection.send(frame)
        if had_session:
            if not is_resumed:
                self._set_state(SessionState.LOST)
            self._fire_watches()
        for call in self._calls.values():
            self._send(call)
        self._set_state(SessionState.CONNECTED)

    def lost(self, connection: _Connection) -> None:
        if connection is not self._connection or self._is_closing:
            return
        self._connection = None
        self._lost.set()
        for number, call in list(self._calls.items()):
            if call.is_sent and call.kind not in _READS:
                del self._calls[number]
                call.error = MetadataUnknownOutcomeError(call.path, "the connection was lost")
                call.done.set()
        self._set_state(SessionState.SUSPENDED)

    async def aclose(self) -> None:
        """Ends the session: its ephemeral nodes are gone on return, if the server answers."""
        if self._finished is None or self._is_closing:
            self._is_closing = True
        else:
            if self._connection is not None:
                try:
                    await self._call(Kind.CLOSE, ROOT)
                except MetadataError as error:
                    logger.warning("metadata_session_not_closed", kv(error=error))
            self._is_closing = True
            self._closing.set()
        if self._finished is not None:
            await self._finished.wait()

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, message: Message) -> None:
        """FrameError."""
        if message.kind is Kind.EVENT:
            watch = self._watches.get(message.number)
            if watch is not None:
                watch.fire()
            return
        if message.kind is Kind.PING:
            return
        call = self._calls.pop(message.number, None)
        if call is None:
            return  # who asked has left
        if message.kind is Kind.ERROR:
            call.error = parse_error(message.fields)
        elif message.kind is not call.kind:
            raise FrameError(f"{message.kind.name} is no answer to {call.kind.name}")
        elif message.kind is Kind.CLOSE:
            # The server closes the connection next, which is no loss then.
            self._is_closing = True
        call.answer = message.fields
        call.done.set()

    def _fail_calls(self, kind: type[MetadataUnavailableError], words: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.error = kind(call.path, words)
            if call.is_sent and call.kind not in _READS:
                call.error = MetadataUnknownOutcomeError(call.path, words)
            call.done.set()

    async def _call(self, kind: Kind, path: str, *fields: Field) -> list[Field]:
        """The answer's fields. MetadataError."""
        async with self._slots:
            if self._is_closing or self._finished is None:
                if self._is_closing:
                    raise MetadataClosedError(path, "the metadata store is closed")
                raise MetadataUnavailableError(path, "not running: start run() first")
            number = self._next_number()
            try:
                frame = encode(kind, number, *fields)
            except FrameError as error:
                raise MetadataError(path, str(error)) from error
            call = self._calls[number] = _Call(kind, path, frame)
            self._send(call)
            try:
                with trio.move_on_after(self._options.operation_timeout_ms / 1000):
                    await call.done.wait()
            finally:
                self._calls.pop(number, None)
        if call.error is not None:
            raise call.error
        if not call.done.is_set():
            words = f"no answer within {self._options.operation_timeout_ms} ms"
            if call.is_sent and kind not in _READS:
                raise MetadataUnknownOutcomeError(path, words)
            raise MetadataUnavailableError(path, words)
        return call.answer

    def _send(self, call: _Call) -> None:
        if self._connection is not None:
            call.is_sent = True
            self._connection.send(call.frame)

    def _next_number(self) -> int:
        self._last_number = (self._last_number + 1) % (1 << 32)
        return self._last_number

    # -- reads -----------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        node = (await self.get_many([path]))[0]
        if node is None:
            raise NoNodeError(path, "no such node")
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        found: list[Node | None] = []
        while len(found) < len(paths):
            asked = list[Field](paths[len(found) : len(found) + PATHS_PER_CALL_MAX])
            match await self._call(Kind.GET_MANY, paths[len(found)], asked):
                case [list(fields)] if fields and len(fields) % 2 == 0:
                    found += map(_node, fields[::2], fields[1::2])
                case _:
                    raise FrameError("nodes without data and version")
        if not paths:
            await trio.lowlevel.checkpoint()
        return found

    async def exists(self, path: str) -> bool:
        check_path(path)
        return bool(_number(await self._call(Kind.EXISTS, path, path)))

    async def sync(self, path: str) -> None:
        """The server's own; a socket in between makes nothing older."""
        check_path(path)
        await self._call(Kind.SYNC, path, path)

    async def owns(self, path: str) -> bool:
        check_path(path)
        return bool(_number(await self._call(Kind.OWNS, path, path)))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        match await self._call(Kind.CHILDREN, path, path):
            case [list(names)]:
                return [str(name) for name in names]
        raise FrameError("children without names")

    # -- changes ---------------------------------------------------------------------------------

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        check_path(path + "0" if sequence else path)
        _check_size(path, data)
        flags = int(ephemeral), int(sequence), int(make_parents)
        answer = await self._call(Kind.CREATE, path, path, bytes(data), *flags)
        match answer:
            case [str(made)]:
                return made
        raise FrameError("a node made without a path")

    async def take_numbers(self, path: str, count: int) -> list[int]:
        assert 0 < count <= NUMBERS_MAX
        check_path(path + "0")
        match await self._call(Kind.TAKE_NUMBERS, path, path, count):
            case [list(numbers)] if len(numbers) == count:
                return [_number([number]) for number in numbers]
        raise FrameError("other numbers than were asked for")

    async def put(self, path: str, data: bytes, version: int) -> int:
        check_path(path)
        _check_size(path, data)
        return _number(await self._call(Kind.PUT, path, path, bytes(data), version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._call(Kind.DELETE, path, path, version)

    async def multi(self, ops: Sequence[Op]) -> None:
        for op in ops:
            check_path(op.path)
            if isinstance(op, CreateOp | PutOp):
                _check_size(op.path, op.data)
        path = ops[0].path if ops else ROOT
        await self._call(Kind.MULTI, path, [op_field(op) for op in ops])

    # -- watches ---------------------------------------------------------------------------------

    def watch(self, path: str) -> LocalWatch:
        return self._add_watch(("node", path))

    def watch_children(self, path: str) -> LocalWatch:
        return self._add_watch(("children", path))

    def _add_watch(self, key: Change) -> LocalWatch:
        check_path(key[1])
        number = self._next_number()
        watch = self._watches[number] = LocalWatch(self, key, number)
        frame = encode(Kind.WATCH, number, key[1], int(key[0] == "children"))
        self._watch_frames[number] = frame
        if self._connection is not None:
            self._connection.send(frame)
        return watch

    def remove(self, _key: Change, watch: LocalWatch) -> None:
        """For LocalWatch.close. Fine if it is gone already."""
        if self._watches.pop(watch.owner, None) is not None:
            del self._watch_frames[watch.owner]
            if self._connection is not None:
                self._connection.send(encode(Kind.UNWATCH, watch.owner))

    def _fire_watches(self) -> None:
        for watch in self._watches.values():
            watch.fire()


class _Connection:
    """runtime.net.Connection to the server."""

    def __init__(self, store: RemoteStore, chunks: ReceiveChunks, transport: Transport) -> None:
        self._store = store
        self._transport = transport
        self._receiver = FrameReceiver(chunks, FRAME_SIZE_MAX_BYTES, self._on_frame)
        self._is_greeted = False
        self.greeted = trio.Event()
        self.heard_at = trio.current_time()

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        self.heard_at = trio.current_time()
        try:
            self._receiver.received(count)
        except ValueError as error:
            logger.warning("bad_metadata_answer", kv(error=error))
            self.close()

    def _on_frame(self, frame: memoryview) -> bool:
        message = decode(frame)
        if self._is_greeted:
            self._store.answered(message)
        elif message.kind is Kind.ERROR:
            logger.warning("metadata_session_refused", kv(error=parse_error(message.fields)))
            self.close()
        elif message.kind is not Kind.HELLO:
            raise FrameError(f"{message.kind.name} comes before the session")
        else:
            self._is_greeted = True
            self._store.greeted(self, message)
            self.greeted.set()
        return True

    def drained(self) -> None:
        return

    def closed(self) -> None:
        self.greeted.set()
        self._store.lost(self)

    def send(self, frame: bytes) -> None:
        self._transport.write([frame])

    def close(self) -> None:
        self._transport.close()


def _check_size(path: str, data: bytes) -> None:
    if len(data) > DATA_SIZE_MAX_BYTES:
        raise MetadataError(path, f"{len(data)} bytes are more than {DATA_SIZE_MAX_BYTES}")


def _number(fields: list[Field]) -> int:
    match fields:
        case [int(number)]:
            return number
    raise FrameError("an answer without its number")


def _node(data: Field, version: Field) -> Node | None:
    if data is None:
        return None
    if not isinstance(data, bytes) or not isinstance(version, int):
        raise FrameError("a node without data and version")
    return Node(data, version)

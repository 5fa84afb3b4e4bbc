"""A ZooKeeper session on trio: requests and their answers, lost connections, lost sessions.

kazoo keeps the connection on its thread; all state here belongs to the loop and is changed by what
comes out of the `Inbox`, in order:

    CONNECTED --connection lost--> SUSPENDED --came back--> CONNECTED (same session)
                                       `-----expired------> LOST --> CONNECTED (a new session)

When the connection is lost, every request that is not answered fails at once with `ReplyLostError`,
which carries the highest transaction id seen till then: `zookeeper_outcome` decides by it. Requests
are only given to kazoo while connected; till then they wait, up to the operation's deadline. A
request keeps its slot until kazoo has answered it, even if its caller has gone, so that what is
outstanding is bounded.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import (  # type: ignore[import-untyped]
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)
from kazoo.protocol.states import KazooState, KeeperState  # type: ignore[import-untyped]
from kazoo.retry import KazooRetry  # type: ignore[import-untyped]
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE  # type: ignore[import-untyped]

from metadata.store import MetadataClosedError, MetadataUnavailableError, SessionState
from metadata.zookeeper_handler import Handler, Inbox, Result
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metadata.zookeeper_tls import ZooKeeperTls

logger = logging.getLogger(__name__)

#: How long `close` waits for ZooKeeper to say that the session is closed.
_CLOSE_TIMEOUT_S = 3.0
_RECONNECT_DELAY_S = 0.05
_RECONNECT_DELAY_MAX_S = 1.0
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
#: ZooKeeper's errors that do not tell whether the request was carried out.
_LOSSES = (
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


@dataclass(slots=True, frozen=True)
class ZooKeeperOptions:
    """Where ZooKeeper is, and how to talk to it. `zkX` are BookKeeper's names of the settings."""

    #: «host:port,host:port» (zkServers)
    hosts: str
    #: All paths are below this one, which is made if it is missing; "" for none.
    chroot: str = ""
    #: zkTimeout; the server may bound it (minSessionTimeout, maxSessionTimeout)
    session_timeout_ms: int = 10_000
    #: How long an operation waits for a connection. What was sent is answered, or known to be lost,
    #: within the session's timeout besides.
    operation_timeout_ms: int = 10_000
    #: zkEnableSecurity: nodes may be used by their creator only; needs `digest`.
    creator_all_acl: bool = False
    #: «user:password» of ZooKeeper's digest scheme
    digest: str | None = None
    tls: ZooKeeperTls | None = None
    #: Requests that may wait for their answers at once; more wait for a slot.
    request_count_max: int = 1_000

    def __post_init__(self) -> None:
        if self.creator_all_acl and self.digest is None:
            raise ValueError("creator_all_acl (zkEnableSecurity) needs digest credentials")
        if self.chroot and (not self.chroot.startswith("/") or self.chroot.endswith("/")):
            raise ValueError(f"chroot {self.chroot!r}: expected «/path» without a slash at its end")

    @property
    def acl(self) -> list[Any]:
        return list(CREATOR_ALL_ACL if self.creator_all_acl else OPEN_ACL_UNSAFE)


class ReplyLostError(Exception):
    """The connection ended before the answer came. `zxid` is the highest transaction id that it
    told of, `session_id` the session that the request was for."""

    def __init__(self, zxid: int, session_id: int) -> None:
        super().__init__(f"reply lost after zxid {zxid:#x}")
        self.zxid = zxid
        self.session_id = session_id


class Request:
    """What was given to kazoo. `told` is called once, on the loop, with `value` or `error` set:
    kazoo's exception, or ReplyLostError. `connection_number` is the connection it was sent on."""

    __slots__ = (
        "_told",
        "connection_number",
        "error",
        "has_slot",
        "session_id",
        "settled",
        "value",
    )

    def __init__(self, told: Callable[[], object]) -> None:
        self._told = told
        self.connection_number = 0
        self.session_id = 0
        self.settled = False
        self.has_slot = False
        self.value: Any = None
        self.error: Exception | None = None

    def settle(self, value: object, error: Exception | None) -> None:
        if not self.settled:
            self.settled = True
            self.value, self.error = value, error
            self._told()


class Session:
    """`listener(state)` is called on the loop, after the session's own state was changed and before
    any waiting operation goes on."""

    def __init__(self, options: ZooKeeperOptions, listener: Callable[[SessionState], None]) -> None:
        self.options = options
        self.state = SessionState.SUSPENDED
        self.session_id = 0
        self.closed = False
        self._connection_number = 0
        #: Highest transaction id of the sessions before: kazoo starts each one with 0.
        self._zxid_seen = 0
        self._listener = listener
        self._inbox: Inbox | None = None
        self._client: Any = None
        #: All that kazoo has not answered.
        self._requests: set[Request] = set()
        self._slots = trio.Semaphore(options.request_count_max)
        self._connected = trio.Event()
        self._thread_ended = trio.Event()
        self._refused = False

    # -- life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins to connect. OSError for TLS files that cannot be used."""
        options = self.options
        tls = None if options.tls is None else options.tls.context()
        inbox = Inbox(trio.lowlevel.current_trio_token())
        # A host that does not answer must leave time for another try, and for the others.
        connect_timeout_s = options.session_timeout_ms / 2_000 / len(options.hosts.split(","))
        handler = Handler(
            inbox,
            tls,
            lambda error: inbox.put(partial(self._ended, inbox, error)),
            connect_timeout_s,
        )
        client = KazooClient(
            hosts=options.hosts,
            timeout=options.session_timeout_ms / 1000,
            handler=handler,
            default_acl=options.acl,
            auth_data=[] if options.digest is None else [("digest", options.digest)],
            use_ssl=tls is not None,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RECONNECT_DELAY_S,
                max_delay=_RECONNECT_DELAY_MAX_S,
                sleep_func=handler.sleep_func,
            ),
            logger=logger.getChild("kazoo"),
        )
        client.add_listener(partial(_on_state, client, partial(self._put_state, inbox)))
        self._inbox, self._client = inbox, client
        self._thread_ended = trio.Event()
        client.start_async()

    async def wait_connected(self, deadline: float) -> None:
        """MetadataUnavailableError at the deadline."""
        await self._ready(self.options.chroot or "/", deadline)
        self._slots.release()

    async def serve(self) -> None:
        """Begins anew when kazoo's thread has ended, until `close`. MetadataUnavailableError if
        ZooKeeper refuses the credentials."""
        while True:
            await self._thread_ended.wait()
            if self.closed:
                return
            self._check_usable(self.options.hosts)
            await self._stop_client()
            await trio.sleep(_RECONNECT_DELAY_MAX_S)
            if not self.closed:
                self.open()

    async def close(self) -> None:
        """Ends the session: its ephemeral nodes are deleted. Bounded: if ZooKeeper does not answer,
        they go when the session times out."""
        if self.closed:
            return
        self.closed = True
        await self._stop_client()
        self._inbox = None
        self._set_state(SessionState.LOST, 0)
        # Waiting operations find `closed`.
        self._connected.set()
        self._thread_ended.set()

    async def _stop_client(self) -> None:
        client = self._client
        if client is None:
            return

        def stop() -> None:
            client.stop()
            client.close()

        with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
            await trio.to_thread.run_sync(stop, abandon_on_cancel=True)
        if scope.cancelled_caught:
            logger.warning("zookeeper session not closed within %s s", _CLOSE_TIMEOUT_S)

    # -- requests --------------------------------------------------------------------------------

    async def ask(
        self,
        path: str,
        deadline: float,
        send: Callable[[Any], Result],
    ) -> Any:  # noqa: ANN401
        """kazoo's answer. `send(client)` makes the request; it is called only while connected.
        Raises kazoo's exceptions, ReplyLostError, MetadataUnavailableError (nothing was sent)."""
        await self._ready(path, deadline)
        event = trio.Event()
        request = Request(event.set)
        request.has_slot = True
        self.send(request, send)
        await event.wait()
        if request.error is not None:
            raise request.error
        return request.value

    async def ask_many(
        self, path: str, deadline: float, sends: Sequence[Callable[[Any], Result]]
    ) -> list[Request]:
        """All at once, in order; the requests with what became of each. MetadataUnavailableError as
        `ask`."""
        event = trio.Event()
        left = len(sends)

        def told() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                event.set()

        requests = []
        for send in sends:
            await self._ready(path, deadline)
            request = Request(told)
            request.has_slot = True
            requests.append(request)
            self.send(request, send)
        if requests:
            await event.wait()
        return requests

    async def _ready(self, path: str, deadline: float) -> None:
        """Takes a slot, and returns while connected. MetadataUnavailableError at the deadline."""
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_at(deadline) as scope:
                await self._slots.acquire()
            if scope.cancelled_caught:
                raise self._unavailable(path) from None
        try:
            while self.closed or self.state is not SessionState.CONNECTED:
                self._check_usable(path)
                with trio.move_on_at(deadline) as scope:
                    await self._connected.wait()
                if scope.cancelled_caught:
                    raise self._unavailable(path)
        except BaseException:
            self._slots.release()
            raise

    def _check_usable(self, path: str) -> None:
        if self._refused:
            raise MetadataUnavailableError(path, "ZooKeeper refuses the login")
        if self.closed:
            raise MetadataClosedError(path, "the metadata store is closed")
        if self._client is None:
            raise MetadataUnavailableError(path, "not running: start run() first")

    def _unavailable(self, path: str) -> MetadataUnavailableError:
        seconds = self.options.operation_timeout_ms / 1000
        where = f"ZooKeeper at {self.options.hosts}"
        return MetadataUnavailableError(path, f"no answer from {where} within {seconds} s")

    def send(self, request: Request, send: Callable[[Any], Result]) -> None:
        """Only while connected. Requests without a slot are the store's own (its watches)."""
        assert self.state is SessionState.CONNECTED
        assert self._inbox is not None
        request.session_id = self.session_id
        request.connection_number = self._connection_number
        self._requests.add(request)
        put = partial(self._put_answer, self._inbox, request)
        send(self._client).rawlink(partial(_on_result, self._client, put))

    # -- what comes out of the inbox -------------------------------------------------------------

    def _put_answer(self, inbox: Inbox, request: Request, result: Result, zxid: int) -> None:
        inbox.put(partial(self._answer, request, result, zxid))

    def _answer(self, request: Request, result: Result, zxid: int) -> None:
        self._requests.discard(request)
        self._free_slot(request)
        error = result.exception
        is_cut = isinstance(error, (ConnectionLoss, SessionExpiredError))
        if is_cut and request.connection_number == self._connection_number:
            # kazoo fails the requests first and tells of the state afterwards: what is asked in
            # between would be failed as well, again and again.
            self._set_state(SessionState.SUSPENDED, zxid)
        # What ZooKeeper did not say itself (kazoo cannot read the reply) tells nothing either.
        if error is not None and (
            isinstance(error, _LOSSES) or not isinstance(error, ZookeeperError)
        ):
            error = self._lost(request, zxid)
        request.settle(result.value, error)

    def _lost(self, request: Request, zxid: int) -> ReplyLostError:
        self._zxid_seen = max(self._zxid_seen, zxid)
        return ReplyLostError(self._zxid_seen, request.session_id)

    def _free_slot(self, request: Request) -> None:
        if request.has_slot:
            request.has_slot = False
            self._slots.release()

    def _put_state(self, inbox: Inbox, state: str, session_id: int, zxid: int, auth: bool) -> None:
        inbox.put(partial(self._state_told, inbox, _STATES[state], session_id, zxid, auth))

    def _state_told(
        self, inbox: Inbox, state: SessionState, session_id: int, zxid: int, refused: bool
    ) -> None:
        if inbox is not self._inbox:
            return
        self._refused = self._refused or refused
        self._zxid_seen = max(self._zxid_seen, zxid)
        if state is SessionState.CONNECTED:
            self.session_id = session_id
            self._connection_number += 1
        self._set_state(state, zxid)
        if self._refused:
            # Waiting operations find that.
            self._connected.set()

    def _set_state(self, state: SessionState, zxid: int) -> None:
        if state is self.state and not self._requests:
            return
        if state is SessionState.SUSPENDED and self.state is SessionState.LOST:
            return
        logger.info("zookeeper state=%s session=%#x", state.name, self.session_id)
        self.state = state
        # There are none unless the connection was lost. kazoo answers them too, but can forget one
        # that is asked while it drops the others. One that is carried out all the same (on the new
        # connection) comes before all that is asked from now on.
        requests, self._requests = self._requests, set()
        for request in requests:
            self._free_slot(request)
            request.settle(None, self._lost(request, zxid))
        self._listener(state)
        if state is SessionState.CONNECTED:
            self._connected.set()
        elif self._connected.is_set() and not self.closed:
            self._connected = trio.Event()

    def _ended(self, inbox: Inbox, error: Exception | None) -> None:
        if inbox is self._inbox:
            if not self.closed:
                logger.warning("zookeeper thread ended, error=%r", error)
            self._thread_ended.set()


# -- on kazoo's thread -------------------------------------------------------------------------


def _on_result(
    client: Any,  # noqa: ANN401
    put: Callable[[Result, int], None],
    result: Result,
) -> None:
    # The id is taken here: kazoo forgets it when the session is lost.
    put(result, client.last_zxid if result.exception is not None else 0)


def _on_state(
    client: Any,  # noqa: ANN401
    put: Callable[[str, int, int, bool], None],
    state: str,
) -> None:
    session = client.client_id
    refused = client.client_state == KeeperState.AUTH_FAILED
    put(state, session[0] if session is not None else 0, client.last_zxid, refused)

"""What is said on a new connection before anything else: START_TLS and the handshake, then AUTH,
then the question which bookie this is.

START_TLS and its answer are v3's, whatever the channel speaks afterwards: a bookie tells the
version of what follows by its first frame (PerChannelBookieClient.java, initiateTLS). AUTH is in
the channel's version already, and goes encrypted if anything does.

A bookie without authentication answers AUTH with AuthDisabledPlugin, and is taken as it is, like
Java's client does. One that has it proves with its last answer that it knows the password as well.

Which bookie it is: addresses are given to others (containers, DHCP), and what another bookie
answers about a ledger, «no such entry» above all, must not count as an answer of the one that was
meant. So each connection asks, by an AUTH with a plugin name of ours. Our bookies answer with their
id. A Java bookie answers AuthDisabledPlugin to any AUTH of a connection that it serves
(BookieRequestProcessor.java): it proves nothing, and is what the metadata say of its address.

Owner: the event loop's thread.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING

import trio

from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError
from runtime.tls import upgrade
from wire.bookkeeper import v2, v3
from wire.bookkeeper.auth import DISABLED_PLUGIN_NAME, IDENTITY_PLUGIN_NAME
from wire.bookkeeper.errors import WireError
from wire.bookkeeper.frames import Protocol
from wire.bookkeeper.requests import AuthRequest, StartTlsRequest
from wire.bookkeeper.responses import AuthResponse, StartTlsResponse
from wire.bookkeeper.sasl_digest import PLUGIN_NAME, DigestClient, DigestError
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.network.auth import SaslLogin
    from ledger.network.config import NetworkConfig
    from runtime.env import Env, Rng
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from wire.bookkeeper.requests import Request
    from wire.bookkeeper.responses import Response

logger = logging.getLogger(__name__)

#: An answer to START_TLS is some 20 bytes, a step of DIGEST-MD5 some 200, and never 4096.
FRAME_BYTES_MAX = 8192
_CNONCE_BYTES = 24
_IDENTITY = "the question which bookie it is"
_WITH_PASSWORD = "AUTH with the password (is it right?)"


class NotAuthenticatedError(ConnectionError):
    """AUTH came to nothing; the words say why."""


class WrongBookieError(ConnectionError):
    """Another bookie than the one that was meant listens there, or it could not be told."""


class Greeting:
    """runtime.net.Connection until the transport is handed on."""

    def __init__(self, transport: Transport, chunks: ReceiveChunks) -> None:
        self.transport = transport
        self._receiver = FrameReceiver(chunks, FRAME_BYTES_MAX, self._on_frame)
        self._changed = trio.Event()
        self._is_v2 = False
        self._answer: Response | None = None
        self._asked = ""
        self._is_closed = False
        self._is_established = False
        self._problem = ""
        self._count = 0

    async def _ask(self, what: str, request: Request, *, is_v2: bool = False) -> Response:
        """`what`: for errors. ConnectionError."""
        self._asked, self._is_v2 = what, is_v2
        encode = v2.encode_request if is_v2 else v3.encode_request
        self.transport.write(encode(request))
        while (answer := self._taken()) is None:
            await self._wait()
        return answer

    def _taken(self) -> Response | None:
        answer, self._answer = self._answer, None
        return answer

    async def start_tls(self, tls: Tls, server_hostname: str | None) -> None:
        """Then `transport` is the encrypted one, after the handshake. ConnectionError: why not."""
        answer = await self._ask("START_TLS", StartTlsRequest(self._next_id()))
        # A bookie that does not know the request answers with an error.
        if not isinstance(answer, StartTlsResponse) or answer.status is not Status.EOK:
            self.transport.close()
            status = answer.status or Status.EBADREQ
            raise ConnectionError(f"START_TLS was answered {status.name}: it has no TLS")
        self.transport = upgrade(
            self.transport,
            self,
            tls,
            server_side=False,
            server_hostname=server_hostname,
            on_established=self._established,
        )
        while not self._is_established:
            await self._wait()

    async def authenticate(self, login: SaslLogin, protocol: Protocol, rng: Rng) -> None:
        """NotAuthenticatedError if the bookie does not believe us, or we do not believe it."""
        cnonce = base64.b64encode(rng.randbytes(_CNONCE_BYTES))
        digest = DigestClient(login.user, login.password, cnonce)
        is_v2 = protocol is Protocol.V2
        try:
            challenge = await self._auth_step(b"", is_v2)
            if challenge is None:
                logger.info("bookie_without_auth", kv(bookie=self.transport.peer))
                return
            outcome = await self._auth_step(digest.respond(challenge), is_v2)
            if outcome is None:
                raise NotAuthenticatedError("AUTH: it asks for none after the first step")
            digest.check(outcome)
        except DigestError as error:
            raise NotAuthenticatedError(f"AUTH: {error}") from error

    async def _auth_step(self, payload: bytes, is_v2: bool) -> bytes | None:
        """The answer's payload; None from a bookie that asks for no authentication."""
        what = _WITH_PASSWORD if payload else "AUTH"
        request = AuthRequest(PLUGIN_NAME, payload, self._next_id())
        try:
            answer = await self._ask(what, request, is_v2=is_v2)
        except ConnectionError as error:
            raise NotAuthenticatedError(str(error)) from error
        if not isinstance(answer, AuthResponse) or answer.status is not Status.EOK:
            raise NotAuthenticatedError(f"{what}: the answer is {answer.status.name}")
        if answer.plugin_name == DISABLED_PLUGIN_NAME:
            return None
        if answer.plugin_name != PLUGIN_NAME:
            raise NotAuthenticatedError(f"AUTH: it has the plugin {answer.plugin_name[:40]!r}")
        return bytes(answer.payload)

    async def check_identity(self, bookie: str, protocol: Protocol) -> bool:
        """Whether the bookie proved to be `bookie`; false if it does not tell. WrongBookieError if
        it is another one; ConnectionError."""
        request = AuthRequest(IDENTITY_PLUGIN_NAME, b"", self._next_id())
        answer = await self._ask(_IDENTITY, request, is_v2=protocol is Protocol.V2)
        if not isinstance(answer, AuthResponse) or answer.plugin_name != IDENTITY_PLUGIN_NAME:
            return False
        told = bytes(answer.payload)
        if told != bookie.encode():
            raise WrongBookieError(f"bookie {told[:100]!r} listens there, not {bookie}")
        return True

    def _next_id(self) -> int:
        self._count += 1
        return self._count

    def check_end(self) -> None:
        """Before the transport is handed on. ConnectionError if something came unasked."""
        if self._is_closed:
            raise ConnectionError(f"the bookie closed the connection after {self._asked}")
        if self._receiver.held_bytes:
            raise ConnectionError(f"there is more than the answer to {self._asked}")

    @property
    def phase(self) -> str:
        """What an answer is waited for to, for who gives up waiting."""
        return self._asked

    async def _wait(self) -> None:
        if self._is_closed:
            raise ConnectionError(
                self._problem or f"the bookie closed the connection at {self._asked}"
            )
        self._changed = trio.Event()
        await self._changed.wait()

    def _established(self) -> None:
        self._is_established = True
        self._changed.set()

    def _on_frame(self, frame: memoryview) -> bool:
        self._answer = v2.decode_response(frame) if self._is_v2 else v3.decode_response(frame)
        self._changed.set()
        return False

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        try:
            self._receiver.received(count)
        except (FrameTooLargeError, WireError) as error:
            self._problem = f"{self._asked}: {error}"
            self.transport.close()

    def drained(self) -> None:
        return

    def closed(self) -> None:
        self._is_closed = True
        self._changed.set()


async def connect_greeted(
    env: Env,
    address: tuple[str, int],
    chunks: ReceiveChunks,
    protocol: Protocol,
    config: NetworkConfig,
    tls: Tls | None,
    bookie: str,
) -> tuple[Transport, bool]:
    """A connection on which START_TLS (with `tls`) and AUTH (with `config.sasl`) were done, and
    whether the other end proved to be `bookie`; whoever attaches to the transport owns it.
    `protocol` is what is to be spoken. OSError; TimeoutError, which is one, after
    connect_timeout_ms; NotAuthenticatedError and WrongBookieError, which are, too. If this is
    cancelled the connection is closed."""
    made: list[Greeting] = []

    def make(transport: Transport) -> Greeting:
        made.append(Greeting(transport, chunks))
        return made[0]

    done = False
    try:
        with trio.move_on_after(config.connect_timeout_ms / 1000):
            await env.net.connect(*address, make)
            (greeting,) = made
            if tls is not None:
                # Without a check of names none is told: an address is no name (RFC 6066).
                name = address[0] if tls.newest_context.check_hostname else None
                await greeting.start_tls(tls, name)
            if config.sasl is not None:
                await greeting.authenticate(config.sasl, protocol, env.rng)
            greeting.check_end()
            is_proven = await greeting.check_identity(bookie, protocol)
            greeting.check_end()
            done = True
            return greeting.transport, is_proven
    finally:
        if made and not done:
            made[0].transport.close()
    phase = made[0].phase if made else "the connection"
    # Java's bookies leave a wrong password without any answer.
    kind = NotAuthenticatedError if phase == _WITH_PASSWORD else TimeoutError
    raise kind(f"no answer in time to {phase}")

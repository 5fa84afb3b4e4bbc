"""A broker's login at the others (KIP-43): PLAIN or SCRAM, as a user of the listener's module.

The settings are Kafka's: sasl.mechanism.inter.broker.protocol, and of the listener that brokers
meet at `username` and `password` in listener.name.<listener>.<mechanism>.sasl.jaas.config. The
principal at the other side is User:<username>; with an authorizer it needs CLUSTER_ACTION, or is in
super.users.

The password is not in any message of an error, nor in a `repr`.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from broker.cluster.peer_login import LoginRefusedError
from broker.security.sasl.composition import JAAS_SETTING, MECHANISMS_SETTING
from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.plain import PLAIN
from broker.security.sasl.scram.client_core import Salting, ScramClient
from broker.security.sasl.scram.hashes import BY_NAME
from runtime.config import ConfigError
from runtime.jaas import parse_jaas_entry
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

if TYPE_CHECKING:
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_listener import ListenerSettings
    from broker.cluster.peer_login import Ask
    from broker.security.sasl.scram.hashes import ScramHash
    from runtime.env import Rng
    from wire.kafka.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse

MECHANISM_SETTING = "sasl.mechanism.inter.broker.protocol"
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_NONCE_BYTES = 24
MODULES = {PLAIN: "PlainLoginModule", **dict.fromkeys(BY_NAME, "ScramLoginModule")}

#: Runs a function on a worker thread (`Disk.run`).
Aside = Callable[..., Awaitable[Any]]
Send = Callable[[bytes], Awaitable[bytes]]


class _HasRng(Protocol):
    @property
    def rng(self) -> Rng: ...


@dataclass(slots=True, frozen=True)
class Account:
    """Who a broker is at the others."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    @property
    def principal(self) -> str:
        return f"User:{self.user}"

    def plain_token(self) -> bytes:
        return b"\0".join((b"", self.user.encode(), self.password.encode()))


def handshaken(answer: SaslHandshakeResponse, account: Account) -> None:
    """LoginRefusedError."""
    if code := answer.error_code:
        raise LoginRefusedError(f"{_name(code)}, {account.mechanism} is wanted there")


def authenticated(answer: SaslAuthenticateResponse, account: Account) -> bytes:
    """The other side's token. LoginRefusedError."""
    if code := answer.error_code:
        raise LoginRefusedError(f"{_name(code)} for {account.principal} by {account.mechanism}")
    return bytes(answer.auth_bytes)


def account_of(settings: ListenerSettings, broker: BrokerConfig) -> Account:
    """Of the listener that brokers meet at, which has SASL. ConfigError."""
    mechanism = broker.sasl_mechanism_inter_broker_protocol
    module_name = MODULES.get(mechanism)
    if module_name is None:
        raise ConfigError(
            MECHANISM_SETTING,
            f"{MECHANISM_SETTING}: brokers do not log in to each other by {mechanism}, only by one"
            f" of {', '.join(sorted(MODULES))}",
        )
    enabled = settings.value(MECHANISMS_SETTING)
    assert isinstance(enabled, tuple)
    if mechanism not in enabled:
        raise ConfigError(
            MECHANISM_SETTING,
            f"{MECHANISM_SETTING}: {mechanism} is not in {MECHANISMS_SETTING} of listener"
            f" {settings.listener}, where brokers meet",
        )
    wanted = f"listener.name.{settings.listener.lower()}.{mechanism.lower()}.{JAAS_SETTING}"
    found = settings.find(JAAS_SETTING, mechanism)
    if found is None:
        raise ConfigError(
            wanted, f"{wanted}: must have the username and password by which brokers log in"
        )
    name, text = found
    module = parse_jaas_entry(text, name)
    if module.name.rpartition(".")[2] != module_name:
        raise ConfigError(name, f"{name}: {module.name} is not {module_name}")
    user, password = module.options.get("username", ""), module.options.get("password", "")
    if not user or not password:
        raise ConfigError(
            name, f"{name}: must have the username and password by which brokers log in"
        )
    return Account(mechanism, user, password)


class BrokerLogin:
    """`Login` of broker/cluster/peer_login.py."""

    def __init__(self, account: Account, env: _HasRng, aside: Aside) -> None:
        self._account = account
        self._env = env
        self._aside = aside
        #: What the last salt made of the password: of a user it is the same every time.
        self._salted: tuple[Salting, bytes] | None = None

    async def __call__(self, ask: Ask) -> float | None:
        account = self._account
        handshake = await ask(SaslHandshakeRequest(mechanism=account.mechanism), _HANDSHAKE_VERSION)
        handshaken(handshake, account)
        lifetime_ms = 0

        async def send(token: bytes) -> bytes:
            nonlocal lifetime_ms
            request = SaslAuthenticateRequest(auth_bytes=token)
            answer = await ask(request, _AUTHENTICATE_VERSION)
            lifetime_ms = answer.session_lifetime_ms
            return authenticated(answer, account)

        try:
            if (kind := BY_NAME.get(account.mechanism)) is not None:
                await self._by_scram(kind, send)
            else:
                await send(account.plain_token())
        except AuthenticationFailedError as error:
            raise LoginRefusedError(f"{error}, for {account.principal}") from None
        return lifetime_ms / 1000 if lifetime_ms > 0 else None

    async def _by_scram(self, kind: ScramHash, send: Send) -> None:
        nonce = base64.b64encode(self._env.rng.randbytes(_NONCE_BYTES)).decode()
        client = ScramClient(kind, self._account.user, nonce)
        salting = client.salting(await send(client.first()))
        if self._salted is None or self._salted[0] != salting:
            password = self._account.password.encode()
            salted = await self._aside(kind.salted, password, salting.salt, salting.iterations)
            self._salted = (salting, salted)
        client.check(await send(client.final(self._salted[1])))


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"

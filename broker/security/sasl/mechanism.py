"""What a SASL mechanism is to the exchange in front of dispatch.

A mechanism keeps nothing of a connection; each login is an exchange of its own, without I/O and
without time: what it needs to know is in memory. The reason of a failure is for the log alone: the
client is told the same of every one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.security.principal import Principal


class AuthenticationFailedError(Exception):
    """A login that ends here. The words hold no secret; `user` is whom it named, if it did."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


@dataclass(slots=True, frozen=True)
class Login:
    """`expires_ms`: when what it logged in with ends, in ms since the epoch; None: it does not."""

    principal: Principal
    expires_ms: int | None = None


class Exchange(Protocol):
    """One login."""

    @property
    def login(self) -> Login | None:
        """Once it is complete."""

    def step(self, token: bytes) -> bytes:
        """The server's answer. AuthenticationFailedError: there is no further step. It must not
        raise anything else, whatever the bytes are."""


class Mechanism(Protocol):
    @property
    def name(self) -> str:
        """As IANA has it: SCRAM-SHA-256."""

    def begin(self) -> Exchange: ...

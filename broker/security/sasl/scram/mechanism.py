"""SCRAM in front of what is known of users and delegation tokens.

Names that nobody has get a credential of their own, made of the cluster's secret and the name: the
same of every broker at every try, of the form of a real one, and of no password.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Protocol

from broker.security.principal import USER, Principal
from broker.security.sasl.mechanism import Login
from broker.security.sasl.scram.credentials import Credential, salt_text
from broker.security.sasl.scram.hashes import ITERATIONS_MIN, SCRAM_SHA_512
from broker.security.sasl.scram.scram_core import Claimed, ScramExchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.security.sasl.scram.hashes import ScramHash
    from runtime.env import Rng

_NONCE_BYTES = 24


class Users(Protocol):
    """Who has which credentials (broker/security/users/)."""

    def credentials(self, name: str) -> Mapping[str, Credential]:
        """By mechanism; empty of a name that nobody has."""


class Tokens(Protocol):
    """Delegation tokens that have not ended (broker/security/tokens/)."""

    def login(self, token_id: str, mechanism: str) -> tuple[Credential, Login] | None: ...


class ScramMechanism:
    """It is a `Claims`, too."""

    def __init__(
        self, kind: ScramHash, users: Users, tokens: Tokens | None, secret: bytes, rng: Rng
    ) -> None:
        """`secret`: the cluster's own, which nobody outside knows. `tokens`: None if there are
        none."""
        self.name = kind.name
        self._kind = kind
        self._users = users
        self._tokens = tokens
        self._secret = secret
        self._rng = rng

    def begin(self) -> ScramExchange:
        nonce = base64.b64encode(self._rng.randbytes(_NONCE_BYTES)).decode()
        return ScramExchange(self._kind, self, nonce)

    def claimed(self, name: str, *, is_by_token: bool) -> Claimed:
        nobodys = self._nobodys(name, is_by_token=is_by_token)
        if is_by_token:
            found = None if self._tokens is None else self._tokens.login(name, self.name)
            if found is None:
                return Claimed(nobodys, refusal="no such delegation token, or it has ended")
            return Claimed(*found)
        credentials = self._users.credentials(name)
        credential = credentials.get(self.name)
        if credential is None:
            has = f"a user without {self.name}" if credentials else "no such user"
            return Claimed(nobodys, refusal=has)
        if credential.iterations < ITERATIONS_MIN:
            return Claimed(nobodys, refusal=f"only {credential.iterations} iterations are stored")
        return Claimed(credential, Login(Principal(USER, name)))

    def _nobodys(self, name: str, *, is_by_token: bool) -> Credential:
        what = b"token" if is_by_token else b"user"
        seed = b"\0".join((what, self.name.encode(), name.encode()))
        known = SCRAM_SHA_512.hmac(self._secret, seed)
        salt = salt_text(int.from_bytes(known[:32], "big"))
        key = self._kind.hmac(known[32:], b"nobody's")
        return Credential(salt, ITERATIONS_MIN, key, key)

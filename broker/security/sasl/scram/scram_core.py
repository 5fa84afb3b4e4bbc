"""One login by SCRAM at the server's side (RFC 5802): two messages of the client, two answers.

The last message must repeat the header of the first one and the whole nonce: Kafka did not compare
the nonce (CVE-2024-56128), and who left the server's part of it out could use an overheard proof
again. What is signed are the bytes that came.

A name that nobody has is asked for its proof like any other, with a salt that is always the same
(mechanism.py), and fails where a wrong password does: nobody learns which users there are. Every
login costs the same few hashes; the many iterations are the client's work.
"""

from __future__ import annotations

import enum
import hmac
from typing import TYPE_CHECKING, Protocol

from broker.security.sasl.mechanism import AuthenticationFailedError, Login
from broker.security.sasl.scram.messages_core import (
    parse_client_final,
    parse_client_first,
    server_final,
    server_first,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.security.sasl.scram.credentials import Credential
    from broker.security.sasl.scram.hashes import ScramHash
    from broker.security.sasl.scram.messages_core import ClientFirst


@dataclass(slots=True, frozen=True)
class Claimed:
    """What a login under some name is checked by. `refusal`: why it fails however it is proven;
    then the credential is none of anybody's. Else `login` is what comes of it."""

    credential: Credential
    login: Login | None = None
    refusal: str = ""


class Claims(Protocol):
    def claimed(self, name: str, *, is_by_token: bool) -> Claimed:
        """From memory."""


class _State(enum.Enum):
    FIRST = enum.auto()
    FINAL = enum.auto()
    ENDED = enum.auto()


class ScramExchange:
    def __init__(self, kind: ScramHash, claims: Claims, nonce: str) -> None:
        """`nonce`: the server's part, never used before."""
        self._kind = kind
        self._claims = claims
        self._server_nonce = nonce
        self._state = _State.FIRST
        self._first: ClientFirst
        self._claimed: Claimed
        self._server_first = b""
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        state, self._state = self._state, _State.ENDED
        if state is _State.FIRST:
            answer = self._begin(token)
            self._state = _State.FINAL
            return answer
        if state is _State.FINAL:
            return self._finish(token)
        raise AuthenticationFailedError("a message after the end")

    def _begin(self, message: bytes) -> bytes:
        self._first = first = parse_client_first(message)
        if first.authorization not in ("", first.name):
            raise AuthenticationFailedError("would act for somebody else", first.name)
        self._claimed = claimed = self._claims.claimed(first.name, is_by_token=first.is_by_token)
        credential = claimed.credential
        nonce = first.nonce + self._server_nonce
        self._server_first = server_first(nonce, credential.salt, credential.iterations)
        return self._server_first

    def _finish(self, message: bytes) -> bytes:
        first, claimed, kind = self._first, self._claimed, self._kind
        final = parse_client_final(message)
        if final.channel_binding != first.gs2_header:
            raise AuthenticationFailedError("another header than before", first.name)
        nonce = first.nonce + self._server_nonce
        if not hmac.compare_digest(final.nonce.encode(), nonce.encode()):
            raise AuthenticationFailedError("another nonce than before", first.name)
        signed = b",".join((first.bare, self._server_first, final.without_proof))
        signature = kind.hmac(claimed.credential.stored_key, signed)
        proof = final.proof if len(final.proof) == kind.size else bytes(kind.size)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(kind.h(client_key), claimed.credential.stored_key)
        if claimed.login is None or not is_right:
            raise AuthenticationFailedError(claimed.refusal or "another password", first.name)
        self.login = claimed.login
        return server_final(kind.hmac(claimed.credential.server_key, signed))

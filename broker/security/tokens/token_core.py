"""A delegation token, and what may be done to it (Kafka's `DelegationTokenControlManager`).

A token is its id, and an hmac that only those know who have delegation.token.secret.key. The hmac
in base64 is the token's password. It is not stored: what is, is what SCRAM checks a password by.
Times are milliseconds since the epoch; the errors are Kafka 4.3.1's.
"""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING

from broker.security.principal import USER, Principal
from broker.security.sasl.scram.credentials import (
    Credential,
    credentials_from_json,
    credentials_to_json,
)
from broker.security.sasl.scram.hashes import BY_NAME
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.security.sasl.scram.credentials import Credentials

_TIME_MAX_MS = 2**63 - 1
#: Of one token; Kafka has no bound.
RENEWERS_MAX = 256
RENEWER_BYTES_MAX = 1024
#: Of all of a token's together.
RENEWERS_BYTES_MAX = 16 << 10


@dataclass(slots=True, frozen=True)
class Token:
    owner: Principal
    #: Who asked for it.
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int
    #: Of the secret that it was made with: those of another one are nobody's.
    key_id: str
    credentials: Credentials = field(repr=False)

    def has_ended(self, now_ms: int) -> bool:
        return self.max_ms < now_ms or self.expiry_ms < now_ms

    def may_renew(self, who: Principal) -> bool:
        return who == self.owner or who in self.renewers


@dataclass(slots=True, frozen=True)
class Lifetimes:
    """delegation.token.max.lifetime.ms and delegation.token.expiry.time.ms."""

    max_ms: int
    renewal_ms: int


def hmac_of(secret: bytes, token_id: str) -> bytes:
    return hmac.digest(secret, token_id.encode(), "sha512")


def credentials_of(token_hmac: bytes, salts: Sequence[bytes]) -> Credentials:
    """By mechanism, a salt for each. Takes milliseconds."""
    password = base64.b64encode(token_hmac).decode()
    return {
        name: Credential.of_password(kind, password, salt)
        for (name, kind), salt in zip(sorted(BY_NAME.items()), salts, strict=True)
    }


def check_principals(owner: Principal, renewers: Sequence[Principal]) -> None:
    """KafkaError: INVALID_PRINCIPAL_TYPE; INVALID_REQUEST for more than a document should hold."""
    if any(one.type != USER for one in (owner, *renewers)):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if len(renewers) > RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    sizes = [len(one.name.encode()) for one in (owner, *renewers)]
    if max(sizes) > RENEWER_BYTES_MAX or sum(sizes) > RENEWERS_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def times_of_new(now_ms: int, wanted_ms: int, limits: Lifetimes) -> tuple[int, int]:
    """(expiry, max)"""
    lifetime_ms = min(limits.max_ms, wanted_ms) if wanted_ms > 0 else limits.max_ms
    max_ms = min(now_ms + lifetime_ms, _TIME_MAX_MS)
    return min(max_ms, now_ms + limits.renewal_ms), max_ms


def renewed(
    token: Token | None, who: Principal, period_ms: int, now_ms: int, limits: Lifetimes
) -> Token:
    """KafkaError."""
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if token.has_ended(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    _check_renewer(token, who)
    period_ms = min(period_ms, limits.renewal_ms) if period_ms > 0 else limits.renewal_ms
    return replace(token, expiry_ms=min(token.max_ms, now_ms + period_ms))


def expired(token: Token | None, who: Principal, period_ms: int, now_ms: int) -> Token | None:
    """What is left of it: None if it ends now, which a negative period says. KafkaError."""
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    _check_renewer(token, who)
    if period_ms < 0:
        return None
    if token.has_ended(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return replace(token, expiry_ms=min(token.max_ms, now_ms + period_ms))


def _check_renewer(token: Token, who: Principal) -> None:
    if not token.may_renew(who):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def to_bytes(token: Token) -> bytes:
    value = {
        "owner": _pair(token.owner),
        "requester": _pair(token.requester),
        "renewers": [_pair(one) for one in token.renewers],
        "issue_ms": token.issue_ms,
        "expiry_ms": token.expiry_ms,
        "max_ms": token.max_ms,
        "key_id": token.key_id,
        "credentials": credentials_to_json(token.credentials),
    }
    return json.dumps(value, sort_keys=True).encode()


def from_bytes(data: bytes) -> Token:
    """ValueError, whose words show nothing of what is stored."""
    value = json.loads(data)
    try:
        return Token(
            _principal(value["owner"]),
            _principal(value["requester"]),
            tuple(_principal(one) for one in value["renewers"]),
            int(value["issue_ms"]),
            int(value["expiry_ms"]),
            int(value["max_ms"]),
            str(value["key_id"]),
            credentials_from_json(value["credentials"]),
        )
    except (KeyError, TypeError, IndexError):
        raise ValueError("no delegation token") from None


def _pair(principal: Principal) -> list[str]:
    return [principal.type, principal.name]


def _principal(value: Sequence[object]) -> Principal:
    kind, name = value
    return Principal(str(kind), str(name))

"""What is kept of a password: enough to check a login by SCRAM, and not enough to make one.

Whoever reads it can try passwords, and can play the server (RFC 5802, section 9); so it is in no
log, no dump and no `repr`.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import field
from typing import TYPE_CHECKING

from broker.security.sasl.scram.hashes import BY_NAME, ITERATIONS_MIN
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.security.sasl.scram.hashes import ScramHash

_CLIENT_KEY, _SERVER_KEY = b"Client Key", b"Server Key"
SALT_BITS = 130
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True, frozen=True)
class Credential:
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted(cls, kind: ScramHash, salted: bytes, salt: bytes, iterations: int) -> Credential:
        """`salted`: SaltedPassword, which Kafka's clients send instead of the password."""
        stored_key = kind.h(kind.hmac(salted, _CLIENT_KEY))
        return cls(salt, iterations, stored_key, kind.hmac(salted, _SERVER_KEY))

    @classmethod
    def of_password(
        cls, kind: ScramHash, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
    ) -> Credential:
        """Takes milliseconds. As Kafka's clients do, the password is taken as it is (no SASLprep,
        RFC 4013)."""
        salted = kind.salted(password.encode(), salt, iterations)
        return cls.of_salted(kind, salted, salt, iterations)


#: By mechanism's name.
Credentials = dict[str, Credential]


def salt_text(number: int) -> bytes:
    """A salt of 130 bits, in the form in which kafka-configs makes them: digits of base 36. Those
    of users who do not exist look the same."""
    number &= (1 << SALT_BITS) - 1
    digits = []
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode() or b"0"


def credentials_to_json(credentials: Mapping[str, Credential]) -> dict[str, dict[str, object]]:
    return {
        name: {
            "iterations": one.iterations,
            "salt": _text(one.salt),
            "stored_key": _text(one.stored_key),
            "server_key": _text(one.server_key),
        }
        for name, one in sorted(credentials.items())
    }


def credentials_from_json(value: object) -> Credentials:
    """ValueError. Mechanisms that are not known are of a newer version, and left out."""
    if not isinstance(value, dict):
        raise ValueError("no object of credentials")
    return {name: _credential(BY_NAME[name], value[name]) for name in value if name in BY_NAME}


def to_bytes(credentials: Mapping[str, Credential]) -> bytes:
    """A user's document; `{}` of one who has none any more."""
    return json.dumps(credentials_to_json(credentials), sort_keys=True).encode()


def from_bytes(data: bytes) -> Credentials:
    """ValueError, whose words show nothing of what is stored."""
    return credentials_from_json(json.loads(data))


def _credential(kind: ScramHash, value: object) -> Credential:
    if not isinstance(value, dict):
        raise ValueError(f"{kind.name}: no object")
    iterations = value.get("iterations")
    if not isinstance(iterations, int):
        raise ValueError(f"{kind.name}: iterations are no number")
    salt, stored, server = (_bytes(value, name) for name in ("salt", "stored_key", "server_key"))
    if len(stored) != kind.size or len(server) != kind.size:
        raise ValueError(f"{kind.name}: keys that are not of its size")
    return Credential(salt, iterations, stored, server)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(value: Mapping[str, object], name: str) -> bytes:
    text = value.get(name)
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error:
        raise ValueError(f"{name} is not base64") from None

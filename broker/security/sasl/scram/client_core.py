"""One login by SCRAM at the client's side (RFC 5802): a broker that logs in at another one.

The other side is not believed before it has shown that it knows the password, too. How many
iterations it may ask for is bounded: their cost is ours (CVE-2026-10143).
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import field
from typing import TYPE_CHECKING

from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.scram.hashes import ITERATIONS_MAX, ITERATIONS_MIN
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.security.sasl.scram.hashes import ScramHash

_HEADER = b"n,,"
_FIELDS = 3
#: No server sends more.
MESSAGE_BYTES_MAX = 8 << 10


@dataclass(slots=True, frozen=True)
class Salting:
    """What has to be made of the password, which takes milliseconds: `ScramHash.salted`."""

    salt: bytes = field(repr=False)
    iterations: int


class ScramClient:
    """`first`, `salting`, `final` and `check`, once each and in this order."""

    def __init__(self, kind: ScramHash, user: str, nonce: str) -> None:
        """`nonce`: the client's part, printable, without commas, never used before."""
        self._kind = kind
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}".encode()
        self._server_first = b""
        self._whole_nonce = ""
        self._signature = b""

    def first(self) -> bytes:
        return _HEADER + self._bare

    def salting(self, server_first: bytes) -> Salting:
        """AuthenticationFailedError."""
        fields = _text(server_first).split(",")
        if len(fields) < _FIELDS or [each[:2] for each in fields[:_FIELDS]] != ["r=", "s=", "i="]:
            raise AuthenticationFailedError("no nonce, salt and iterations in the first answer")
        nonce, salt, count = (each[2:] for each in fields[:_FIELDS])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailedError("another nonce than was sent, or nothing added to it")
        if not (count.isascii() and count.isdigit() and len(count) <= 6):
            raise AuthenticationFailedError("iterations that are no number")
        iterations = int(count)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailedError(
                f"{iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
            )
        self._server_first, self._whole_nonce = server_first, nonce
        return Salting(_decoded(salt), iterations)

    def final(self, salted: bytes) -> bytes:
        kind = self._kind
        header = base64.b64encode(_HEADER).decode()
        without_proof = f"c={header},r={self._whole_nonce}".encode()
        signed = b",".join((self._bare, self._server_first, without_proof))
        client_key = kind.hmac(salted, b"Client Key")
        signature = kind.hmac(kind.h(client_key), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = kind.hmac(kind.hmac(salted, b"Server Key"), signed)
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, server_final: bytes) -> None:
        """AuthenticationFailedError: whoever answers does not know the password."""
        text = _text(server_final).partition(",")[0]
        if not text.startswith("v=") or not hmac.compare_digest(
            _decoded(text[2:]), self._signature
        ):
            raise AuthenticationFailedError("the other side does not show that it has the password")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailedError(f"an answer of {len(message)} bytes")
    try:
        return message.decode("ascii")
    except UnicodeDecodeError:
        raise AuthenticationFailedError("an answer that is not ASCII") from None


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailedError("not base64") from None
    if base64.b64encode(data).decode() != text:  # bits of the last digit that mean nothing
        raise AuthenticationFailedError("not base64 as it is written")
    return data

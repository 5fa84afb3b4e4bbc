"""SCRAM's messages as bytes (RFC 5802, section 7; Kafka's `ScramMessages`).

Only what the bytes say: whether a nonce or a proof is right is scram_core.py's question. Deviations
from Kafka: names may have any UTF-8, where Kafka takes ASCII; an extension that is mandatory (`m=`)
ends the login, as the RFC wants, and so does one that comes twice.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import field
from typing import TYPE_CHECKING

from broker.security.sasl.mechanism import AuthenticationFailedError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Longer ones are nobody's.
MESSAGE_BYTES_MAX = 8 << 10
EXTENSIONS_MAX = 16
_PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION = re.compile(r"([A-Za-z]+)=([^,]+)")
_ESCAPED = re.compile(r"=2C|=3D|[^=]")
_TOKEN_EXTENSION = "tokenauth"  # KIP-48


@dataclass(slots=True, frozen=True)
class ClientFirst:
    #: What stands before the bare message; the last message repeats it.
    gs2_header: bytes
    bare: bytes
    authorization: str
    name: str
    nonce: str
    extensions: Mapping[str, str]

    @property
    def is_by_token(self) -> bool:
        """The name is a delegation token's id."""
        return self.extensions.get(_TOKEN_EXTENSION, "").lower() == "true"


@dataclass(slots=True, frozen=True)
class ClientFinal:
    without_proof: bytes
    channel_binding: bytes = field(repr=False)
    nonce: str
    proof: bytes = field(repr=False)


def parse_client_first(message: bytes) -> ClientFirst:
    """AuthenticationFailedError."""
    text = _text(message)
    parts = text.split(",", 2)
    if len(parts) != 3 or parts[0] != "n":
        # y: «I think that you cannot do it»; p: it wants it.
        raise AuthenticationFailedError("channel binding, or no SCRAM message")
    _, authorization, bare = parts
    fields = bare.split(",", 2)
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        raise AuthenticationFailedError("no name and nonce in the first message")
    if authorization and not authorization.startswith("a="):
        raise AuthenticationFailedError("neither an authorization id nor none")
    nonce = fields[1][2:]
    if not _PRINTABLE.fullmatch(nonce):
        raise AuthenticationFailedError("a nonce that cannot be one")
    return ClientFirst(
        f"n,{authorization},".encode(),
        bare.encode(),
        _unescaped(authorization[2:]) if authorization else "",
        _unescaped(fields[0][2:]),
        nonce,
        _extensions(fields[2] if len(fields) == 3 else None),
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """AuthenticationFailedError."""
    text = _text(message)
    without_proof, found, proof = text.rpartition(",p=")
    fields = without_proof.split(",", 2)
    if not found or len(fields) < 2 or not fields[0].startswith("c=") or fields[1][:2] != "r=":
        raise AuthenticationFailedError("no channel binding, nonce and proof in the last message")
    _extensions(fields[2] if len(fields) == 3 else None)
    return ClientFinal(
        without_proof.encode(), _decoded(fields[0][2:]), fields[1][2:], _decoded(proof)
    )


def server_first(nonce: str, salt: bytes, iterations: int) -> bytes:
    return f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}".encode()


def server_final(signature: bytes) -> bytes:
    return b"v=" + base64.b64encode(signature)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailedError(f"a message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailedError("not UTF-8") from None
    if "\0" in text:
        raise AuthenticationFailedError("a NUL")
    return text


def _unescaped(name: str) -> str:
    """A comma is written =2C, an equals sign =3D, and nothing else begins with one."""
    found = _ESCAPED.findall(name)
    if not found or sum(map(len, found)) != len(name):
        raise AuthenticationFailedError("an empty name, or an equals sign in it")
    return name.replace("=2C", ",").replace("=3D", "=")


def _extensions(text: str | None) -> dict[str, str]:
    """Those that nobody knows are ignored."""
    if text is None:
        return {}
    fields = text.split(",", EXTENSIONS_MAX)
    if len(fields) > EXTENSIONS_MAX:
        raise AuthenticationFailedError("very many extensions")
    found: dict[str, str] = {}
    for each in fields:
        match = _EXTENSION.fullmatch(each)
        if match is None or match[1] == "m" or match[1] in found:
            raise AuthenticationFailedError("an extension that is mandatory, malformed, or twice")
        found[match[1]] = match[2]
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailedError("not base64") from None

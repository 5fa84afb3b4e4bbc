"""SASL's messages as bytes: what a stranger sends is looked at without the general decoder.

A SaslAuthenticate may have half a megabyte (sasl.server.max.receive.size). Read by the general
decoder that could be a quarter of a million tagged fields, which would hold the loop.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import TYPE_CHECKING

from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.headers import response_encoder
from wire.kafka.messages.security import SaslAuthenticateResponse

if TYPE_CHECKING:
    from collections.abc import Generator

    from broker.api import Route
    from wire.buffers import Buffer
    from wire.kafka.message import Message

_SIZE = Struct(">i")
_SHORT = Struct(">h")
_FIXED_HEADER_BYTES = 8  # key, version, correlation id
#: The first version with tagged fields.
_FLEXIBLE = 2
TAGS_MAX = 64
#: A size of up to 2**28 - 1.
_VARINT_BYTES_MAX = 4
TRAILING_BYTES_MAX = 256


class _Route:
    """`broker.api.Route` of an API that dispatch does not see."""

    def __init__(self, key: int, version: int) -> None:
        self.name = f"Sasl{key}"
        self.encode = response_encoder(key, version, by_reference=False)

    def encode_sliced(
        self, message: Message, correlation_id: int
    ) -> Generator[None, None, list[Buffer]]:
        raise AssertionError("it has few elements")


class _RawRoute:
    """Of a token that is sent as it is, behind its size."""

    name = "SaslToken"

    def encode(self, message: Message, correlation_id: int, elements: int) -> list[Buffer]:
        assert isinstance(message, SaslAuthenticateResponse)
        return [_SIZE.pack(len(message.auth_bytes)) + message.auth_bytes]

    def encode_sliced(
        self, message: Message, correlation_id: int
    ) -> Generator[None, None, list[Buffer]]:
        raise AssertionError("it has few elements")


RAW_ROUTE: Route = _RawRoute()


@cache
def route_of(key: int, version: int) -> Route:
    return _Route(key, version)


def has_many_tags(frame: memoryview, version: int) -> bool:
    """In the header of a SaslAuthenticate request."""
    at = _FIXED_HEADER_BYTES
    if version < _FLEXIBLE or len(frame) < at + 2:
        return False
    client_id_bytes: int = _SHORT.unpack_from(frame, at)[0]
    at += 2 + max(client_id_bytes, 0)
    return at < len(frame) and int(frame[at]) > TAGS_MAX


def auth_bytes(frame: memoryview, offset: int, version: int) -> bytes:
    """Of a SaslAuthenticate request whose body begins there. WireError."""
    if version < _FLEXIBLE:
        if len(frame) < offset + 4:
            raise WireError("a SaslAuthenticate without a token")
        size, offset = _SIZE.unpack_from(frame, offset)[0], offset + 4
    else:
        size, offset = _compact_size(frame, offset)
    rest = len(frame) - offset - size
    if size < 0 or not 0 <= rest <= TRAILING_BYTES_MAX:
        raise WireError(f"a token of {size} bytes, {len(frame) - offset} are left")
    return bytes(frame[offset : offset + size])


def _compact_size(frame: memoryview, offset: int) -> tuple[int, int]:
    """WireError."""
    size = 0
    for index, byte in enumerate(frame[offset : offset + _VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # the last one
            return size - 1, offset + index + 1
    raise WireError("a size that does not end")


def authenticate_answer(mechanism: str) -> SaslAuthenticateResponse:
    """To a login that failed, whatever the reason."""
    return SaslAuthenticateResponse(
        error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED),
        error_message=f"Authentication failed: invalid credentials with SASL mechanism {mechanism}",
    )

"""Messages to bytes and back.

Coders are compiled from the declarations on first use of a (class, version), and kept. Whoever
decodes a body checks that nothing is left after it: `decode` gives the offset where it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

# Importing the package fills the registries that this module looks classes up in.
import wire.kafka.messages  # noqa: F401
from wire.kafka.decoder import compile_decoder, compile_sliced_decoder
from wire.kafka.encoder import compile_encoder, compile_sliced_encoder, explain_unfit
from wire.kafka.errors import WireError
from wire.kafka.message import REQUESTS, RESPONSES, Message
from wire.kafka.primitives import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Generator

    from wire.buffers import Buffer
    from wire.kafka.decoder import Decoder, SlicedDecoder
    from wire.kafka.encoder import Encoder, SlicedEncoder

M = TypeVar("M", bound=Message)

_DECODERS: dict[tuple[type[Message], int], Decoder] = {}
_ENCODERS: dict[tuple[type[Message], int], Encoder] = {}
_SLICED_DECODERS: dict[tuple[type[Message], int], SlicedDecoder] = {}
_SLICED_ENCODERS: dict[tuple[type[Message], int], SlicedEncoder] = {}


def decode(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> tuple[M, int]:
    """Decode a message body; gives it and the offset after it.

    `records` fields are memoryviews into `buffer`. Raises WireError for whatever is malformed and
    for a version that `cls` does not declare.
    """
    return decoder_of(cls, version)(buffer, offset)


def decoder_of(cls: type[M], version: int) -> Decoder:
    """The compiled decoder: (buffer, offset) gives the message and the offset after it.

    Raises WireError for a version that `cls` does not declare.
    """
    decoder = _DECODERS.get((cls, version))
    if decoder is None:
        decoder = _DECODERS[cls, version] = compile_decoder(cls, _declared(cls, version))
    return decoder


def sliced_decoder_of(cls: type[Message], version: int) -> SlicedDecoder:
    """The decoder of messages with many elements: (buffer, offset, elements allowed) is a generator
    that yields after each slice and gives the message and the offset after it. WireError."""
    decoder = _SLICED_DECODERS.get((cls, version))
    if decoder is None:
        decoder = compile_sliced_decoder(cls, _declared(cls, version))
        _SLICED_DECODERS[cls, version] = decoder
    return decoder


def encode_sliced(
    message: Message, version: int, *, by_reference: bool
) -> Generator[None, None, list[Buffer]]:
    """Encodes a body of many elements: yields after each slice, and gives the buffers that follow
    one another. The message must not change meanwhile. EncodeError."""
    cls = type(message)
    encoder = _SLICED_ENCODERS.get((cls, version))
    if encoder is None:
        encoder = compile_sliced_encoder(cls, _declared(cls, version))
        _SLICED_ENCODERS[cls, version] = encoder
    pieces: list[Buffer] = []
    parts: list[Buffer] = []
    for _ in encoder(message, pieces, parts if by_reference else None):
        yield
        parts.append(b"".join(pieces))
        pieces.clear()
    parts.append(b"".join(pieces))
    return parts


def encoder_of(cls: type[Message], version: int) -> Encoder:
    """The compiled encoder: (message, pieces, parts) appends to them.

    Raises WireError for a version that `cls` does not declare.
    """
    encoder = _ENCODERS.get((cls, version))
    if encoder is None:
        encoder = _ENCODERS[cls, version] = compile_encoder(cls, _declared(cls, version))
    return encoder


def encode(message: Message, version: int) -> bytes:
    """Encode a message body. EncodeError if a value does not suit its field in this version."""
    pieces: list[Buffer] = []
    encoder_of(type(message), version)(message, pieces, None)
    try:
        return b"".join(pieces)
    except TypeError as error:  # a `bytes` or `records` value that is no buffer
        raise explain_unfit(message, version, error) from error


def encode_after(
    prefix: bytes, message: Message, version: int, elements: int = UNLIMITED
) -> list[Buffer]:
    """Encode a body as buffers that follow one another, with `prefix` in front of the first;
    `records` of 2 KiB and more by reference. The message's buffers must not change until the parts
    have been sent. ManyElementsError if there are more than `elements` in all arrays."""
    parts: list[Buffer] = []
    pieces: list[Buffer] = [prefix]

    encoder_of(type(message), version)(message, pieces, parts, elements)
    if pieces:
        try:
            parts.append(b"".join(pieces))
        except TypeError as error:
            raise explain_unfit(message, version, error) from error
    return parts


def _declared(cls: type[Message], version: int) -> int:
    if version not in cls.INFO.versions:
        raise WireError(f"{cls.__name__} has no version {version}")
    return version


def request_class(key: int) -> type[Message]:
    """The request class of an API key; WireError if there is none."""
    return _registered(REQUESTS, key)


def response_class(key: int) -> type[Message]:
    """The response class of an API key; WireError if there is none."""
    return _registered(RESPONSES, key)


def _registered(registry: dict[int, Any], key: int) -> type[Message]:
    cls: type[Message] | None = registry.get(key)
    if cls is None:
        # Of a family that nobody imported yet.
        from wire.kafka.messages import everything  # noqa: F401

        cls = registry.get(key)
    if cls is None:
        raise WireError(f"API key {key} has no declared messages")
    return cls


def flexible(key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields (KIP-482)."""
    return request_class(key).INFO.flexible.covers(version)

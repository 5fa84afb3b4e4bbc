"""Messages to bytes and back.

Coders are compiled from the declarations on first use of a (class, version), and kept. Whoever
decodes a body checks that nothing is left after it: `decode` gives the offset where it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

# Importing the package fills the registries that this module looks classes up in.
import wire.kafka.messages  # noqa: F401
from wire.kafka.decoder import compile_decoder
from wire.kafka.encoder import compile_encoder, explain_unfit
from wire.kafka.errors import WireError
from wire.kafka.message import REQUESTS, RESPONSES, Message

if TYPE_CHECKING:
    from wire.buffers import Buffer
    from wire.kafka.decoder import Decoder
    from wire.kafka.encoder import Encoder

M = TypeVar("M", bound=Message)

_DECODERS: dict[tuple[type[Message], int], Decoder] = {}
_ENCODERS: dict[tuple[type[Message], int], Encoder] = {}


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


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """Encode a body as buffers that follow one another; `records` of 2 KiB and more by reference.

    The message's buffers must not change until the parts have been sent.
    """
    return encode_after(b"", message, version)


def encode_after(prefix: bytes, message: Message, version: int) -> list[Buffer]:
    """`encode_parts` with `prefix` in front of the first buffer."""
    parts: list[Buffer] = []
    pieces: list[Buffer] = [prefix]

    encoder_of(type(message), version)(message, pieces, parts)
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


def valid_versions(key: int) -> range:
    """The declared versions of an API: what can be decoded, not what is served."""
    return request_class(key).INFO.versions


def flexible(key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields (KIP-482)."""
    return request_class(key).INFO.flexible.covers(version)

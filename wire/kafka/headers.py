"""Request and response headers, and whole frames.

A frame is an int32 size and so many bytes: header, then body. Request header v1 is key, version,
correlation id, client id; v2 adds tagged fields, and its client id keeps the int16 length, unlike
every other string of a flexible message (KIP-482). Response header v0 is the correlation id; v1
adds tagged fields. ApiVersions answers with v0 in every version, since its client cannot know yet
which one the broker speaks (KIP-511). Request header v0, of ControlledShutdown alone, went with
Kafka 4.0.
"""

from __future__ import annotations

from struct import Struct as PackedStruct
from typing import TYPE_CHECKING

from wire.dataclass import dataclass
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import (
    decode,
    encode,
    encode_after,
    encode_sliced,
    encoder_of,
    flexible,
    request_class,
    response_class,
)
from wire.kafka.encoder import explain_unfit
from wire.kafka.errors import UnsupportedVersionError, WireError
from wire.kafka.primitives import UNLIMITED, MalformedError, skip_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from wire.buffers import Buffer
    from wire.kafka.message import Message

_FIXED = PackedStruct(">hhih")
_KEYS_AND_ID = PackedStruct(">hhi")
_SIZE_AND_ID = PackedStruct(">ii")
_SIZE_ID_TAGS = PackedStruct(">iiB")
_ID = PackedStruct(">i")


@dataclass(slots=True)
class RequestHeader:
    """What every request begins with. `client_id` is None if the client sent null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


#: Whether the header is flexible, for each declared (key, version) that was met.
_FLEXIBLE: dict[tuple[int, int], bool] = {}


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Decode the header of a request frame (without its size); gives the offset of the body.

    Raises UnsupportedVersionError for a key or version without a declaration, which the caller may
    answer by its correlation id, and WireError if the header itself is malformed.
    """
    size = len(frame)
    if size < _FIXED.size:
        if size < _KEYS_AND_ID.size:
            raise WireError(f"a request of {size} bytes has no room for its header")
        key, version, correlation_id = _KEYS_AND_ID.unpack_from(frame)
        _learn_layout(key, version, correlation_id)
        raise WireError(f"a request header ends at byte {size}, before the client id")
    key, version, correlation_id, length = _FIXED.unpack_from(frame)
    header_flexible = _FLEXIBLE.get((key, version))
    if header_flexible is None:
        header_flexible = _learn_layout(key, version, correlation_id)
    offset = 10
    client_id = None
    if length >= 0:
        offset += length
        if offset > size:
            raise WireError(f"a client id of {length} bytes, {size - 10} are left")
        try:
            client_id = str(frame[10:offset], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"the client id is not UTF-8: {error}") from None
    elif length != -1:
        raise WireError(f"a client id of length {length}")
    if header_flexible:
        try:
            count = frame[offset]
            offset += 1
            if count:
                offset = skip_tags(frame, offset, count, size)
        except (MalformedError, IndexError) as error:
            raise WireError(f"tagged fields of a request header: {error}") from None
    return RequestHeader(key, version, correlation_id, client_id), offset


def _learn_layout(key: int, version: int, correlation_id: int) -> bool:
    """Whether the header of a (key, version) that is met first is flexible."""
    try:
        info = request_class(key).INFO
    except WireError:
        raise UnsupportedVersionError(key, version, correlation_id, known_key=False) from None
    if version not in info.versions:
        raise UnsupportedVersionError(key, version, correlation_id, known_key=True)
    is_flexible = _FLEXIBLE[key, version] = info.flexible.covers(version)
    return is_flexible


def sends_records(api_key: int) -> bool:
    """Whether its responses have records, which are worth not copying."""
    return api_key in (ApiKey.FETCH, ApiKey.SHARE_FETCH)


def encode_response(
    message: Message, api_key: int, version: int, correlation_id: int, elements: int = UNLIMITED
) -> list[Buffer]:
    """A response frame as buffers for one `sendmsg`: size, header, body; records by reference.
    ManyElementsError if there are more than `elements`."""
    tagged = _has_tagged_header(api_key, version)
    head_space = _SIZE_ID_TAGS.pack(0, 0, 0) if tagged else bytes(8)
    parts = encode_after(head_space, message, version, elements)
    head = bytearray(parts[0])
    size = sum(map(len, parts)) - 4
    _SIZE_AND_ID.pack_into(head, 0, size, correlation_id)
    parts[0] = head
    return parts


def encode_response_sliced(
    message: Message, api_key: int, version: int, correlation_id: int
) -> Generator[None, None, list[Buffer]]:
    """A response frame of many elements; yields after each slice. The message must not change."""
    parts = yield from encode_sliced(message, version, by_reference=sends_records(api_key))
    size = sum(map(len, parts))
    if _has_tagged_header(api_key, version):
        return [_SIZE_ID_TAGS.pack(size + 5, correlation_id, 0), *parts]
    return [_SIZE_AND_ID.pack(size + 4, correlation_id), *parts]


def response_encoder(
    api_key: int, version: int, *, by_reference: bool
) -> Callable[[Message, int, int], list[Buffer]]:
    """(response, correlation id, elements allowed) -> frame, with all that depends on key and
    version looked up once. ManyElementsError: encode it with `encode_response_sliced`.

    `by_reference`: `records` are not copied, and the frame is several buffers."""
    if by_reference:
        return lambda message, correlation_id, elements: encode_response(
            message, api_key, version, correlation_id, elements
        )
    encoder = encoder_of(response_class(api_key), version)
    tagged = _has_tagged_header(api_key, version)
    header_size = 5 if tagged else 4

    def encode_frame(message: Message, correlation_id: int, elements: int) -> list[Buffer]:
        pieces: list[Buffer] = []
        encoder(message, pieces, None, elements)
        try:
            body = b"".join(pieces)
        except TypeError as error:  # a `bytes` value that is no buffer
            raise explain_unfit(message, version, error) from error
        size = len(body) + header_size
        if tagged:
            return [_SIZE_ID_TAGS.pack(size, correlation_id, 0) + body]
        return [_SIZE_AND_ID.pack(size, correlation_id) + body]

    return encode_frame


def _has_tagged_header(api_key: int, version: int) -> bool:
    return api_key != ApiKey.API_VERSIONS and flexible(api_key, version)


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """A request frame with its size: for brokers that ask others, and for clients in tests."""
    info = message.INFO
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    head = _FIXED.pack(info.key, version, correlation_id, length) + name
    if info.flexible.covers(version):
        head += b"\0"
    frame = head + encode(message, version)
    return _ID.pack(len(frame)) + frame


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """Decode a whole response frame (without its size): correlation id and body.

    Raises WireError if it is malformed or if bytes are left after the body.
    """
    if len(frame) < 4:
        raise WireError(f"a response of {len(frame)} bytes has no correlation id")
    (correlation_id,) = _ID.unpack_from(frame)
    offset = 4
    if _has_tagged_header(api_key, version):
        try:
            offset = skip_tags(frame, 5, frame[4], len(frame))
        except (MalformedError, IndexError) as error:
            raise WireError(f"tagged fields of a response header: {error}") from None
    body, offset = decode(response_class(api_key), version, frame, offset)
    if offset != len(frame):
        raise WireError(f"{len(frame) - offset} bytes after the body of a response")
    return correlation_id, body

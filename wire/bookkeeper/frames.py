"""Frames of the bookie protocol, and which version of it a connection speaks.

A frame is a u32 size and that many bytes. One port serves v2 and v3: BookKeeper's server parses the
first frame as protobuf and, if that fails, takes the connection for v2 for good
(BookieProtoEncoding.RequestDecoder). The first byte says the same, without turning a damaged v3
connection into a v2 one: v2's is the packet version, 0 to 2, which no protobuf message begins with;
v3's is the tag of a field with a size in front.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from wire.bookkeeper import v2, v3
from wire.bookkeeper.errors import FrameTooLargeError, WireError
from wire.bookkeeper.responses import AddResponse
from wire.bookkeeper.v3_entries import decode_plain_add
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.bookkeeper.requests import PlainAdd, Request
    from wire.bookkeeper.responses import Response
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer

    DecodeAdd = Callable[[memoryview], PlainAdd | None]
    DecodeRead = Callable[[memoryview], tuple[int, int] | None]

#: `nettyMaxFrameSizeBytes` as it is set by default: the size in front counts.
FRAME_SIZE_MAX_BYTES = 5 << 20
SIZE_BYTES = 4
#: An add, or the answer to a read, is at most so much larger than its entry, in either version.
OVERHEAD_MAX_BYTES = 128

_WIRE_TYPE_SIZED = 2


class Protocol(Enum):
    V2 = 2
    V3 = 3


@dataclass(slots=True, frozen=True)
class ServerCodec:
    """What a bookie needs of a connection's protocol. `decode_request` takes a frame without its
    size (WireError); `encode_response` gives one with it (EncodeError)."""

    protocol: Protocol
    decode_request: Callable[[Buffer], Request]
    encode_response: Callable[[Response], list[Buffer]]
    #: v2.decode_add or v3_entries.decode_plain_add: an add without objects for it and its answer.
    decode_add: DecodeAdd | None = None
    #: v2.decode_read and v2.encode_read_response, likewise.
    decode_read: DecodeRead | None = None


_V2 = ServerCodec(Protocol.V2, v2.decode_request, v2.encode_response, v2.decode_add, v2.decode_read)
_V3 = ServerCodec(Protocol.V3, v3.decode_request, v3.encode_response, decode_plain_add)


def detect_protocol(first_frame: Buffer) -> Protocol:
    """Of a connection, by its first frame (without its size). WireError if it is neither."""
    if not len(first_frame):
        raise WireError("the first frame is empty, so it is neither v2 nor v3")
    first = first_frame[0]
    if first <= v2.VERSION:
        return Protocol.V2
    if first & 0x7 == _WIRE_TYPE_SIZED and first >> 3:
        return Protocol.V3
    raise WireError(f"the first frame begins with {first:#04x}: neither v2 (00 to 02) nor v3 (0a)")


def server_codec(first_frame: Buffer) -> ServerCodec:
    """For the rest of the connection whose first frame this is. WireError."""
    if detect_protocol(first_frame) is Protocol.V3:
        return _V3
    version = v2.packet_version(first_frame)
    if version == v2.VERSION:
        return _V2
    return ServerCodec(Protocol.V2, v2.decode_request, partial(v2.encode_response, version=version))


def failed_add(codec: ServerCodec, answer: bytes, status: Status) -> list[Buffer]:
    """In place of the `answer` that a PlainAdd would have had."""
    decode = v3.decode_response if codec.protocol is Protocol.V3 else v2.decode_response
    response = decode(memoryview(answer)[SIZE_BYTES:])
    assert isinstance(response, AddResponse)
    return codec.encode_response(replace(response, status=status))


def check_size(size: int, frame_size_max_bytes: int = FRAME_SIZE_MAX_BYTES) -> None:
    """Of a frame as its first four bytes, a u32, announce it. FrameTooLargeError."""
    if not 0 < size <= frame_size_max_bytes - SIZE_BYTES:
        raise FrameTooLargeError(
            f"frame of {size} bytes; allowed are 1 to {frame_size_max_bytes - SIZE_BYTES}"
        )

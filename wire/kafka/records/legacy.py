"""Message sets of versions 0 and 1 («magic» 0 and 1), of Kafka before 0.11: recognised, not served.

Bytes, big endian, of one message in a set; messages lie back to back:

    0 offset i64   8 message size i32 (of what follows it)   12 CRC-32 u32 (from 16 on)
    16 magic i8    17 attributes i8 (bits 0-2 compression, 3 timestamp type)
    18 timestamp i64 (magic 1 alone), then key and value, each with an i32 length (-1 = null)

A compressed set is one message whose value holds the inner set. Kafka 4 refuses what is older than
version 2 (KIP-896, KIP-724); a broker that is sent such a set tells the client so by
UNSUPPORTED_FOR_MESSAGE_FORMAT or INVALID_RECORD, and for that it must know it when it sees it: the
magic byte lies at the same place in all three formats.
"""

import struct
import zlib

from wire.buffers import Buffer
from wire.dataclass import dataclass
from wire.kafka.errors import WireError
from wire.kafka.records.batch import COMPRESSION_MASK, NO_TIMESTAMP, TIMESTAMP_TYPE_MASK

_MAGIC_OFFSET = 16
_CRC_START = 16
_PREFIX = struct.Struct(">qiIbb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_OVERHEAD = 12  # offset and message size: what the message size does not count
_MESSAGE_SIZE_MIN = 14  # CRC, magic, attributes and two lengths
_FIELD_COUNT = 2  # key and value


@dataclass(slots=True, frozen=True)
class LegacyMessage:
    """The head of one message of a set. `size` counts all its bytes, in bytes.

    `timestamp` is in ms, -1 in version 0. `compression` is the codec's number as sent.
    """

    offset: int
    size: int
    magic: int
    compression: int
    is_log_append_time: bool
    timestamp: int
    crc_ok: bool


def is_legacy(buffer: Buffer) -> bool:
    """Whether `buffer` begins like a message set of version 0 or 1. Costs one look at one byte."""
    return len(buffer) > _MAGIC_OFFSET and buffer[_MAGIC_OFFSET] < 2


def scan_messages(buffer: Buffer) -> list[LegacyMessage]:
    """The heads of all outer messages that lie back to back in `buffer`.

    WireError, with the position, if one is not of version 0 or 1, is cut short, or its key and
    value do not fill it exactly. A wrong CRC is a fact for the caller, not an error.
    """
    view = memoryview(buffer)
    messages = []
    offset = 0
    while offset < len(view):
        message = _parse_message(view, offset)
        messages.append(message)
        offset += message.size
    return messages


def _parse_message(view: memoryview, offset: int) -> LegacyMessage:
    if len(view) - offset < _PREFIX.size:
        raise WireError(f"message at byte {offset} is cut short: {len(view) - offset} bytes")
    message_offset, message_size, crc, magic, attributes = _PREFIX.unpack_from(view, offset)
    if magic not in (0, 1):
        raise WireError(f"message at byte {offset} has magic {magic}, not 0 or 1")
    size_min = _MESSAGE_SIZE_MIN + magic * _TIMESTAMP.size
    end = offset + _LENGTH_OVERHEAD + message_size
    if message_size < size_min or end > len(view):
        raise WireError(
            f"message at byte {offset} claims {message_size} bytes: at least {size_min} are needed,"
            f" {len(view) - offset - _LENGTH_OVERHEAD} are left"
        )
    position = offset + _PREFIX.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        timestamp = _TIMESTAMP.unpack_from(view, position)[0]
        position += _TIMESTAMP.size
    for _ in range(_FIELD_COUNT):
        if position + _LENGTH.size > end:
            raise WireError(f"message at byte {offset}: length at byte {position} is cut short")
        length = _LENGTH.unpack_from(view, position)[0]
        position += _LENGTH.size + max(length, 0)
        if length < -1 or position > end:
            raise WireError(f"message at byte {offset}: field of {length} bytes passes its end")
    if position != end:
        raise WireError(f"message at byte {offset} has {end - position} bytes too many")
    return LegacyMessage(
        message_offset,
        end - offset,
        magic,
        attributes & COMPRESSION_MASK,
        magic == 1 and attributes & TIMESTAMP_TYPE_MASK != 0,
        timestamp,
        zlib.crc32(view[offset + _CRC_START : end]) == crc,
    )

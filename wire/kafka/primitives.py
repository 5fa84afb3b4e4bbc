"""Unsigned varints, uuids and tagged-field sections: the slow paths of compiled coders.

The compiled code inlines what is common (a varint of one byte, a tag section with nothing in it)
and calls these for the rest. Format: Kafka's protocol guide, KIP-482.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from wire.buffers import Buffer

#: What one varint may carry: lengths and counts are at most 2^31 on the wire.
VARINT_MAX = (1 << 32) - 1

#: Kafka reads and writes string lengths as int16 even where a varint carries them.
STRING_SIZE_MAX = 0x7FFF


#: Unknown tagged fields in one section: no protocol has a tenth, and each costs a microsecond.
TAGS_MAX = 256

#: Elements of all arrays of a message together, if nobody says otherwise: no limit.
UNLIMITED = 1 << 62


class MalformedError(Exception):
    """What a compiled decoder raises inside; it leaves as `WireError`, with the place added."""


class ManyElementsError(Exception):
    """A message has more elements than were allowed at once: it is coded in slices instead."""


def varint_rest(buffer: Buffer, offset: int, first: int) -> tuple[int, int]:
    """The value of a varint whose `first` byte (above 127) was at `offset - 1`, and its end."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > VARINT_MAX:
                raise MalformedError("a varint above 32 bits")
            return value, offset
        shift += 7
        if shift > 28:
            raise MalformedError("a varint longer than 5 bytes")


def read_varint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """The unsigned varint at `offset`, and the offset after it."""
    first = buffer[offset]
    if first < 128:
        return first, offset + 1
    return varint_rest(buffer, offset + 1, first)


_ONE_BYTE = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """The unsigned varint of `value`, which is from 0 to `VARINT_MAX`."""
    if value < 128:
        return _ONE_BYTE[value]
    if value > VARINT_MAX:
        raise ValueError(f"{value} does not fit in a varint")
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_varint(size: int) -> bytes:
    """The length prefix of a compact string, `size` being one more than its bytes."""
    if size > STRING_SIZE_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes; the most is {STRING_SIZE_MAX}")
    return varint(size)


def skip_tags(buffer: Buffer, offset: int, count: int, end: int) -> int:
    """Skip a section of `count` tagged fields, none of which is known; its end."""
    if count > 127:
        count, offset = varint_rest(buffer, offset, count)
        if count > TAGS_MAX:
            raise many_tags(count)
    for _ in range(count):
        _tag, offset = read_varint(buffer, offset)
        size, offset = read_varint(buffer, offset)
        offset += size
        if offset > end:
            raise MalformedError(
                f"a tagged field of {size} bytes, {offset - end} more than are left"
            )
    return offset


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """A UUID from its 16 bytes. Cached: `UUID` takes 1 us, and peers repeat their topics' ids."""
    return UUID(bytes=raw)


def too_long(size: int, left: int) -> MalformedError:
    """A length that reaches beyond the buffer."""
    return MalformedError(f"a length of {size} bytes, {left} are left")


def too_many(count: int, left: int) -> MalformedError:
    """An array count whose elements cannot be in what is left, whatever they hold."""
    return MalformedError(f"an array of {count} elements, {left} bytes are left")


def many_tags(count: int) -> MalformedError:
    """More tagged fields than anybody sends."""
    return MalformedError(f"{count} tagged fields in one place; {TAGS_MAX} are allowed")


def many_elements(limit: int) -> MalformedError:
    """More elements in a message than are taken at all."""
    return MalformedError(f"more than {limit} elements in all arrays together")


def bad_length(size: int) -> MalformedError:
    """A length that the field cannot have: null where it may not be, negative, or too large."""
    if size == -1:
        return MalformedError("null where null is not allowed")
    return MalformedError(f"a length of {size}")

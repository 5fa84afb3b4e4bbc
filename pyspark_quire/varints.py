"""Zigzag varints, many at a time: one pass over an array of positions for each byte that any of
them has. Most numbers of a record have one byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wire.kafka.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

#: Bytes that must follow the last record, so that a varint that is cut short reads no other memory.
PADDING = 16
_BYTES_MAX = 10


def read_varints(data: Bytes, positions: Numbers) -> tuple[Numbers, Numbers]:
    """The values at these positions, and where each ends. WireError beyond the data (which ends
    with PADDING bytes of its own), or of more than 64 bits."""
    if positions.size and int(positions.max()) >= data.size - PADDING:
        raise WireError("a record is cut short by the end of the batch")
    first = data[positions]
    values = (first & 0x7F).astype(np.uint64)
    ends = positions + 1
    more = np.flatnonzero(first >= 0x80)
    for number in range(1, _BYTES_MAX):
        if not more.size:
            break
        byte = data[ends[more]]
        values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        ends[more] += 1
        more = more[byte >= 0x80]
    if more.size:
        raise WireError("a varint of a record has more than 64 bits")
    sign = -(values & np.uint64(1)).astype(np.int64)
    return (values >> np.uint64(1)).astype(np.int64) ^ sign, ends


def record_ends(data: bytes, count: int) -> list[int]:
    """Where each of `count` records ends that lie back to back in `data`. Each begins where the
    length before it says, so no vector walks them. WireError unless the last one ends the data."""
    ends: list[int] = []
    position = odd = 0
    append = ends.append
    try:
        for _ in range(count):
            size = data[position]
            position += 1
            if size >= 0x80:
                byte = data[position]
                position += 1
                size = size & 0x7F | byte << 7
                if byte >= 0x80:
                    size, position = _long(data, size & 0x3FFF, position)
            odd |= size
            position += size >> 1
            append(position)
    except IndexError:
        raise WireError(f"record {len(ends)} is cut short by the end of the batch") from None
    if odd & 1:
        raise WireError("a record has a negative length")
    if position != len(data):
        raise WireError(f"{count} records end at byte {position} of {len(data)}")
    return ends


def _long(data: bytes, value: int, position: int) -> tuple[int, int]:
    """The rest of a length of three bytes or more. IndexError, WireError."""
    shift = 14
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise WireError("a record's length has more than 32 bits")


def read_varint(data: Sequence[int] | bytes, position: int) -> tuple[int, int]:
    """One value, and where it ends. IndexError, WireError."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise WireError("a varint of a record has more than 64 bits")

"""From ledger entries to what a fetch sends: whole record batches, as views, without copies.

Pure. Entries hold several batches; a reader wants those from an offset on, cut at a size. Only the
first and the last entry of a run are looked into batch by batch; all between go as one view each.

Compaction leaves batches without records (their headers tell of a producer, or where the log ends),
and clients that do not expect such stand still at an answer of nothing else. So they do not count
as the one batch that is given however small the limit is.
"""

from __future__ import annotations

from dataclasses import field
from struct import Struct
from typing import TYPE_CHECKING

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER,
    HEADER_SIZE,
    KIND_BATCHES,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

#: base offset, batch length, last offset delta, record count of a record batch v2 header.
_BATCH = Struct(">qi11xi30xi")
#: Behind every offset.
NO_END = 1 << 63
#: What `batch length` does not count: base offset and the length itself.
_BATCH_LENGTH_SKIP = 12


#: Without a record in so many bytes of batches, a tenth of a MiB of headers, others have a turn.
EMPTY_BYTES_MAX = 120_000


@dataclass(slots=True)
class Collected:
    """Batches of a run of entries, in order, ready to be sent."""

    parts: list[memoryview] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1  # where the next read goes on; -1: nothing was found
    full: bool = False  # the size limit, or the end offset, was reached
    entries_used: int = 0  # entries that were wholly consumed or skipped
    has_records: bool = False  # else there are batches without any, at most
    is_cut: bool = False  # there were many of these: the next call goes on, after a turn
    entries_read: int = 0  # all that were, for these batches and in vain; by whoever read them


def collect(
    payloads: Sequence[memoryview],
    offset: int,
    size_max: int,
    *,
    at_least_one: bool,
    end_offset: int = NO_END,
) -> Collected:
    """Takes the batches that end at or after `offset` until `size_max` bytes are reached, or a
    batch begins at `end_offset`; that is where a batch begins, also inside an entry.

    The first batch is taken whole even if it begins before `offset` (clients skip the head), and,
    with `at_least_one`, all up to the first that has records even if they are larger than
    `size_max`. A batch that spans entries of which
    some are missing at the end of `payloads` is left for the next call, as `entries_used` tells.
    """
    out = Collected()
    parts = out.parts
    size = 0
    unpack = HEADER.unpack_from
    number = empty_bytes = 0
    count = len(payloads)
    while number < count:
        payload = payloads[number]
        _, kind, flags, records, first = unpack(payload)
        number += 1
        if kind != KIND_BATCHES or first + records <= offset:
            out.entries_used = number
            continue
        if first >= end_offset:
            out.full = True
            break
        if flags:
            number = _collect_spanning(
                payloads, number - 1, size_max, at_least_one and not out.has_records, out, size
            )
            if out.full or number < 0:
                return out
            size = out.size_bytes
            continue
        body_size = len(payload) - HEADER_SIZE
        if first >= offset and size + body_size <= size_max and first + records <= end_offset:
            parts.append(payload[HEADER_SIZE:])
            size += body_size
            out.next_offset = first + records
            if not out.has_records:
                out.has_records = _has_records(payload)
        else:
            wants_one = at_least_one and not out.has_records
            limits = offset, end_offset, size_max
            size = _collect_some(payload, limits, size, wants_one, out)
            if out.full:
                out.size_bytes = size
                return out
        out.entries_used = number
        if not out.has_records:
            empty_bytes += body_size
            if empty_bytes >= EMPTY_BYTES_MAX and out.next_offset >= 0:
                out.is_cut = True
                break
    out.size_bytes = size
    return out


def _has_records(payload: memoryview) -> bool:
    """Whether any batch of the entry has some: mostly the first."""
    position, end = HEADER_SIZE, len(payload)
    while position < end:
        _, length, _, count = _BATCH.unpack_from(payload, position)
        if count:
            return True
        position += length + _BATCH_LENGTH_SKIP
    return False


def _collect_some(
    payload: memoryview,
    limits: tuple[int, int, int],
    size: int,
    at_least_one: bool,
    out: Collected,
) -> int:
    """Batch by batch through one entry; gives the new total size. `limits`: offset, end offset,
    largest size."""
    offset, end_offset, size_max = limits
    position = HEADER_SIZE
    end = len(payload)
    start = -1
    while position < end:
        base, length, delta, count = _BATCH.unpack_from(payload, position)
        batch_size = length + _BATCH_LENGTH_SKIP
        if base + delta >= offset:
            if base >= end_offset or (size + batch_size > size_max and not at_least_one):
                out.full = True
                break
            if count:
                at_least_one, out.has_records = False, True
            if start < 0:
                start = position
            size += batch_size
            out.next_offset = base + delta + 1
        position += batch_size
    if start >= 0:
        out.parts.append(payload[start:position])
    return size


def _collect_spanning(
    payloads: Sequence[memoryview],
    number: int,
    size_max: int,
    at_least_one: bool,
    out: Collected,
    size: int,
) -> int:
    """One batch that spans entries; gives the number of the entry after it, -1 if it is not all
    here (or if `payloads` begins in its middle, which the offset index never points to)."""
    _, _, flags, records, first = HEADER.unpack_from(payloads[number])
    parts: list[memoryview] = []
    batch_size = 0
    while True:
        parts.append(payloads[number][HEADER_SIZE:])
        batch_size += len(parts[-1])
        number += 1
        if not flags & FLAG_CONTINUES:
            break
        if number == len(payloads):
            out.size_bytes = size
            return -1
        flags = HEADER.unpack_from(payloads[number])[2]
        assert flags & FLAG_CONTINUED, "a spanning batch's entries are consecutive"
    if size + batch_size > size_max and not at_least_one:
        out.full = True
        out.size_bytes = size
        return number
    out.parts.extend(parts)
    out.size_bytes = size + batch_size
    out.next_offset = first + records
    out.entries_used = number
    out.has_records = True  # without any it would fit into an entry
    return number

"""A stream's offsets, and how far one micro-batch goes. Pure.

An offset as Spark logs it:

    {"v": 1, "parts": {"<topic id>-<partition>": <next offset to read>}}

A topic that was deleted and made again has another id, so it is not taken for the old one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
#: "<topic id>-<partition>"
PartKey = str
Offsets = dict[PartKey, int]
_KEY = re.compile(r".+-\d{1,10}", re.ASCII)


def to_offset(parts: Mapping[PartKey, int]) -> dict[str, Any]:
    return {"v": VERSION, "parts": dict(sorted(parts.items()))}


def from_offset(offset: Mapping[str, Any]) -> Offsets:
    """ValueError for what is not ours: another source's checkpoint, or a newer version's."""
    parts = offset.get("parts")
    if offset.get("v") != VERSION or not isinstance(parts, dict) or not _are_offsets(parts):
        raise ValueError(
            f"{dict(offset)!r} is no offset of this source: a checkpoint of another one cannot be"
            " gone on with; give its offsets as startingOffsets, and another checkpointLocation"
        )
    return parts


def _are_offsets(parts: dict[Any, Any]) -> bool:
    return all(
        isinstance(key, str) and _KEY.fullmatch(key) and type(value) is int and value >= 0
        for key, value in parts.items()
    )


def part_key(topic_id: object, partition: int) -> PartKey:
    return f"{topic_id}-{partition}"


def split_key(key: PartKey) -> tuple[str, int]:
    """(topic id, partition)"""
    topic_id, _, partition = key.rpartition("-")
    return topic_id, int(partition)


def limited(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Where to end so that at most `rows_max` offsets lie between: each partition gets its share of
    them by what waits in it, and one at least, so that a small one does not starve: then there are
    more than `rows_max` where more partitions wait, as in KafkaMicroBatchStream.rateLimit. What is
    in `end` only starts at its own end."""
    waiting = {key: max(end[key] - start.get(key, end[key]), 0) for key in end}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    least = sum(count > 0 for count in waiting.values())
    to_share = max(rows_max - least, 0)
    shares = {key: min(count, 1) for key, count in waiting.items()}
    for key, count in waiting.items():
        shares[key] += min(to_share * count // total, count - shares[key])
    left = max(rows_max - sum(shares.values()), 0)
    # What rounding left goes to those who wait for the most.
    for key in sorted(waiting, key=lambda each: (-waiting[each], each)):
        more = min(left, waiting[key] - shares[key])
        shares[key] += more
        left -= more
    return {key: start.get(key, end[key]) + shares[key] for key in end}


def rows_for_bytes(bytes_max: int, bytes_per_row: float) -> int:
    """About how many offsets have so many bytes; at least 1."""
    return max(int(min(bytes_max, 2**63) / max(bytes_per_row, 1.0)), 1)


def are_fewer(start: Offsets, end: Offsets, rows_min: int) -> bool:
    """Whether there are fewer than `rows_min` new offsets."""
    return sum(max(end[key] - start.get(key, end[key]), 0) for key in end) < rows_min

"""Where a share partition begins that nothing is stored of: share.auto.offset.reset (KIP-1106)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.partition import PartitionLog

BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+)(?:\.(?P<part>\d{1,9}))?S)?)?",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int:
    """Of an ISO-8601 duration, as Java's Duration.parse takes it. ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration")
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    part = int((match["part"] or "0").ljust(9, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + part


async def beginning(log: PartitionLog, reset: str, now_ms: int) -> int:
    """The offset. `reset` is a valid value of the setting, `now_ms` the wall clock's. KafkaError as
    `PartitionLog.offset_for_timestamp`."""
    if reset == "earliest":
        return log.log_start_offset
    if reset.startswith(BY_DURATION):
        found = await log.reader.offset_for_timestamp(
            now_ms - duration_ms(reset.removeprefix(BY_DURATION))
        )
        if found is not None:
            return found[0]
    return log.high_watermark

"""Settings of streams groups, by their Kafka names in snake_case with the unit last."""

from __future__ import annotations

from dataclasses import field

from broker.groups.streams.types import StreamsTimes
from wire.dataclass import dataclass


@dataclass(slots=True, frozen=True)
class StreamsSettings:
    """The broker's; `times` are of groups that have none of their own."""

    group_streams_max_size: int = 2**31 - 1
    times: StreamsTimes = field(default_factory=StreamsTimes)

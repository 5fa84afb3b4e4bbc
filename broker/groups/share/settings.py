"""Settings of share groups, by their Kafka names in snake_case with the unit last."""

from __future__ import annotations

from dataclasses import field

from broker.groups.share.types import ShareTimes
from wire.dataclass import dataclass


@dataclass(slots=True, frozen=True)
class ShareSettings:
    """The broker's; `times` are of groups that have none of their own."""

    #: The default first; there is one.
    group_share_assignors: tuple[str, ...] = ("simple",)
    group_share_max_size: int = 200
    group_share_initialize_retry_interval_ms: int = 30_000
    times: ShareTimes = field(default_factory=ShareTimes)

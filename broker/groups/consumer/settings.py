"""Settings of consumer groups, by their Kafka names in snake_case with the unit last."""

from __future__ import annotations

from dataclasses import field

from broker.groups.consumer.types import GroupTimes
from wire.dataclass import dataclass


@dataclass(slots=True, frozen=True)
class ConsumerSettings:
    """The broker's; `times` are of groups that have none of their own."""

    #: The default first.
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_max_size: int = 2**31 - 1
    #: Which ways a group may go between the protocols while it has members.
    may_upgrade: bool = True
    may_downgrade: bool = True
    group_consumer_regex_refresh_interval_ms: int = 600_000
    times: GroupTimes = field(default_factory=GroupTimes)

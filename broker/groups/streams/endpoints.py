"""Where the application answers queries of its state, and of which partitions (KIP-535 by way of
KIP-1071): what a member is told of the others. Pure.

Only members that have an endpoint are in it. A task is told as the partitions of that number, of
all topics that its subtopology reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.streams.group import NOTHING_HELD
from broker.groups.streams.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from broker.groups.streams.group import StreamsGroup
    from broker.groups.streams.topology_core import Configured


def endpoints(group: StreamsGroup, configured: Configured) -> list[Endpoint]:
    """Of the group as it is now."""
    found = []
    for member_id, member in group.members.items():
        if member.user_endpoint is None:
            continue
        assigned = group.current.get(member_id, NOTHING_HELD).assigned
        host, port = member.user_endpoint
        found.append(
            Endpoint(
                *(host, port),
                _partitions(assigned.active, configured),
                _partitions(assigned.standby, configured),
            )
        )
    return found


def _partitions(
    tasks: Mapping[str, Collection[int]], configured: Configured
) -> dict[str, list[int]]:
    partitions: dict[str, list[int]] = {}
    for subtopology_id, numbers in tasks.items():
        known = configured.subtopologies.get(subtopology_id)
        if known is None:
            continue
        for topic, count in known.read.items():
            fitting = sorted(number for number in numbers if number < count)
            if fitting:
                partitions.setdefault(topic, []).extend(fitting)
    return partitions

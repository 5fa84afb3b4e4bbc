"""Where the application answers queries of its state, and of which partitions (KIP-535 by way of
KIP-1071): what a member is told of the others. Pure.

Only members that have an endpoint are in it. A task is told as the partitions of that number, of
all topics that its subtopology reads.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from broker.groups.streams.group import NOTHING_HELD
from broker.groups.streams.types import Endpoint, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from broker.groups.streams.group import StreamsGroup
    from broker.groups.streams.topology_core import Configured


#: Numbers that are looked at in a microsecond.
NUMBERS_PER_UNIT = 5


def endpoints(group: StreamsGroup, configured: Configured) -> Steps[list[Endpoint]]:
    """Of the group as it is, in steps: there may be as many numbers as partitions are read, and
    copies of them. Of a member that changes meanwhile it has what is new: the epoch that is told
    with it is older then, so its reader asks again."""
    found = []
    for member_id, member in list(group.members.items()):
        yield 1
        if member.user_endpoint is None:
            continue
        assigned = group.current.get(member_id, NOTHING_HELD).assigned
        host, port = member.user_endpoint
        active = yield from _partitions(assigned.active, configured)
        standby = yield from _partitions(assigned.standby, configured)
        found.append(Endpoint(host, port, active, standby))
    return found


def _partitions(
    tasks: Mapping[str, Collection[int]], configured: Configured
) -> Steps[dict[str, list[int]]]:
    partitions: dict[str, list[int]] = {}
    for subtopology_id, unsorted in tasks.items():
        known = configured.subtopologies.get(subtopology_id)
        if known is None:
            continue
        numbers = sorted(unsorted)
        yield len(numbers) // NUMBERS_PER_UNIT
        for topic, count in known.read.items():
            fitting = numbers[: bisect_left(numbers, count)]
            yield 1 + len(fitting) // NUMBERS_PER_UNIT
            if fitting:
                partitions.setdefault(topic, []).extend(fitting)
    return partitions

"""Acknowledgements as requests have them, checked before anything is changed. Pure.

Kafka's rules: batches ascend and do not overlap, none is empty, and each has one type for all of
its offsets or one for each of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from broker.share.partition.runs import ACKNOWLEDGED, ARCHIVED, AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from wire.kafka.messages.share_groups import AcknowledgementBatch

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
#: What a record is then, by type. One that was released for the last time is archived instead.
STATE_OF = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}

#: What a batch costs to check, in microseconds, and how many of its types one.
BATCH_UNITS, TYPES_PER_UNIT = 2, 100

_TYPES = bytes([GAP, ACCEPT, RELEASE, REJECT])
_SAME = re.compile(rb"(.)\1*", re.DOTALL)


class Acknowledgement(NamedTuple):
    """`types`: one byte for all offsets, or one for each."""

    first: int
    last: int
    types: bytes

    def pieces(self, start: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, type) of the offsets from `start` on, as few as there may be."""
        first = max(self.first, start)
        if len(self.types) == 1:
            if first <= self.last:
                yield first, self.last, self.types[0]
            return
        for match in _SAME.finditer(self.types, first - self.first):
            yield self.first + match.start(), self.first + match.end() - 1, match[0][0]


def checked(
    batches: Sequence[AcknowledgementBatch], *, may_renew: bool
) -> Generator[int, None, list[Acknowledgement] | None]:
    """None: INVALID_REQUEST. In steps of some microseconds: a partition may have 100,000 batches,
    and one of these as many types, which take about a millisecond."""
    allowed = _TYPES + bytes([RENEW]) if may_renew else _TYPES
    found = []
    before = -1
    for batch in batches:
        yield BATCH_UNITS + len(batch.acknowledge_types) // TYPES_PER_UNIT
        first, last = batch.first_offset, batch.last_offset
        if first <= before or last < first:
            return None
        try:
            types = bytes(batch.acknowledge_types)
        except ValueError:  # negative
            return None
        if len(types) not in (1, last - first + 1) or types.translate(None, allowed):
            return None
        found.append(Acknowledgement(first, last, types))
        before = last
    return found

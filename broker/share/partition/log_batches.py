"""From what was read of a log to the batches that can be acquired, and back to what is sent. Pure.

A batch's header says all that is needed: nothing is decompressed. Batches of aborted transactions
are found by producer id and offsets (read_committed), as the list of them gives these. A read may
have thousands of small batches: no more than BATCHES_MAX are looked at, and the rest is left for
the next fetch.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from broker.share.partition.acquiring import LogBatch
from wire.kafka.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.transactions.aborted_index import AbortedTransaction

#: base offset, batch length, attributes, last offset delta, producer id, record count.
_BATCH = Struct(">qi9xhi16xq6xi")
_LENGTH_SKIP = 12
#: Some 1 ms.
BATCHES_MAX = 500


class LogBatches:
    """The batches of one read, and where each is in it."""

    __slots__ = ("_places", "batches")

    def __init__(
        self, parts: Sequence[memoryview], aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """`parts`: whole batches, of which a part may have several and one may have several parts.
        `aborted`: what the read is to be without."""
        self.batches: list[LogBatch] = []
        #: Of each the number of its part and where in that it begins; and one behind the last.
        self._places: list[tuple[int, int]] = []
        by_producer: dict[int, list[AbortedTransaction]] = {}
        for each in aborted:
            by_producer.setdefault(each.producer_id, []).append(each)
        self._walk(parts, by_producer)

    def _walk(
        self, parts: Sequence[memoryview], aborted: dict[int, list[AbortedTransaction]]
    ) -> None:
        number, position = 0, 0
        while number < len(parts) and len(self.batches) < BATCHES_MAX:
            part = parts[number]
            base, length, attributes, delta, producer, count = _BATCH.unpack_from(part, position)
            is_hidden = not count or attributes & CONTROL_MASK != 0
            if attributes & TRANSACTIONAL_MASK and producer in aborted:
                is_hidden |= any(
                    each.first_offset <= base <= each.last_offset for each in aborted[producer]
                )
            self.batches.append(LogBatch(base, base + delta, is_hidden))
            self._places.append((number, position))
            position += length + _LENGTH_SKIP
            while number < len(parts) and position >= len(parts[number]):
                position -= len(parts[number])
                number += 1
        self._places.append((number, position))

    def cut(self, parts: Sequence[memoryview], first: int, last: int) -> list[memoryview]:
        """The batches from that of offset `first` to that of `last`, as views."""
        begin = next(n for n, batch in enumerate(self.batches) if batch.last >= first)
        end = begin
        while end < len(self.batches) and self.batches[end].first <= last:
            end += 1
        first_part, start = self._places[begin]
        last_part, stop = self._places[end]
        found = list(parts[first_part:last_part])
        if stop:
            found.append(parts[last_part][:stop])
        found[0] = found[0][start:]
        return found

"""UndecidedMarkers: transactions whose marker is in the log, but not yet below the high watermark.

The last stable offset (KIP-98) is the least of three: the high watermark, the first offset of any
open transaction, and the first offset of any transaction that has ended with a marker at or above
the high watermark. The third is what is kept here. The producers' state forgets a transaction when
its marker is queued. Without the third term the last stable offset would jump to the high watermark
then, and a reader would be given data of which nobody knows yet whether they were committed: the
list of aborted transactions does not name them, and a take-over may find that the marker was lost.

Pure. Markers come in the order of their offsets and leave it from the front, so what is kept is a
queue for the minimum of a sliding window: each step is O(1), spread over the markers.
"""

from __future__ import annotations

from collections import deque


class UndecidedMarkers:
    __slots__ = ("_ended",)

    def __init__(self) -> None:
        #: (first offset of the transaction, offset of its marker); both rise from front to back.
        self._ended: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._ended)

    def ended(self, first_offset: int, marker_offset: int) -> None:
        """A marker was numbered for a transaction that was open."""
        ended = self._ended
        assert first_offset < marker_offset
        assert not ended or ended[-1][1] < marker_offset, "markers come in their order"
        # A later marker is decided later: who begins at or behind its transaction never counts.
        while ended and ended[-1][0] >= first_offset:
            ended.pop()
        ended.append((first_offset, marker_offset))

    def first_offset(self, high_watermark: int) -> int | None:
        """The least first offset of all whose marker is at or above `high_watermark`, which never
        falls."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        return ended[0][0] if ended else None

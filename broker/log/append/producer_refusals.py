"""Which new producers were refused at one partition, and from which batch on: pure, no clock.

A producer sends several batches at once (five, as clients do it). If its first is refused, for
want of room say, and the second one finds room, that would be taken as the first of somebody whose
past was deleted, and the retry of the first would come behind it or never. So the first batch that
was refused is remembered, and those behind it are refused until it came.

Bounded: NOTES_MAX of a partition, and as many as the broker has `Room` for. What there was no
place for is not remembered by name; then every producer that is not known has to begin at 0, for as
long as a note would have been kept. Who went on in the middle because it was forgotten here begins
a new epoch after that, as it does after records that were lost.
"""

from collections import OrderedDict

from broker.log.append.producer_snapshot import SEQUENCE_MASK
from broker.log.append.producer_store import Room
from wire.kafka.records.batch import BatchHeader

NOTES_MAX = 500
# Sequence numbers wrap: what is further behind than this is before.
_BEHIND_MAX = 2**30


class ProducerRefusals:
    """The notes of one partition. They count in a Room that is given, until `leave`."""

    __slots__ = ("_notes", "_unnamed_ms")

    def __init__(self) -> None:
        #: By id: epoch, first sequence number, when it was noted first.
        self._notes: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        #: When there was no place for one last.
        self._unnamed_ms: int | None = None

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, header: BatchHeader, now_ms: int, room: Room | None) -> None:
        """The batch of a producer that is not known was refused; one that comes before the noted
        one, or is of a higher epoch, takes its place."""
        if header.base_sequence < 0:
            return
        noted = self._notes.get(header.producer_id)
        if noted is not None:
            epoch, sequence, noted_ms = noted
            if header.producer_epoch < epoch:
                return
            if header.producer_epoch == epoch and not _is_before(header.base_sequence, sequence):
                return
        else:
            noted_ms = now_ms
            is_full = room is not None and room.noted_count >= room.noted_max
            if is_full or len(self._notes) >= NOTES_MAX:
                self._unnamed_ms = now_ms
                return
            if room is not None:
                room.noted_count += 1
        self._notes[header.producer_id] = header.producer_epoch, header.base_sequence, noted_ms

    def must_wait(self, header: BatchHeader) -> bool:
        """Whether a batch of this one, which is not known, is to come before this batch."""
        if header.base_sequence < 0:
            return False
        noted = self._notes.get(header.producer_id)
        if noted is None:
            return self._unnamed_ms is not None and header.base_sequence != 0
        epoch, sequence, _ = noted
        if header.producer_epoch != epoch:
            return header.producer_epoch > epoch and header.base_sequence != 0
        return header.base_sequence != sequence and not _is_before(header.base_sequence, sequence)

    def forget(self, producer_id: int, room: Room | None) -> None:
        """It is known from now on."""
        if self._notes.pop(producer_id, None) is not None and room is not None:
            room.noted_count -= 1

    def expire(self, latest_ms: int, room: Room | None) -> None:
        """Forgets what was noted then or earlier."""
        while self._notes:
            producer_id = next(iter(self._notes))
            if self._notes[producer_id][2] > latest_ms:
                break
            self.forget(producer_id, room)
        if self._unnamed_ms is not None and self._unnamed_ms <= latest_ms:
            self._unnamed_ms = None

    def leave(self, room: Room | None) -> None:
        """The partition does not serve any more."""
        if room is not None:
            room.noted_count -= len(self._notes)
        self._notes.clear()


def _is_before(sequence: int, other: int) -> bool:
    return (sequence - other) & SEQUENCE_MASK > _BEHIND_MAX

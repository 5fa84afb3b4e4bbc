"""Where a partition keeps its producers: the latest as objects, all others as bytes, by age.

The HOT_MAX producers that appended last are objects (up to 1.5 KiB each), all others the bytes that
a snapshot has of them (some 270 bytes with what finds them): 20,000 of a partition take 6 MB, and
one turn of the loop takes hold of them for a snapshot (2 us for each object, hardly anything for
the others, which are encoded in later turns). Both maps are in the
order of the last append, so that expiry looks at the oldest alone; a clock that steps back makes it
late, never early.

Owner of the state: ProducerState, which says what may be changed when.
"""

from collections import OrderedDict
from collections.abc import Container
from itertools import starmap

from broker.log.append.producer_snapshot import (
    Producer,
    last_append_of,
    pack_producer,
    unpack_producer,
)

HOT_MAX = 500
#: At some 250 bytes each.
NOTED_MAX = 20_000


class Room:
    """How many producers the partitions of a broker know together, and may know."""

    __slots__ = ("count", "count_max", "noted_count", "noted_max", "refused_count")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.count = 0
        #: Batches of new producers that were refused.
        self.refused_count = 0
        #: Refused ones that are remembered (broker/log/append/producer_refusals.py).
        self.noted_count = 0
        self.noted_max = NOTED_MAX


class ProducerStore:
    """Producers by id. They count in `room` while it is set (by `enter`)."""

    __slots__ = ("_cold", "_hot", "_hot_max", "room")

    def __init__(self, hot_max: int = HOT_MAX) -> None:
        # Both with the one that appended last at the end; those in _cold did before all in _hot.
        self._cold: OrderedDict[int, bytes] = OrderedDict()
        self._hot: OrderedDict[int, Producer] = OrderedDict()
        self._hot_max = hot_max
        self.room: Room | None = None

    def __len__(self) -> int:
        return len(self._hot) + len(self._cold)

    def ids(self) -> list[int]:
        """The one that has not appended for the longest first."""
        return [*self._cold, *self._hot]

    def packed(self) -> list[bytes]:
        """All of them as bytes, in the order of `ids`."""
        return [*self._cold.values(), *starmap(pack_producer, self._hot.items())]

    def enter(self, room: Room) -> None:
        assert self.room is None
        self.room = room
        room.count += len(self)

    def leave(self) -> None:
        if self.room is not None:
            self.room.count -= len(self)
            self.room = None

    def find(self, producer_id: int) -> Producer | None:
        """What is known of it; a change is kept only by `put`."""
        producer = self._hot.get(producer_id)
        if producer is None and (packed := self._cold.get(producer_id)) is not None:
            producer = unpack_producer(packed)
        return producer

    def put(self, producer_id: int, producer: Producer) -> None:
        """It was changed, or is from elsewhere. One that is known keeps its place."""
        if producer_id in self._cold:
            self._cold[producer_id] = pack_producer(producer_id, producer)
        else:
            self._hot[producer_id] = producer

    def latest(self, producer_id: int) -> Producer | None:
        """The producer, which appends now and may be changed; None if it is not known."""
        producer = self._hot.get(producer_id)
        if producer is not None:
            self._hot.move_to_end(producer_id)
            return producer
        packed = self._cold.pop(producer_id, None)
        if packed is None:
            return None
        producer = self._hot[producer_id] = unpack_producer(packed)
        self._cool_down()
        return producer

    def add(self, producer_id: int) -> Producer:
        """A new one, which appends now."""
        producer = self._hot[producer_id] = Producer()
        if self.room is not None:
            self.room.count += 1
        self._cool_down()
        return producer

    def _cool_down(self) -> None:
        while len(self._hot) > self._hot_max:
            producer_id, producer = self._hot.popitem(last=False)
            self._cold[producer_id] = pack_producer(producer_id, producer)

    def remove(self, producer_id: int) -> None:
        if self._cold.pop(producer_id, None) is None:
            del self._hot[producer_id]
        if self.room is not None:
            self.room.count -= 1

    def replace(self, packed: OrderedDict[int, bytes]) -> None:
        """With those of a snapshot, in its order."""
        assert self.room is None
        self._cold, self._hot = packed, OrderedDict()

    def oldest(self, held: Container[int]) -> tuple[int, int] | None:
        """(id, last append in ms) of the one that appended first; those in `held`, which are few,
        are passed over."""
        for producer_id, packed in self._cold.items():
            if producer_id not in held:
                return producer_id, last_append_of(packed)
        for producer_id, producer in self._hot.items():
            if producer_id not in held:
                return producer_id, producer.last_append_ms
        return None

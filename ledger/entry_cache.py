"""EntryCache: entries of ledgers, in memory, for those who read from bookies over a network.

Two parts, each bounded in bytes and evicted oldest first:

- the tail: what this client's writers appended, put there as it is sent (feature 36,
  EntryCacheImpl). Readers of the end of a partition never go to a bookie.
- what was read: runs that one reader fetched, for the others that read the same old data. A scan
  evicts only what was read before, never the tail.

Readers that want the same run while it is on its way wait for it, instead of asking again.

An entry's content never changes: a ledger has one writer, and recovery copies what that wrote. So a
cached entry is right whatever becomes of its ledger, also one that was never confirmed: how far a
reader may go is its LAC's affair. What is kept is copied once, out of buffers that others share.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wire.buffers import Buffers

#: What an entry costs beside its bytes.
ENTRY_OVERHEAD_BYTES = 256
#: Of the whole, what the tail may take.
TAIL_SHARE = 0.75
#: A read of old data asks for so much at least: consumers read on.
READ_AHEAD_BYTES = 2 << 20
#: How often a reader waits for others' reads before it asks by itself, whatever they bring.
WAITS_MAX = 2
#: Ledgers whose entries' size is remembered.
AVERAGES_MAX = 1_000


class _Part:
    """One bounded store of entries, in the order in which they came."""

    __slots__ = ("_entries", "_size_max", "evicted", "size_bytes")

    def __init__(self, size_max: int) -> None:
        self._entries: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._size_max = size_max
        self.size_bytes = 0
        #: Entries that went, as there was no room for all.
        self.evicted = 0

    def put(self, ledger_id: int, entry_id: int, payload: memoryview) -> None:
        key = ledger_id, entry_id
        entries = self._entries
        if key in entries:
            return
        entries[key] = payload
        self.size_bytes += len(payload) + ENTRY_OVERHEAD_BYTES
        while self.size_bytes > self._size_max:
            _, oldest = entries.popitem(last=False)
            self.size_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES
            self.evicted += 1

    def run(self, ledger_id: int, first: int, count_max: int, size_max: int) -> list[memoryview]:
        """Consecutive entries from `first` on, as far as they are here; the first one whatever its
        size."""
        entries = self._entries
        payload = entries.get((ledger_id, first))
        if payload is None:
            return []
        payloads = [payload]
        size = len(payload)
        for entry_id in range(first + 1, first + count_max):
            payload = entries.get((ledger_id, entry_id))
            if payload is None:
                break
            size += len(payload)
            if size > size_max:
                break
            payloads.append(payload)
        return payloads

    def __len__(self) -> int:
        return len(self._entries)


class EntryCache:
    """`size_max_bytes` for both parts together."""

    __slots__ = (
        *("_averages", "_pending", "_read", "_read_ahead", "_tail"),
        *("hits", "misses", "shared", "size_max_bytes"),
    )

    def __init__(self, size_max_bytes: int) -> None:
        assert size_max_bytes > 0
        self.size_max_bytes = size_max_bytes
        tail = int(size_max_bytes * TAIL_SHARE)
        self._tail = _Part(tail)
        self._read = _Part(size_max_bytes - tail)
        # Its own end must not evict its beginning.
        self._read_ahead = min(READ_AHEAD_BYTES, (size_max_bytes - tail) // 4)
        #: Of each ledger, the runs that are on their way: first entry, the entry after the last one
        #: that will probably come, and who waits.
        self._pending: dict[int, list[tuple[int, int, trio.Event]]] = {}
        #: Bytes of an entry of the ledger, by the last run that was read of it.
        self._averages: OrderedDict[int, int] = OrderedDict()
        #: Reads that were served from here, and that asked bookies.
        self.hits = 0
        self.misses = 0
        #: Reads that waited for another's instead of asking.
        self.shared = 0

    @property
    def size_bytes(self) -> int:
        return self._tail.size_bytes + self._read.size_bytes

    @property
    def evicted(self) -> int:
        """Entries, of both parts, that went for want of room."""
        return self._tail.evicted + self._read.evicted

    def __len__(self) -> int:
        """Entries that are here."""
        return len(self._tail) + len(self._read)

    def appended(self, ledger_id: int, entry_id: int, payload: Buffers) -> None:
        """A writer sends it now. Copies it."""
        self._tail.put(ledger_id, entry_id, memoryview(b"".join(payload)))

    def run(self, ledger_id: int, first: int, count_max: int, size_max: int) -> list[memoryview]:
        """Consecutive payloads from `first` on; none if that one is not here."""
        payloads = self._tail.run(ledger_id, first, count_max, size_max)
        if not payloads:
            payloads = self._read.run(ledger_id, first, count_max, size_max)
        if payloads:
            self.hits += 1
        return payloads

    async def read(
        self,
        ledger_id: int,
        first: int,
        count_max: int,
        size_max: int,
        fetch: Callable[[int, int, int], Awaitable[list[memoryview]]],
    ) -> list[memoryview]:
        """From here, or by `fetch(first, count_max, size_max)`, which is asked for more than is
        wanted now. Raises what `fetch` raises; one that waited for another's fetch that failed
        makes its own."""
        payloads = self.run(ledger_id, first, count_max, size_max)
        if payloads:
            return payloads
        for _ in range(WAITS_MAX):
            waited = self._find_pending(ledger_id, first)
            if waited is None:
                break
            self.shared += 1
            await waited.wait()
            payloads = self.run(ledger_id, first, count_max, size_max)
            if payloads:
                return payloads
        payloads = await self._fetch(ledger_id, first, count_max, size_max, fetch)
        return _cut(payloads, size_max)

    def _find_pending(self, ledger_id: int, entry_id: int) -> trio.Event | None:
        for first, end, event in self._pending.get(ledger_id, ()):
            if first <= entry_id < end:
                return event
        return None

    async def _fetch(
        self,
        ledger_id: int,
        first: int,
        count_max: int,
        size_max: int,
        fetch: Callable[[int, int, int], Awaitable[list[memoryview]]],
    ) -> list[memoryview]:
        size_wanted = max(size_max, self._read_ahead)
        average = self._averages.get(ledger_id, size_wanted)
        mine = first, first + max(1, min(count_max, size_wanted // average)), trio.Event()
        runs = self._pending.setdefault(ledger_id, [])
        runs.append(mine)
        self.misses += 1
        try:
            found = await fetch(first, count_max, size_wanted)
            payloads = [memoryview(bytes(payload)) for payload in found]
            for entry_id, payload in enumerate(payloads, first):
                self._read.put(ledger_id, entry_id, payload)
            self._note_average(ledger_id, payloads)
            return payloads
        finally:
            runs.remove(mine)
            if not runs:
                self._pending.pop(ledger_id, None)
            mine[2].set()

    def _note_average(self, ledger_id: int, payloads: Sequence[memoryview]) -> None:
        self._averages[ledger_id] = max(1, sum(map(len, payloads)) // max(1, len(payloads)))
        self._averages.move_to_end(ledger_id)
        if len(self._averages) > AVERAGES_MAX:
            self._averages.popitem(last=False)


def _cut(payloads: Sequence[memoryview], size_max: int) -> list[memoryview]:
    """As much as was wanted, at least one."""
    size = 0
    for number, payload in enumerate(payloads):
        size += len(payload)
        if number and size > size_max:
            return list(payloads[:number])
    return list(payloads)

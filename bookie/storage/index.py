"""The index: (ledger, entry) -> location in an entry log, and each ledger's state.

Keys and values are BookKeeper's (docs/formats.md, «Index»): in `locations`
`ledger id i64, entry id i64 -> log id << 32 | offset`, in `ledgers` `ledger id i64 -> LedgerData`.

Two implementations: `RocksIndex` (rocks_index.py) and, for simulations, `MemoryIndex`.
Only the flush writes. What was put may be read at once, and is durable after `sync`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class EntryIndex(Protocol):
    def open(self, *, must_exist: bool = False) -> None:
        """May block for as long as a database takes to open. BookieStartError if it cannot be
        opened, or, with `must_exist`, is not there."""

    @property
    def stamps(self) -> tuple[int, int]:
        """Numbers of the last syncs that made something durable in `locations` and in `ledgers`.
        They are kept in the databases, behind what they stand for: whoever remembers them sees
        whether anything that was durable then is gone."""

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The location, 0 if there is none."""

    def get_many(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        """As `get`, of a few hundred (ledger id, entry id), in their order. OSError."""

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id of the ledger, -1 if it has none here."""

    def with_entries(self, ledger_ids: Sequence[int]) -> list[int]:
        """Those of these ledgers (ascending, a few hundred) that have entries here. OSError."""

    def entry_ids(self, ledger_id: int, after: int, count_max: int) -> list[int]:
        """The ledger's next entry ids behind `after`, ascending, at most so many."""

    def locations(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, entry id, location) of all, in this order; others may write meanwhile.
        BookieStartError where the index cannot be read."""

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        """Of one ledger, a few hundred at a time: it runs on the loop's thread. OSError."""

    def delete_entries(self, ledger_ids: Iterable[int]) -> None:
        """All locations of these ledgers, a few hundred at a time; their state stays. OSError."""

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """All locations and the state of these ledgers, a few hundred at a time. OSError."""

    def put_ledgers(self, states: Iterable[tuple[int, bytes]]) -> None:
        """As many. OSError."""

    def ledgers(self) -> list[tuple[int, bytes]]:
        """All ledgers' states."""

    def sync(self) -> None:
        """Makes all that was put before durable; blocks. OSError."""

    def mend(self) -> None:
        """After a write that found no space (`is_full`): makes the index take writes again, with
        all that was put. On the loop's thread, and it may block for a moment. OSError: `is_full`
        if there is still no space, and nothing has changed; else the index is of no more use."""

    def compact(self) -> None:
        """Rewrites `locations` without what was deleted (entryLocationCompactionInterval): blocks
        for seconds, on a worker thread; all else goes on meanwhile. OSError."""

    def close(self) -> None: ...


class _Tables:
    __slots__ = ("ledgers", "locations", "sorted_ids", "stamps")

    def __init__(self) -> None:
        self.stamps = (0, 0)
        self.locations: dict[int, dict[int, int]] = {}
        self.sorted_ids: dict[int, list[int]] = {}
        self.ledgers: dict[int, bytes] = {}

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        entries = self.locations.setdefault(ledger_id, {})
        ids = self.sorted_ids.setdefault(ledger_id, [])
        for entry_id, location in zip(entry_ids, locations, strict=True):
            if entry_id not in entries:
                insort(ids, entry_id)
            entries[entry_id] = location

    def delete_entries(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self.locations.pop(ledger_id, None)
            self.sorted_ids.pop(ledger_id, None)

    def delete(self, ledger_ids: Sequence[int]) -> None:
        self.delete_entries(ledger_ids)
        for ledger_id in ledger_ids:
            self.ledgers.pop(ledger_id, None)

    def copy(self) -> _Tables:
        other = _Tables()
        other.locations = {ledger: dict(entries) for ledger, entries in self.locations.items()}
        other.sorted_ids = {ledger: list(ids) for ledger, ids in self.sorted_ids.items()}
        other.ledgers = dict(self.ledgers)
        other.stamps = self.stamps
        return other


class MemoryIndex:
    """An index that forgets at a `crash` all that was put after the last `sync`.

    The simulation keeps the object, hands it to each incarnation of its bookie, and calls `crash`
    when it crashes the disk."""

    __slots__ = ("_durable", "_tables", "_unsynced")

    def __init__(self) -> None:
        self._tables = _Tables()
        self._durable = _Tables()
        #: What was done to `_tables` and not to `_durable` yet.
        self._unsynced: list[Callable[[_Tables], None]] = []

    def open(self, *, must_exist: bool = False) -> None:
        return

    @property
    def stamps(self) -> tuple[int, int]:
        return self._tables.stamps

    def close(self) -> None:
        return

    def mend(self) -> None:
        return

    def crash(self) -> None:
        self._tables = self._durable.copy()
        self._unsynced.clear()

    def sync(self) -> None:
        if not self._unsynced:
            return
        for change in self._unsynced:
            change(self._durable)
        self._unsynced.clear()
        locations, ledgers = self._durable.stamps
        self._tables.stamps = self._durable.stamps = (locations + 1, ledgers + 1)

    def get(self, ledger_id: int, entry_id: int) -> int:
        return self._tables.locations.get(ledger_id, {}).get(entry_id, 0)

    def get_many(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        return [self.get(ledger_id, entry_id) for ledger_id, entry_id in keys]

    def compact(self) -> None:
        return

    def last_entry_id(self, ledger_id: int) -> int:
        ids = self._tables.sorted_ids.get(ledger_id)
        return ids[-1] if ids else -1

    def with_entries(self, ledger_ids: Sequence[int]) -> list[int]:
        return [i for i in ledger_ids if self._tables.sorted_ids.get(i)]

    def entry_ids(self, ledger_id: int, after: int, count_max: int) -> list[int]:
        ids = self._tables.sorted_ids.get(ledger_id, [])
        start = bisect_right(ids, after)
        return ids[start : start + count_max]

    def locations(self) -> Iterator[tuple[int, int, int]]:
        tables = self._tables.copy()
        for ledger_id, ids in sorted(tables.sorted_ids.items()):
            for entry_id in ids:
                yield ledger_id, entry_id, tables.locations[ledger_id][entry_id]

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        ids, places = list(entry_ids), list(locations)
        self._do(lambda tables: tables.put(ledger_id, ids, places))

    def delete_entries(self, ledger_ids: Iterable[int]) -> None:
        ids = list(ledger_ids)
        self._do(lambda tables: tables.delete_entries(ids))

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        ids = list(ledger_ids)
        self._do(lambda tables: tables.delete(ids))

    def put_ledgers(self, states: Iterable[tuple[int, bytes]]) -> None:
        items = list(states)
        self._do(lambda tables: tables.ledgers.update(items))

    def _do(self, change: Callable[[_Tables], None]) -> None:
        change(self._tables)
        self._unsynced.append(change)

    def ledgers(self) -> list[tuple[int, bytes]]:
        return sorted(self._tables.ledgers.items())

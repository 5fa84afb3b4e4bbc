"""RocksIndex: the index in two RocksDB databases, with BookKeeper's keys, values and options.

How they are written, synced and opened is in bookie/storage/rocks_database.py.

A deleted ledger's locations go with a range deletion. Until a compaction drops them, whoever looks
for the last entry of a ledger that has none passes the deletions next to it, one after the other,
so deleted neighbours share one, and what was asked is remembered.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from rocksdict import WriteBatch

from bookie.errors import BookieStartError, IndexReadError
from bookie.storage.rocks_database import Database, ledgers_options, locations_options
from runtime.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rocksdict import RdictIter

_KEY = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_pack_key = _KEY.pack
_pack_location = _I64.pack
_unpack_location = _I64.unpack
ENTRY_ID_MAX = (1 << 63) - 1
#: Above all ledgers' ids.
NO_LEDGER_ID = 1 << 63
#: Ledgers whose last entry is remembered: some 200 bytes each.
LAST_ENTRY_IDS_MAX = 20_000
#: Range deletions among others' keys in memory: so many, or any among so many bytes.
DELETIONS_IN_MEMORY_MAX = 100
DELETIONS_MEMORY_SIZE_MAX_BYTES = 256 * 1024


class RocksIndex:
    """See `index.EntryIndex`. `directory` gets the databases `locations` and `ledgers`."""

    def __init__(self, directory: str, block_cache_size_bytes: int) -> None:
        self._directory = directory
        self._block_cache_size_bytes = block_cache_size_bytes
        self._locations: Database | None = None
        self._ledgers: Database | None = None
        self._get: Callable[[bytes], bytes | None]
        #: The flush and compaction both sync, on worker threads.
        self._syncing = Mutex()
        #: Range deletions that are in memory, and not in a table.
        self._deletions_in_memory = 0
        #: Of ledgers that were asked for lately. Whatever is put or deleted goes through here.
        self._last_entry_ids: dict[int, int] = {}

    def open(self, *, must_exist: bool = False) -> None:
        self._locations = Database(
            f"{self._directory}/locations",
            locations_options(self._block_cache_size_bytes),
            must_exist=must_exist,
        )
        try:
            self._ledgers = Database(
                f"{self._directory}/ledgers", ledgers_options(), must_exist=must_exist
            )
        except BaseException:
            self.close()
            raise
        self._get = self._locations.rocks.get

    def close(self) -> None:
        for database in (self._locations, self._ledgers):
            if database is not None:
                with suppress(Exception) if database.is_stuck else nullcontext():
                    database.rocks.close()
        self._locations = self._ledgers = None

    def mend(self) -> None:
        assert self._locations is not None
        assert self._ledgers is not None
        if not (self._locations.is_stuck or self._ledgers.is_stuck):
            return
        if not self._syncing.acquire(blocking=False):
            # It is not to be closed meanwhile; who asks tries again.
            raise OSError(errno.ENOSPC, "the index is being synced", self._directory)
        try:
            self._mend(self._locations, self._ledgers)
        finally:
            # Also if there was space for the first of them only.
            self._get = self._locations.rocks.get
            self._last_entry_ids.clear()
            self._syncing.release()

    def _mend(self, *databases: Database) -> None:
        for database in databases:
            if database.is_stuck:
                status = os.statvfs(database.path)
                database.mend(status.f_bavail * status.f_frsize)

    @property
    def stamps(self) -> tuple[int, int]:
        assert self._locations is not None
        assert self._ledgers is not None
        return self._locations.stamp, self._ledgers.stamp

    def begin_stamps(self, stamps: tuple[int, int]) -> None:
        """For an index that is made anew, in place of one that had these."""
        assert self._locations is not None
        assert self._ledgers is not None
        self._locations.begin_stamps(stamps[0])
        self._ledgers.begin_stamps(stamps[1])

    def get(self, ledger_id: int, entry_id: int) -> int:
        try:
            value = self._get(_pack_key(ledger_id, entry_id))
        except Exception as error:  # rocksdict has no class of its own
            raise self._unreadable(error) from error
        return _unpack_location(value)[0] if value is not None else 0

    def get_many(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        assert self._locations is not None
        try:
            values: Any = self._locations.rocks.get([_pack_key(*key) for key in keys])
        except Exception as error:  # rocksdict has no class of its own
            raise self._unreadable(error) from error
        return [_unpack_location(value)[0] if value is not None else 0 for value in values]

    def last_entry_id(self, ledger_id: int) -> int:
        last = self._last_entry_ids.get(ledger_id)
        if last is None:
            last = self._find_last_entry_id(ledger_id)
            if len(self._last_entry_ids) >= LAST_ENTRY_IDS_MAX:
                del self._last_entry_ids[next(iter(self._last_entry_ids))]
            self._last_entry_ids[ledger_id] = last
        return last

    def _find_last_entry_id(self, ledger_id: int) -> int:
        assert self._locations is not None
        # No lower bound: the binding encodes bounds as if the database were not in raw mode. In
        # tables, deleted neighbours are passed by their range tombstones, one after the other (so
        # `delete_ledgers` makes few of them); see `sync` for memory.
        iterator = self._locations.rocks.iter()
        iterator.seek_for_prev(_pack_key(ledger_id, ENTRY_ID_MAX))
        if not iterator.valid():
            self._check(iterator)
            return -1
        found_ledger_id, entry_id = _KEY.unpack(iterator.key())
        return int(entry_id) if found_ledger_id == ledger_id else -1

    def _check(self, iterator: RdictIter) -> None:
        """IndexReadError if an iterator ended at damage, and not at the end."""
        try:
            iterator.status()
        except Exception as error:  # rocksdict has no class of its own
            raise self._unreadable(error) from error

    def with_entries(self, ledger_ids: Sequence[int]) -> list[int]:
        assert self._locations is not None
        iterator = self._locations.rocks.iter()
        found: list[int] = []
        # One pass forward: what is deleted is passed once for all, and not for each.
        next_ledger_id = -1
        for ledger_id in ledger_ids:
            if ledger_id > next_ledger_id:
                next_ledger_id = self._next_ledger_id(iterator, ledger_id)
            if ledger_id == next_ledger_id:
                found.append(ledger_id)
        return found

    def _next_ledger_id(self, iterator: RdictIter, ledger_id: int) -> int:
        """The first at or behind this one that has entries; one above all if there is none."""
        iterator.seek(_pack_key(ledger_id, 0))
        if iterator.valid():
            return int(_KEY.unpack(iterator.key())[0])
        self._check(iterator)
        return NO_LEDGER_ID

    def _unreadable(self, error: Exception) -> IndexReadError:
        return IndexReadError(f"{self._directory}: the index cannot be read: {error}")

    def locations(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, entry id, location) of all, in this order; others may write meanwhile.
        BookieStartError where the index cannot be read."""
        assert self._locations is not None
        for key, value in self._locations.items(_pack_key(0, 0)):
            ledger_id, entry_id = _KEY.unpack(key)
            if ledger_id < 0:
                return
            yield ledger_id, entry_id, _unpack_location(value)[0]

    def entry_ids(self, ledger_id: int, after: int, count_max: int) -> list[int]:
        assert self._locations is not None
        found: list[int] = []
        try:
            for key, _ in self._locations.items(_pack_key(ledger_id, after + 1)):
                found_ledger_id, entry_id = _KEY.unpack(key)
                if found_ledger_id != ledger_id or len(found) == count_max:
                    break
                found.append(entry_id)
        except BookieStartError as error:
            raise IndexReadError(str(error)) from error
        return found

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        assert self._locations is not None
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for entry_id, location in zip(entry_ids, locations, strict=True):
            put(_pack_key(ledger_id, entry_id), _pack_location(location))
        self._locations.write(batch)
        last = self._last_entry_ids.get(ledger_id)
        if last is not None:
            self._last_entry_ids[ledger_id] = max(last, *entry_ids)

    def delete_entries(self, ledger_ids: Iterable[int]) -> None:
        assert self._locations is not None
        ids = sorted(ledger_ids)
        if not ids:
            return
        locations = WriteBatch(raw_mode=True)
        for first, last in self._ranges(ids):
            locations.delete_range(_pack_key(first, 0), _pack_key(last, ENTRY_ID_MAX))
            self._deletions_in_memory += 1
        for ledger_id in ids:
            self._last_entry_ids.pop(ledger_id, None)
        self._locations.write(locations)

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        assert self._ledgers is not None
        ids = sorted(ledger_ids)
        if not ids:
            return
        self.delete_entries(ids)
        ledgers = WriteBatch(raw_mode=True)
        for ledger_id in ids:
            ledgers.delete(_I64.pack(ledger_id))
        self._ledgers.write(ledgers)

    def _ranges(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """These ledgers, ascending, as ranges in which no other ledger has an entry. Who looks for
        something behind passes each range by itself, so one for each of 10,000 neighbours would
        cost milliseconds."""
        assert self._locations is not None
        iterator = self._locations.rocks.iter()
        first = last = ids[0]
        next_ledger_id = -1
        for ledger_id in ids:
            if ledger_id > last + 1:
                if next_ledger_id <= last:
                    next_ledger_id = self._next_ledger_id(iterator, last + 1)
                if next_ledger_id < ledger_id:
                    yield first, last
                    first = ledger_id
            last = ledger_id
        yield first, last

    def put_ledgers(self, states: Iterable[tuple[int, bytes]]) -> None:
        assert self._ledgers is not None
        batch = WriteBatch(raw_mode=True)
        for ledger_id, state in states:
            batch.put(_I64.pack(ledger_id), state)
        if not batch.is_empty():
            self._ledgers.write(batch)

    def ledgers(self) -> list[tuple[int, bytes]]:
        """BookKeeper keeps its storage flags under a negative key, and we our stamps: no ledgers.
        BookieStartError."""
        assert self._ledgers is not None
        found = [(_I64.unpack(key[:8])[0], value) for key, value in self._ledgers.items(b"")]
        return [(ledger_id, value) for ledger_id, value in found if ledger_id >= 0]

    def sync(self) -> None:
        assert self._locations is not None
        assert self._ledgers is not None
        with self._syncing:
            self._locations.sync()
            self._ledgers.sync()
            self._flush_deletions(self._locations)

    def _flush_deletions(self, locations: Database) -> None:
        """In memory a seek passes what a range deletion covers key by key: half a million deleted
        neighbours stop it, and so the loop, for half a second (pulsar#1737). In a table it jumps
        over them. And each deletion in memory makes the next look-up sort all of them again."""
        size = int(locations.rocks.property_int_value("rocksdb.cur-size-active-mem-table") or 0)
        if self._deletions_in_memory >= DELETIONS_IN_MEMORY_MAX or (
            self._deletions_in_memory and size >= DELETIONS_MEMORY_SIZE_MAX_BYTES
        ):
            self._deletions_in_memory = 0
            locations.flush()

    def compact(self) -> None:
        assert self._locations is not None
        self._locations.compact()

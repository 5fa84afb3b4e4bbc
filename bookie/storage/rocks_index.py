"""RocksIndex: the index in two RocksDB databases, with BookKeeper's keys, values and options.

Writes go to the write-ahead log unsynced, in small batches on the loop's thread (the binding holds
the interpreter's lock during a write, so a big batch would stop the loop), and one `flush_wal`
makes them durable together, on a worker thread and without that lock.

RocksDB notices a damaged block when it reads it, but opens without complaint if its write-ahead log
or its manifest seems to end early, and then lacks what came after. So each `sync` puts a stamp
behind what it makes durable: a number, one more than the last, never overwritten. An index whose
last stamp is below the checkpoint's has lost the end of its log; one with a gap has lost a table.

A write that finds no space leaves a database that is read as before and takes no more writes for
as long as it is open, also when there is space again (and the binding cannot resume it). `mend`
closes and opens it, which brings everything back that was put, from the write-ahead log. Opening
writes what was in memory to a table, so it is not tried unless there is space for that.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ChecksumType,
    CompactOptions,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from bookie.errors import BookieStartError
from bookie.health.rocks_check import check_logs
from runtime.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MIB = 1024 * 1024
_KEY = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_pack_key = _KEY.pack
_pack_location = _I64.pack
_unpack_location = _I64.unpack
ENTRY_ID_MAX = (1 << 63) - 1
#: In place of the ledger id in a stamp's key, whose entry id is the stamp. Its value is the first
#: stamp that was kept. Negative: BookKeeper leaves such keys alone.
STAMP_LEDGER_ID = -0x5154
#: Stamps that are kept when a database is opened: by then the manifest was written anew.
STAMPS_KEPT = 1000
#: Range deletions among others' keys in memory: so many, or any among so many bytes.
DELETIONS_IN_MEMORY_MAX = 100
DELETIONS_MEMORY_SIZE_MAX_BYTES = 256 * 1024
#: In RocksDB's words for ENOSPC.
NO_SPACE = "No space left on device"
#: To open a database, besides what is in memory: a log, a manifest, options.
MEND_SIZE_MIN_BYTES = 256 * 1024


class _Database:
    """One of the two, and its stamps."""

    __slots__ = (
        "_changed",
        "_first_stamp",
        "_iterators",
        "_options",
        "is_stuck",
        "path",
        "rocks",
        "stamp",
    )

    def __init__(
        self, path: str, options: Options, *, must_exist: bool, read_only: bool = False
    ) -> None:
        """`read_only`: changes nothing on the disk. BookieStartError."""
        self.path = path
        self._options = options
        self._iterators = 0
        #: A write found no space: until `mend` no other is taken.
        self.is_stuck = False
        options.create_if_missing(not must_exist)
        if must_exist and not os.path.exists(f"{path}/CURRENT"):
            # RocksDB would refuse too, but leave files behind.
            raise BookieStartError(f"{path}: the index is not there")
        check_logs(path)
        try:
            access = AccessType.read_only() if read_only else AccessType.read_write()
            self.rocks = Rdict(path, options, access_type=access)
        except Exception as error:  # rocksdict has no class of its own for its errors
            raise BookieStartError(f"{path}: the index does not open: {error}") from error
        self._changed = False
        try:
            self._load_stamps(is_pruned=not read_only)
        except BaseException:
            self.rocks.close()
            raise

    def _load_stamps(self, *, is_pruned: bool) -> None:
        start = _pack_key(STAMP_LEDGER_ID, 0)
        stamps: list[int] = []
        self._first_stamp = 1
        for key, value in self.items(start):
            if key[:8] != start[:8]:
                break
            stamps.append(_KEY.unpack(key)[1])
            self._first_stamp = _I64.unpack(value)[0]
        stamps = [stamp for stamp in stamps if stamp >= self._first_stamp]
        self.stamp = stamps[-1] if stamps else 0
        if self.stamp and len(stamps) != self.stamp - self._first_stamp + 1:
            missing = sorted(set(range(self._first_stamp, self.stamp)) - set(stamps))
            raise BookieStartError(
                f"{self.path}: the index has lost a part of itself: of its syncs "
                f"{self._first_stamp} to {self.stamp}, {len(missing)} are not there (the first is "
                f"{missing[0]})"
            )
        if is_pruned and len(stamps) > 2 * STAMPS_KEPT:
            self._first_stamp = self.stamp - STAMPS_KEPT
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(start, _pack_key(STAMP_LEDGER_ID, self._first_stamp))
            self.write(batch)

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """From a key on; BookieStartError where the database cannot be read."""
        self._iterators += 1  # the database cannot be closed under it
        try:
            iterator = self.rocks.iter()
            iterator.seek(start)
            while iterator.valid():
                yield iterator.key(), iterator.value()  # in raw mode both are bytes
                iterator.next()
            try:
                iterator.status()  # an iterator ends at damage as it does at the end
            except Exception as error:  # rocksdict has no class of its own
                raise BookieStartError(f"{self.path}: the index cannot be read: {error}") from error
        finally:
            self._iterators -= 1

    def write(self, batch: WriteBatch) -> None:
        """OSError; ENOSPC is told by the text, for the binding gives no code."""
        self._write(batch)
        self._changed = True

    def _write(self, batch: WriteBatch) -> None:
        if self.is_stuck:
            raise OSError(errno.ENOSPC, "the index found no space before", self.path)
        try:
            self.rocks.write(batch)
        except Exception as error:  # rocksdict has no class of its own
            raise self._write_error(error) from error

    def _write_error(self, error: Exception) -> OSError:
        words = f"the index cannot be written: {error}"
        if NO_SPACE not in str(error):
            return OSError(f"{self.path}: {words}")
        self.is_stuck = True
        return OSError(errno.ENOSPC, words, self.path)

    def flush(self) -> None:
        """What is in memory becomes a table. OSError, as `write`."""
        try:
            self.rocks.flush(True)
        except Exception as error:  # rocksdict has no class of its own
            raise self._write_error(error) from error

    def compact(self) -> None:
        """Writes all tables anew, the lowest too, which is where deletions end. OSError."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self._iterators += 1  # it is not to be closed meanwhile
        try:
            self.rocks.compact_range(None, None, options)
        except Exception as error:  # rocksdict has no class of its own
            raise self._write_error(error) from error
        finally:
            self._iterators -= 1

    def mend(self, free_bytes: int) -> None:
        """Makes a stuck database writable. OSError: ENOSPC if there is not enough space to do it
        now, or somebody iterates; any other, and the database is closed."""
        needed = int(self.rocks.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)
        if self._iterators or free_bytes < needed + MEND_SIZE_MIN_BYTES:
            words = f"opening the index again needs {needed + MEND_SIZE_MIN_BYTES} bytes"
            raise OSError(errno.ENOSPC, words, self.path)
        # It closes, and says once more that a write failed.
        with suppress(Exception):
            self.rocks.close()
        try:
            self.rocks = Rdict(self.path, self._options)
        except Exception as error:  # rocksdict has no class of its own
            raise OSError(f"{self.path}: the index does not open again: {error}") from error
        self.is_stuck = False
        self._changed = True

    def sync(self) -> None:
        stamp = self.stamp
        batch = WriteBatch(raw_mode=True)
        # What is put from here on, on the loop's thread, is for the next sync.
        changed, self._changed = self._changed, False
        if changed:
            stamp += 1
            batch.put(_pack_key(STAMP_LEDGER_ID, stamp), _pack_location(self._first_stamp))
        try:
            self._write(batch)
        except OSError:
            self._changed = True
            raise
        try:
            # Also if nothing changed since: another thread's sync may still be under way.
            self.rocks.flush_wal(True)
        except Exception as error:  # rocksdict has no class of its own
            raise OSError(f"{self.path}: the index cannot be synced: {error}") from error
        self.stamp = stamp

    def begin_stamps(self, stamp: int) -> None:
        """For an index that is made anew: its next stamp is above this one."""
        assert self.stamp == 0
        self.stamp = stamp
        self._first_stamp = stamp + 1
        self._changed = True


def _locations_options(block_cache_size_bytes: int) -> Options:
    """EntryLocationIndex's (conf/entry_location_rocksdb.conf, ledgers.md 3.3), but for the memory
    of what is not in a table yet: 64 MiB there. A checkpoint makes a table of it anyway."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(16 * MIB)
    options.set_max_write_buffer_number(4)
    options.set_target_file_size_base(64 * MIB)
    options.set_level_zero_file_num_compaction_trigger(4)
    options.set_max_bytes_for_level_base(256 * MIB)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_total_wal_size(512 * MIB)
    options.set_max_background_jobs(2)
    table = BlockBasedOptions()
    table.set_block_size(16 * 1024)
    table.set_block_cache(Cache(block_cache_size_bytes))
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    # In parts: the filter of a whole table is larger than a shard of the cache, so it would be read
    # and checked anew for each entry that is looked up (0.9 ms).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.xxhash())
    options.set_block_based_table_factory(table)
    return options


def _ledgers_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(4 * MIB)
    options.set_max_background_jobs(2)
    return options


def read_ledgers(directory: str) -> tuple[list[tuple[int, bytes]], int]:
    """All ledgers' states as they are in the database, and the stamp of its last sync; changes
    nothing. BookieStartError if any of it cannot be read."""
    database = _Database(
        f"{directory}/ledgers", _ledgers_options(), must_exist=True, read_only=True
    )
    try:
        found = [(_I64.unpack(key[:8])[0], value) for key, value in database.items(b"")]
        return [(ledger_id, value) for ledger_id, value in found if ledger_id >= 0], database.stamp
    finally:
        database.rocks.close()


class RocksIndex:
    """See `index.EntryIndex`. `directory` gets the databases `locations` and `ledgers`."""

    def __init__(self, directory: str, block_cache_size_bytes: int) -> None:
        self._directory = directory
        self._block_cache_size_bytes = block_cache_size_bytes
        self._locations: _Database | None = None
        self._ledgers: _Database | None = None
        self._get: Callable[[bytes], bytes | None]
        #: The flush and compaction both sync, on worker threads.
        self._syncing = Mutex()
        #: Range deletions that are in memory, and not in a table.
        self._deletions_in_memory = 0

    def open(self, *, must_exist: bool = False) -> None:
        self._locations = _Database(
            f"{self._directory}/locations",
            _locations_options(self._block_cache_size_bytes),
            must_exist=must_exist,
        )
        try:
            self._ledgers = _Database(
                f"{self._directory}/ledgers", _ledgers_options(), must_exist=must_exist
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
        if not self._syncing.acquire(blocking=False):
            raise OSError(errno.ENOSPC, "the index is being synced", self._directory)
        try:
            self._mend(self._locations, self._ledgers)
        finally:
            self._syncing.release()
        self._get = self._locations.rocks.get

    def _mend(self, *databases: _Database) -> None:
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
        assert self._locations is not None
        # No lower bound: the binding encodes bounds as if the database were not in raw mode. In
        # tables, deleted neighbours are passed by their range tombstones; see `sync` for memory.
        iterator = self._locations.rocks.iter()
        iterator.seek_for_prev(_pack_key(ledger_id, ENTRY_ID_MAX))
        if not iterator.valid():
            try:
                iterator.status()
            except Exception as error:  # rocksdict has no class of its own
                raise self._unreadable(error) from error
            return -1
        found_ledger_id, entry_id = _KEY.unpack(iterator.key())
        return int(entry_id) if found_ledger_id == ledger_id else -1

    def _unreadable(self, error: Exception) -> OSError:
        return OSError(errno.EIO, f"{self._directory}: the index cannot be read: {error}")

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
        for key, _ in self._locations.items(_pack_key(ledger_id, after + 1)):
            found_ledger_id, entry_id = _KEY.unpack(key)
            if found_ledger_id != ledger_id or len(found) == count_max:
                break
            found.append(entry_id)
        return found

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        assert self._locations is not None
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for entry_id, location in zip(entry_ids, locations, strict=True):
            put(_pack_key(ledger_id, entry_id), _pack_location(location))
        self._locations.write(batch)

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        assert self._locations is not None
        assert self._ledgers is not None
        locations = WriteBatch(raw_mode=True)
        ledgers = WriteBatch(raw_mode=True)
        for ledger_id in ledger_ids:
            locations.delete_range(_pack_key(ledger_id, 0), _pack_key(ledger_id, ENTRY_ID_MAX))
            self._deletions_in_memory += 1
            ledgers.delete(_I64.pack(ledger_id))
        if not locations.is_empty():
            self._locations.write(locations)
            self._ledgers.write(ledgers)

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

    def _flush_deletions(self, locations: _Database) -> None:
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

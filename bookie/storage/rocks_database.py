"""One of the index's two RocksDB databases: its options, its stamps, and how its errors are told.

Writes go to the write-ahead log unsynced, in small batches on the loop's thread (the binding holds
the interpreter's lock during a write, so a big batch would stop the loop), and one `flush_wal`
makes them durable together, on a worker thread and without that lock.

RocksDB notices a damaged block when it reads it, but opens without complaint if its write-ahead log
or its manifest seems to end early, and then lacks what came after. So each `sync` puts a stamp
behind what it makes durable: a number, one more than the last, never overwritten. A database whose
last stamp is below the checkpoint's has lost the end of its log; one with a gap has lost a table.

A write that finds no space leaves a database that is read as before and takes no more writes for
as long as it is open, also when there is space again (and the binding cannot resume it). `mend`
closes and opens it, which brings everything back that was put, from the write-ahead log. Opening
writes what was in memory to a table, so it is not tried unless there is space for that. A sync that
failed is no such write, whatever the reason it gives: nobody knows what it left on the disk.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024
_KEY = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_pack_key = _KEY.pack
#: In place of the ledger id in a stamp's key, whose entry id is the stamp. Its value is the first
#: stamp that was kept. Negative: BookKeeper leaves such keys alone.
STAMP_LEDGER_ID = -0x5154
#: Stamps that are kept when a database is opened: by then the manifest was written anew.
STAMPS_KEPT = 1000
#: In RocksDB's words for ENOSPC.
NO_SPACE = "No space left on device"
#: What it was at when it failed, in RocksDB's words; the reason is told beside it.
AT_A_SYNC = re.compile(r"While f(?:data)?sync\b")
#: To open a database, besides what is in memory: a log, a manifest, options.
MEND_SIZE_MIN_BYTES = 256 * 1024


class Database:
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
        """OSError; ENOSPC is told by the text, for the binding gives no code, and is never said of
        a sync that failed."""
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
        if NO_SPACE not in str(error) or AT_A_SYNC.search(str(error)):
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
            batch.put(_pack_key(STAMP_LEDGER_ID, stamp), _I64.pack(self._first_stamp))
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


def locations_options(block_cache_size_bytes: int) -> Options:
    """EntryLocationIndex's (conf/entry_location_rocksdb.conf), but for the memory
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


def ledgers_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(4 * MIB)
    options.set_max_background_jobs(2)
    return options


def read_ledgers(directory: str) -> tuple[list[tuple[int, bytes]], int]:
    """All ledgers' states as they are in the database, and the stamp of its last sync; changes
    nothing. BookieStartError if any of it cannot be read."""
    database = Database(f"{directory}/ledgers", ledgers_options(), must_exist=True, read_only=True)
    try:
        found = [(_I64.unpack(key[:8])[0], value) for key, value in database.items(b"")]
        return [(ledger_id, value) for ledger_id, value in found if ledger_id >= 0], database.stamp
    finally:
        database.rocks.close()

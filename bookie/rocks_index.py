"""RocksIndex: the index in two RocksDB databases, with BookKeeper's keys, values and options.

Writes go to the write-ahead log unsynced, in small batches on the loop's thread (the binding holds
the interpreter's lock during a write, so a big batch would stop the loop), and one `flush_wal`
makes them durable together, on a worker thread and without that lock.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MIB = 1024 * 1024
_KEY = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_pack_key = _KEY.pack
_pack_location = _I64.pack
_unpack_location = _I64.unpack
ENTRY_ID_MAX = (1 << 63) - 1


def _locations_options(block_cache_size_bytes: int) -> Options:
    """EntryLocationIndex's (conf/entry_location_rocksdb.conf): ledgers.md 3.3."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(64 * MIB)
    options.set_max_write_buffer_number(4)
    options.set_target_file_size_base(64 * MIB)
    options.set_level_zero_file_num_compaction_trigger(4)
    options.set_max_bytes_for_level_base(256 * MIB)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_total_wal_size(512 * MIB)
    options.set_max_background_jobs(2)
    table = BlockBasedOptions()
    table.set_block_size(64 * 1024)
    table.set_block_cache(Cache(block_cache_size_bytes))
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
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


class RocksIndex:
    """See `bookie.index.EntryIndex`. `directory` gets the databases `locations` and `ledgers`."""

    def __init__(self, directory: str, block_cache_size_bytes: int) -> None:
        self._directory = directory
        self._block_cache_size_bytes = block_cache_size_bytes
        self._locations: Rdict | None = None
        self._ledgers: Rdict | None = None
        self._get: Callable[[bytes], bytes | None]

    def open(self) -> None:
        options = _locations_options(self._block_cache_size_bytes)
        try:
            self._locations = Rdict(f"{self._directory}/locations", options)
            self._ledgers = Rdict(f"{self._directory}/ledgers", _ledgers_options())
        except Exception as error:  # rocksdict has no class of its own for its errors
            self.close()
            raise OSError(f"{self._directory}: the index does not open: {error}") from error
        self._get = self._locations.get

    def close(self) -> None:
        for database in (self._locations, self._ledgers):
            if database is not None:
                database.close()
        self._locations = self._ledgers = None

    def get(self, ledger_id: int, entry_id: int) -> int:
        value = self._get(_pack_key(ledger_id, entry_id))
        return _unpack_location(value)[0] if value is not None else 0

    def last_entry_id(self, ledger_id: int) -> int:
        assert self._locations is not None
        # No lower bound: the binding encodes bounds as if the database were not in raw mode.
        # Deleted neighbours are range tombstones, which a seek passes in one step, unlike the
        # single ones of pulsar#1737.
        iterator = self._locations.iter()
        iterator.seek_for_prev(_pack_key(ledger_id, ENTRY_ID_MAX))
        if not iterator.valid():
            return -1
        found_ledger_id, entry_id = _KEY.unpack(iterator.key())
        return int(entry_id) if found_ledger_id == ledger_id else -1

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for entry_id, location in zip(entry_ids, locations, strict=True):
            put(_pack_key(ledger_id, entry_id), _pack_location(location))
        self._write(self._locations, batch)

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        locations = WriteBatch(raw_mode=True)
        ledgers = WriteBatch(raw_mode=True)
        for ledger_id in ledger_ids:
            locations.delete_range(_pack_key(ledger_id, 0), _pack_key(ledger_id, ENTRY_ID_MAX))
            ledgers.delete(_I64.pack(ledger_id))
        self._write(self._locations, locations)
        self._write(self._ledgers, ledgers)

    def put_ledgers(self, states: Iterable[tuple[int, bytes]]) -> None:
        batch = WriteBatch(raw_mode=True)
        for ledger_id, state in states:
            batch.put(_I64.pack(ledger_id), state)
        self._write(self._ledgers, batch)

    def ledgers(self) -> list[tuple[int, bytes]]:
        """BookKeeper keeps its storage flags under a negative key: not a ledger."""
        assert self._ledgers is not None
        items: Any = self._ledgers.items()  # in raw mode keys and values are bytes
        found = [(_I64.unpack(key)[0], value) for key, value in items]
        return [(ledger_id, value) for ledger_id, value in found if ledger_id >= 0]

    def sync(self) -> None:
        for database in (self._locations, self._ledgers):
            assert database is not None
            try:
                database.flush_wal(True)
            except Exception as error:  # rocksdict has no class of its own
                raise OSError(f"{self._directory}: the index cannot be synced: {error}") from error

    def _write(self, database: Rdict | None, batch: WriteBatch) -> None:
        assert database is not None
        try:
            database.write(batch)
        except Exception as error:  # rocksdict has no class of its own
            raise OSError(f"{self._directory}: the index cannot be written: {error}") from error

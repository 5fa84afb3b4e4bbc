"""What is flushed while the entries of a ledger are listed is listed."""

import pytest

from bookie.entry_listing import EntryListing
from bookie.errors import IndexReadError
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_index import RocksIndex
from bookie.storage.write_cache import WriteCache
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status


class DamagedIndex(MemoryIndex):
    """As RocksDB tells of blocks that are damaged: neither a walk nor a look-up gets past the
    entries of `damaged`; what is put again is found, and a walk still meets the block."""

    __slots__ = ("_again", "damaged")

    def __init__(self):
        super().__init__()
        self.damaged = range(0)
        self._again = set()

    def _check(self, ids):
        if any(entry_id in self.damaged for entry_id in ids):
            raise IndexReadError("a block is damaged")

    def get(self, ledger_id, entry_id):
        self._check({entry_id} - self._again)
        return super().get(ledger_id, entry_id)

    def last_entry_id(self, ledger_id):
        last = super().last_entry_id(ledger_id)
        self._check([last])
        return last

    def entry_ids(self, ledger_id, after, count_max):
        found = super().entry_ids(ledger_id, after, count_max)
        self._check(found)
        return found

    def put(self, ledger_id, entry_ids, locations):
        if self.damaged:
            self._again.update(entry_ids)
        super().put(ledger_id, entry_ids, locations)


async def with_entries(bookie, adds_class, entry_ids, flags=0):
    adds = adds_class(bookie)
    for count, entry_id in enumerate(entry_ids, 1):
        adds.add(1, entry_id, flags=flags)
        if count % 8 == 0:
            await adds.wait(count)
    await adds.wait(count)
    await bookie.flush()


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("damaged", [range(700, 703), range(20), range(200, 401), range(850, 890)])
async def test_entries_behind_a_damaged_block_of_the_index(machine, adds_class, damaged, step):
    """They are listed; those in it are not, until they are written again."""
    machine.index = DamagedIndex()
    entry_ids = range(0, 900, step)
    async with machine.running() as bookie:
        await with_entries(bookie, adds_class, entry_ids)
        machine.index.damaged = damaged
        lost = [entry_id for entry_id in entry_ids if entry_id in damaged]
        assert list(await bookie.sound_entries(1)) == sorted(set(entry_ids).difference(lost))
        assert (await bookie.read_entry(1, lost[0]))[0] is Status.EIO
        await with_entries(bookie, adds_class, lost, FLAG_RECOVERY_ADD)
        assert list(await bookie.sound_entries(1)) == list(entry_ids)


async def test_a_damaged_end_of_the_index_is_an_error(machine, adds_class):
    """Nobody knows how far the ledger goes."""
    machine.index = DamagedIndex()
    async with machine.running() as bookie:
        await with_entries(bookie, adds_class, range(9))
        machine.index.damaged = range(7, 9)
        with pytest.raises(IndexReadError):
            await bookie.sound_entries(1)
        assert (await bookie.encoded_entries(1))[0] is Status.EIO


async def test_a_flush_that_ends_after_the_index_was_walked(machine, adds_class, monkeypatch):
    """The index was asked before the flush put its entries there, and the cache is asked once more
    when it has let go of them."""
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(3):
            adds.add(1, entry_id)
        await adds.wait(3)
        await bookie.flush()
        for entry_id in range(3, 6):
            adds.add(1, entry_id)
        await adds.wait(6)
        in_index = EntryListing._in_index

        async def then_flush(listing, ledger_id):
            found = await in_index(listing, ledger_id)
            await bookie.flush()
            return found

        monkeypatch.setattr(EntryListing, "_in_index", then_flush)
        found = await bookie.entries(1)
        assert [entry_id for entry_id in range(7) if entry_id in found] == list(range(6))


async def test_a_damaged_block_of_a_real_index(tmp_path, machine):
    """RocksDB's checksum tells of it, to a walk and to each look-up of a key in it."""
    count = 20_000
    index = RocksIndex(str(tmp_path), 8 << 20)
    index.open()
    for first in range(0, count, 500):
        ids = range(first, first + 500)
        index.put(1, ids, [7 << 32 | (2000 + 100 * entry_id) for entry_id in ids])
    index._locations.flush()
    index.close()
    (table,) = (tmp_path / "locations").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    index = RocksIndex(str(tmp_path), 8 << 20)
    index.open()
    try:
        listing = EntryListing(WriteCache(machine.config), index)
        found = list(await listing.entries(1))
        lost = sorted(set(range(count)).difference(found))
        assert 0 < len(lost) < count / 4
        assert lost == list(range(lost[0], lost[-1] + 1)), "one block"
        for entry_id in (lost[0], lost[-1]):
            with pytest.raises(IndexReadError):
                index.get(1, entry_id)
        index.put(1, lost, [8 << 32 | (2000 + 100 * entry_id) for entry_id in lost])
        assert list(await listing.entries(1)) == list(range(count))
    finally:
        index.close()

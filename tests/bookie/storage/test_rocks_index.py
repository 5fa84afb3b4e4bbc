"""The index, in RocksDB and in memory: the same answers, BookKeeper's keys, and what an end of
space leaves."""

import pytest

from bookie.storage import rocks_database
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_database import NO_SPACE
from bookie.storage.rocks_index import RocksIndex
from runtime.disk import is_full


@pytest.fixture(params=["memory", "rocks"])
def index(request, tmp_path):
    index = MemoryIndex() if request.param == "memory" else RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    yield index
    index.close()


def test_index(index):
    assert index.get(1, 0) == 0
    assert index.last_entry_id(1) == -1
    index.put(1, [0, 1, 2, 500], [10, 11, 12, 1 << 40])
    index.put(2, [7], [70])
    index.put(3, [1], [30])
    assert [index.get(1, i) for i in (0, 2, 3, 500)] == [10, 12, 0, 1 << 40]
    assert [index.last_entry_id(i) for i in (0, 1, 2, 3, 4)] == [-1, 500, 7, 1, -1]
    index.put(1, [1], [99])
    assert index.get(1, 1) == 99
    index.put_ledgers([(1, b"one"), (2, b"two"), (300, b"x")])
    assert index.ledgers() == [(1, b"one"), (2, b"two"), (300, b"x")]
    index.delete_ledgers([2, 300])
    assert index.ledgers() == [(1, b"one")]
    assert [index.last_entry_id(i) for i in (1, 2, 3)] == [500, -1, 1]
    assert index.get(2, 7) == 0
    index.sync()


class LateNoSpace:
    """RocksDB on a disk that is full: a write is told to have failed, and its log has it."""

    def __init__(self, rocks):
        self._rocks = rocks

    def __getattr__(self, name):
        return getattr(self._rocks, name)

    def write(self, batch):
        self._rocks.write(batch)
        raise OSError(f"IO error: {NO_SPACE}: While appending to file")


def test_a_mended_index_remembers_no_ends_of_before(tmp_path):
    """A write that found no space may come back with the log when the database is opened again:
    then an entry is there behind the one that was remembered as the ledger's last."""
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(1, [0, 1], [10, 11])
    assert index.last_entry_id(1) == 1
    locations = index._locations
    locations.rocks = LateNoSpace(locations.rocks)
    with pytest.raises(OSError, match=NO_SPACE):
        index.put(1, [2], [12])
    assert locations.is_stuck
    assert index.last_entry_id(1) == 1
    index.mend()
    assert index.get(1, 2) == 12
    assert index.last_entry_id(1) == 2
    index.close()


def test_a_sync_under_way_is_no_want_of_space(tmp_path):
    """A compaction syncs the index while a checkpoint begins: that one found «no space», and the
    bookie took no writes for a moment. One that has to be closed waits for the sync."""
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    with index._syncing:
        index.mend()
        index.put(1, [0], [10])
        locations = index._locations
        locations.rocks = LateNoSpace(locations.rocks)
        with pytest.raises(OSError, match=NO_SPACE):
            index.put(1, [1], [11])
        with pytest.raises(OSError, match="being synced") as caught:
            index.mend()
        assert is_full(caught.value)
        assert locations.is_stuck
    index.mend()
    assert index.get(1, 1) == 11
    index.close()


@pytest.mark.parametrize("name", ["_locations", "_ledgers"])
def test_either_database_is_mended(tmp_path, name):
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    database = getattr(index, name)
    database.rocks = LateNoSpace(database.rocks)
    with pytest.raises(OSError, match=NO_SPACE):
        index.delete_ledgers([1])
    assert database.is_stuck
    index.mend()
    assert not database.is_stuck
    index.delete_ledgers([1])
    index.close()


def test_the_first_database_is_read_while_the_other_still_lacks_space(tmp_path, monkeypatch):
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(1, [0], [10])
    for database in (index._locations, index._ledgers):
        database.is_stuck = True
    mend = rocks_database.Database.mend

    def scarce(database, free_bytes):
        mend(database, free_bytes if database is index._locations else 0)

    with monkeypatch.context() as patch:
        patch.setattr(rocks_database.Database, "mend", scarce)
        with pytest.raises(OSError, match="needs"):
            index.mend()
    assert index.get(1, 0) == 10
    index.mend()
    index.sync()  # nobody holds it up
    assert index.get(1, 0) == 10
    index.close()


class NoSpaceAtSync:
    """As RocksDB says it where a table cannot be synced."""

    def __init__(self, rocks, call):
        self._rocks = rocks
        self._call = call

    def __getattr__(self, name):
        return getattr(self._rocks, name)

    def flush(self, wait):
        name = f"{self._rocks.path()}/000009.sst"
        raise OSError(f"IO error: {NO_SPACE}: While {self._call}: {name}: {NO_SPACE}")


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_sync_that_failed_is_no_lack_of_space(tmp_path, call):
    """The disk may say so; what it has of the table nobody knows, and the bookie is to end."""
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(1, [0, 1], [10, 11])
    locations = index._locations
    rocks = locations.rocks
    locations.rocks = NoSpaceAtSync(rocks, call)
    with pytest.raises(OSError, match=f"While {call}") as caught:
        locations.flush()
    assert caught.value.errno is None
    assert not locations.is_stuck
    locations.rocks = rocks
    index.close()


def test_rocks_keys_and_values_are_bookkeepers(tmp_path):
    from rocksdict import Options, Rdict

    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(0x0102, [0x0304], [5 << 32 | 1028])
    index.put_ledgers([(9, b"data")])
    index.sync()
    index.close()
    database = Rdict(str(tmp_path / "locations"), Options(raw_mode=True))
    assert [(key.hex(), value.hex()) for key, value in database.items()] == [
        ("00000000000001020000000000000304", "0000000500000404"),
        ("ffffffffffffaeac0000000000000001", "0000000000000001"),  # the sync's stamp, ours
    ]
    database.close()
    index.open()
    assert index.get(0x0102, 0x0304) == 5 << 32 | 1028
    assert index.ledgers() == [(9, b"data")]
    index.close()


def test_memory_index_forgets_what_was_not_synced():
    index = MemoryIndex()
    index.put(1, [0], [10])
    index.put_ledgers([(1, b"one")])
    index.sync()
    index.put(1, [1], [11])
    index.delete_ledgers([1])
    index.crash()
    assert index.get(1, 0) == 10
    assert index.last_entry_id(1) == 0
    assert index.ledgers() == [(1, b"one")]

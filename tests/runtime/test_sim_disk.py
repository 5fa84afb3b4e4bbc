"""What SimDisk forgets, and that it forgets no more."""

import errno
import random

import pytest
import trio

from runtime.sim_disk import DiskFaults, SimDisk


def make_disk(seed=0, **faults):
    return SimDisk(random.Random(seed), DiskFaults(**faults))


def synced_file(disk, name="/file", content=b""):
    file = disk.open(name, create=True)
    file.pwrite([content], 0)
    file.sync(lambda error: None)
    disk.sync_directory("/")
    return file


def content_after_crash(disk, name="/file"):
    disk.crash()
    file = disk.open(name)
    return file.pread(file.size(), 0)


def test_synced_writes_survive_every_crash():
    for seed in range(50):
        disk = make_disk(seed)
        synced_file(disk, content=b"kept")
        assert content_after_crash(disk) == b"kept"


def test_unsynced_writes_are_kept_lost_and_torn():
    seen = set()
    for seed in range(300):
        disk = make_disk(seed)
        synced_file(disk, content=b"aaaa").pwrite([b"bbbb"], 2)
        seen.add(content_after_crash(disk))
    assert seen == {b"aaaa", b"aabbbb", b"aab" + b"a", b"aabb", b"aabbb"}


def test_a_later_write_can_survive_an_earlier_one():
    seen = set()
    for seed in range(100):
        disk = make_disk(seed)
        file = synced_file(disk)
        file.pwrite([b"1"], 0)
        file.pwrite([b"2"], 1)
        seen.add(content_after_crash(disk))
    assert seen == {b"", b"1", b"\x002", b"12"}


def test_truncate_is_a_change_as_well():
    seen = set()
    for seed in range(50):
        disk = make_disk(seed)
        synced_file(disk, content=b"abcd").truncate(2)
        seen.add(content_after_crash(disk))
    assert seen == {b"abcd", b"ab"}


def test_a_name_needs_its_directory_synced():
    seen = set()
    for seed in range(50):
        disk = make_disk(seed)
        file = disk.open("/new", create=True)
        file.pwrite([b"synced"], 0)
        file.sync(lambda error: None)
        disk.crash()
        seen.add(disk.exists("/new"))
    assert seen == {True, False}


def test_directory_changes_survive_in_order():
    for seed in range(100):
        disk = make_disk(seed)
        for name in "abcd":
            disk.open(f"/{name}", create=True)
        disk.crash()
        names = disk.list("/")
        assert names == list("abcd")[: len(names)]


def test_rename_is_whole_or_not():
    seen = set()
    for seed in range(50):
        disk = make_disk(seed)
        synced_file(disk, "/old", b"new")
        synced_file(disk, "/target", b"before")
        disk.rename("/old", "/target")
        disk.crash()
        seen.add((tuple(disk.list("/")), disk.open("/target").pread(9, 0)))
    assert seen == {(("old", "target"), b"before"), (("target",), b"new")}


def test_write_file_survives():
    for seed in range(20):
        disk = make_disk(seed)
        disk.write_file("/cookie", b"1")
        disk.write_file("/cookie", b"22")
        disk.crash()
        assert disk.list("/") == ["cookie"]
        assert disk.open("/cookie").pread(9, 0) == b"22"


def test_contents_of_a_lost_directory_are_gone():
    for seed in range(20):
        disk = make_disk(seed)
        disk.make_directory("/a/b")
        disk.open("/a/b/c", create=True)
        disk.sync_directory("/a/b")
        disk.crash()
        if disk.exists("/a/b/c"):
            assert disk.list("/a") == ["b"]
            assert disk.list("/a/b") == ["c"]


def test_old_files_and_locks_die_in_a_crash():
    disk = make_disk()
    release = disk.lock("/lock")
    file = synced_file(disk, content=b"x")
    disk.crash()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    disk.lock("/lock")
    release()
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")


def test_full_disk_takes_what_fits():
    disk = make_disk(capacity_bytes=10)
    file = disk.open("/file", create=True)
    file.pwrite([b"12345678"], 0)
    with pytest.raises(OSError, match="No space left") as info:
        file.pwrite([b"abcdef"], 8)
    assert info.value.errno == errno.ENOSPC
    assert file.pread(20, 0) == b"12345678ab"
    file.pwrite([b"overwriting needs no room"[:10]], 0)
    assert disk.usage("/") == (10, 0)
    with pytest.raises(OSError, match="No space left"):
        disk.write_file("/cookie", b"1")
    assert disk.list("/") == ["file"]
    also = disk.open("/file")
    disk.remove("/file")
    assert disk.usage("/") == (10, 0), "it is open"
    file.close()
    file.close()
    assert disk.usage("/") == (10, 0)
    also.truncate(4)
    assert disk.usage("/") == (10, 6)
    also.close()
    assert disk.usage("/") == (10, 10)


@pytest.mark.parametrize("end", ["kill", "crash"])
async def test_who_ends_gives_the_space_of_what_was_open_back(end):
    disk = make_disk(capacity_bytes=100)
    for name in ("/kept", "/gone", "/replaced"):
        file = disk.open(name, create=True)
        file.pwrite([bytes(10)], 0)
        await file.wait_synced()
    disk.sync_directory("/")
    disk.remove("/gone")
    disk.open("/new", create=True)
    disk.rename("/new", "/replaced")
    disk.sync_directory("/")
    assert disk.usage("/") == (100, 70)
    getattr(disk, end)()
    assert disk.usage("/") == (100, 90)
    file.close()  # of the life before
    disk.remove("/replaced")
    disk.remove("/kept")
    assert disk.usage("/") == (100, 100)


async def test_failed_sync_stays_failed_and_keeps_nothing_safe():
    seen = set()
    for seed in range(50):
        disk = make_disk(seed, failing_sync_number=3)
        file = synced_file(disk, content=b"old")  # syncs 1 and 2
        file.pwrite([b"new"], 0)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                await file.wait_synced()
        seen.add(content_after_crash(disk))
    assert {b"old", b"new"} <= seen


async def test_slow_syncs_take_virtual_time_and_cover_what_was_before(autojump_clock):
    disk = make_disk(sync_seconds=(5.0, 10.0))
    file = disk.open("/file", create=True)
    disk.sync_directory("/")
    file.pwrite([b"a"], 0)
    start = trio.current_time()
    reports = []
    file.sync(reports.append)
    file.pwrite([b"b"], 1)
    assert reports == []
    await trio.sleep(10.1)
    assert reports == [None]
    contents = set()
    for _ in range(2):
        file.pwrite([b"c"], 2)
        await file.wait_synced()
        file.pwrite([b"d"], 3)
        contents.add(content_after_crash(disk)[:3])
        file = disk.open("/file")
    assert contents == {b"abc"}
    assert trio.current_time() - start > 20


async def test_a_sync_under_way_in_a_crash_never_reports(autojump_clock):
    disk = make_disk(sync_seconds=(1.0, 1.0))
    file = disk.open("/file", create=True)
    reports = []
    file.sync(reports.append)
    disk.crash()
    await trio.sleep(10)
    assert reports == []


def test_bit_rot_is_durable():
    disk = make_disk()
    file = synced_file(disk, content=b"\x00\x00")
    disk.flip_bit("/file", 1, bit=3)
    assert file.pread(2, 0) == b"\x00\x08"
    assert content_after_crash(disk) == b"\x00\x08"


def test_cold_reads():
    disk = make_disk(cached_share=0.5)
    file = synced_file(disk, content=b"x")
    assert {bytes(file.read_cached(1, 0)) for _ in range(50)} == {b"", b"x"}
    assert {file.is_cached(1, 0) for _ in range(50)} == {True, False}


def test_same_seed_same_crash():
    def run(seed):
        disk = make_disk(seed)
        file = synced_file(disk)
        for index in range(20):
            file.pwrite([bytes([index]) * 10], index * 7)
        return content_after_crash(disk)

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_a_latent_error_stays_until_its_bytes_are_written_again():
    disk = make_disk()
    file = synced_file(disk, content=b"0123456789")
    disk.make_unreadable("/file", 4, 2)
    assert file.pread(4, 0) == b"0123"
    assert file.pread(4, 6) == b"6789"
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error") as caught:
            file.pread(2, 3)
        assert caught.value.errno == errno.EIO
    assert not file.is_cached(2, 5)
    assert file.is_cached(2, 6)
    disk.crash()
    file = disk.open("/file")
    file.pwrite([b"x"], 4)  # a part of it: the rest is as lost as before
    with pytest.raises(OSError, match="Input/output error"):
        file.pread(1, 5)
    file.pwrite([b"yz"], 4)
    assert file.pread(10, 0) == b"0123yz6789"
    assert disk.read_error_count == 4


def test_transient_read_errors():
    disk = make_disk(read_error_share=0.5)
    file = synced_file(disk, content=b"data")
    fates = []
    for _ in range(100):
        try:
            fates.append(file.pread(4, 0))
        except OSError as error:
            fates.append(error.errno)
    assert set(fates) == {b"data", errno.EIO}
    disk.faults.read_error_share = 0.0
    assert file.pread(4, 0) == b"data"


def test_what_is_durable_is_known():
    disk = make_disk()
    file = synced_file(disk, "/a", b"one")
    file.pwrite([b" two"], 3)
    assert disk.is_durable(b"one", "/")
    assert not disk.is_durable(b"two", "/")
    assert disk.durable_content("/a") == b"one"
    file.sync(lambda error: None)
    assert disk.is_durable(b"one two", "/")
    assert not disk.is_durable(b"one two", "/other/")
    other = disk.open("/b", create=True)
    other.pwrite([b"nameless"], 0)
    other.sync(lambda error: None)
    assert not disk.is_durable(b"nameless", "/"), "its name is not"
    disk.sync_directory("/")
    assert disk.is_durable(b"nameless", "/")


async def test_a_shrink_beside_a_sync_that_is_under_way(autojump_clock):
    """That one makes nothing durable that was written after it began, and brings nothing back."""
    disk = make_disk(sync_seconds=(1.0, 1.0))
    file = disk.open("/file", create=True)
    file.pwrite([b"0123456789" * 10], 0)
    done = []
    file.sync(done.append)
    while not file.shrink(10, 0):
        pass
    assert disk.durable_content("/file") == b"0123456789"
    file.pwrite([b"x"], 10)
    await trio.sleep(2)
    assert done == [None]
    assert disk.durable_content("/file") == b"0123456789", "nobody has synced what came later"
    await file.wait_synced()
    assert disk.durable_content("/file") == b"0123456789x"

"""One contract for every Disk: the operating system's and the simulated one."""

import errno
import os
import random
import time
from dataclasses import dataclass

import pytest
import trio

from runtime.disk import FREE_AT_ONCE, Disk, is_full
from runtime.real_disk import RealDisk
from runtime.sim_disk import SimDisk


@dataclass
class Place:
    disk: Disk
    root: str

    def path(self, name):
        return f"{self.root}/{name}"

    def file(self, name="file", content=b""):
        file = self.disk.open(self.path(name), create=True)
        if content:
            file.pwrite([content], 0)
        return file


@pytest.fixture(params=["real", "sim"])
def place(request, tmp_path):
    if request.param == "real":
        return Place(RealDisk(), str(tmp_path))
    disk = SimDisk(random.Random(7))
    disk.make_directory("/data")
    return Place(disk, "/data")


async def test_open_says_what_is_missing_or_in_the_way(place):
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("none"))
    first = place.disk.open(place.path("a"), create=True, exclusive=True)
    with pytest.raises(FileExistsError):
        place.disk.open(place.path("a"), create=True, exclusive=True)
    first.pwrite([b"kept"], 0)
    again = place.disk.open(place.path("a"), create=True)
    assert again.pread(10, 0) == b"kept"
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("no-directory/a"), create=True)
    first.close()
    again.close()


async def test_write_joins_buffers_and_leaves_zeros_in_holes(place):
    file = place.file()
    file.pwrite([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 3)
    assert file.size() == 9
    assert file.pread(100, 0) == b"\0\0\0abcdef"
    file.pwrite([b"ZZ"], 4)
    assert file.pread(4, 3) == b"aZZd"
    assert file.pread(4, 9) == b""
    assert file.pread(4, 7) == b"ef"
    file.close()


async def test_write_of_more_buffers_than_one_call_takes(place):
    file = place.file()
    buffers = [index.to_bytes(3, "big") for index in range(5000)]
    file.pwrite(buffers, 5)
    assert file.pread(20000, 5) == b"".join(buffers)
    file.close()


async def test_what_was_read_outlives_growth_close_and_removal(place):
    file = place.file(content=b"0123456789")
    early = file.read_cached(4, 2)
    assert early.readonly
    assert bytes(early) == b"2345"
    file.pwrite([b"x" * 100_000], 10)
    late = file.read_cached(3, 99_000)
    file.truncate(3)
    file.close()
    place.disk.remove(place.path("file"))
    assert bytes(early) == b"2345"
    assert bytes(late) == b"xxx"


@pytest.mark.parametrize("behind", [0, 3, FREE_AT_ONCE, 1000])
@pytest.mark.parametrize("size", [0, 1, 10_000_000, (1 << 24) - 1, 1 << 24, 1 << 25])
async def test_a_file_shrinks_step_by_step_to_its_size(place, size, behind):
    content = bytes(range(256)) * (1 << 16)
    file = place.file(content=content)
    read = file.read_cached(len(content), 0)
    sizes = [file.size()]
    while not await place.disk.run(file.shrink, size, behind):
        sizes.append(file.size())
    assert sizes == sorted(set(sizes), reverse=True), "no step without progress"
    assert file.size() == min(size, len(content)), "it never grows"
    assert read == content[: len(read)]
    assert file.pread(10, max(0, size - 10)) == content[max(0, size - 10) : size]


async def test_discard_closes_what_is_unlinked(place):
    content = bytes(range(256)) * (1 << 16)
    file = place.file(content=content)
    read = file.read_cached(len(content), 0)
    place.disk.remove(place.path("file"))
    while not await place.disk.run(file.discard, 0):
        assert file.size() < len(content)
    assert read == content[: len(read)]
    with pytest.raises(OSError, match="descriptor"):
        file.size()


async def test_what_nobody_waits_for_shrinks_slowly(tmp_path, monkeypatch):
    """A quarter of a second a call, and no step before the last one is durable and a moment has
    gone by: syncs of other files wait behind what is freed at once."""
    noted = []
    for module, name in ((os, "ftruncate"), (os, "fsync"), (time, "sleep")):
        monkeypatch.setattr(module, name, noting(noted, name, getattr(module, name)))
    disk = RealDisk()
    calls = {}
    for behind in (0, FREE_AT_ONCE, 10 * FREE_AT_ONCE):
        file = disk.open(str(tmp_path / str(behind)), create=True)
        file.preallocate(1 << 28)
        noted.clear()
        calls[behind] = 1
        while not await disk.run(file.shrink, 0, behind):
            calls[behind] += 1
        assert noted == ["ftruncate", "fsync", "sleep"] * (1024 // (1 + min(behind, FREE_AT_ONCE)))
        file.close()
    assert calls[0] >= 7, "1,024 steps, each at least 2 ms"
    assert calls[FREE_AT_ONCE] < calls[0]


async def test_who_waits_hastens_a_discard_and_the_last_step_is_the_close(tmp_path, monkeypatch):
    noted = []
    for module, name in ((os, "ftruncate"), (os, "fsync"), (os, "close")):
        monkeypatch.setattr(module, name, noting(noted, name, getattr(module, name)))
    disk = RealDisk()
    for behind, steps in ((FREE_AT_ONCE, 7), (15, 15), (1000, 7)):
        file = disk.open(str(tmp_path / "file"), create=True)
        file.preallocate(1 << 26)
        noted.clear()
        while not await disk.run(file.discard, behind):
            pass
        assert noted == ["ftruncate", "fsync"] * steps + ["close"]


async def test_many_small_files_are_freed_quickly(tmp_path, monkeypatch):
    """Each waits as long as its share of a step, and is only closed."""
    slept, synced = [], []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    disk = RealDisk()
    for _ in range(100):
        file = disk.open(str(tmp_path / "file"), create=True)
        file.preallocate(1 << 16)
        assert file.discard(FREE_AT_ONCE)
    assert synced == []
    assert sum(slept) == pytest.approx(100 * 0.002 / 128)
    file = disk.open(str(tmp_path / "file"), create=True)
    assert file.discard(0), "an empty one"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["shrink", "discard"])
async def test_a_step_that_cannot_be_synced_is_no_full_disk(tmp_path, monkeypatch, call, number):
    """And no later sync of the file succeeds: what the first one left out nobody knows."""

    def fail(_):
        raise OSError(number, os.strerror(number))

    disk = RealDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    file.preallocate(1 << 20)
    arguments = (0, 0) if call == "shrink" else (0,)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=r".") as caught:
            await disk.run(getattr(file, call), *arguments)
    assert not is_full(caught.value)
    assert disk.statistics().sync_errors == 1
    with pytest.raises(OSError, match=r".") as again:
        await disk.run(getattr(file, call), *arguments)
    assert again.value is caught.value
    with pytest.raises(OSError, match=r".") as later:
        await file.wait_synced()
    assert later.value is caught.value
    file.close()


def noting(noted, name, function):
    def call(*arguments):
        noted.append(name)
        return function(*arguments)

    return call


async def test_what_is_cached_is_the_start_of_a_read(place):
    file = place.file(content=b"0123456789" * 1000)
    for size, offset in ((10, 0), (10_000, 0), (50, 9_990), (5, 10_000)):
        got = bytes(file.read_cached(size, offset))
        assert got == file.pread(size, offset)[: len(got)]
    assert file.is_cached(10_000, 0) in (True, False)
    file.prefetch(10_000, 0)
    file.close()


async def test_truncate_cuts_and_grows(place):
    file = place.file(content=b"0123456789")
    assert bytes(file.read_cached(10, 0)) == b"0123456789"
    file.truncate(4)
    assert file.size() == 4
    assert bytes(file.read_cached(10, 0)) == b"0123"
    file.truncate(6)
    assert file.pread(10, 0) == b"0123\0\0"
    file.close()


async def test_allocate_reserves_zeros(place):
    file = place.file(content=b"head")
    size = (1 << 20) + 4096 * 3 + 1
    file.allocate(size, 4)
    assert file.size() == 4 + size
    assert file.pread(size, 4) == bytes(size)
    assert file.pread(4, 0) == b"head"
    file.close()


async def test_sync_reports_exactly_once(place):
    file = place.file(content=b"x" * 100)
    reports = []
    for index in range(50):
        file.pwrite([b"y"], index)
        file.sync(lambda error, index=index: reports.append((index, error)))
    await file.wait_synced()
    assert reports == [(index, None) for index in range(50)]
    file.close()


async def test_sync_from_within_a_report(place):
    file = place.file(content=b"x")
    left = [2000]
    ended = trio.Event()

    def again(error):
        assert error is None
        left[0] -= 1
        if left[0]:
            file.pwrite([b"y"], left[0])
            file.sync(again)
        else:
            ended.set()

    file.sync(again)
    with trio.fail_after(30):
        await ended.wait()
    file.close()


async def test_sync_goes_on_when_its_waiter_is_cancelled(place):
    file = place.file(content=b"x")
    with trio.CancelScope() as scope:
        scope.cancel()
        await file.wait_synced()
    await file.wait_synced()
    file.close()


async def test_closed_file_refuses(place):
    file = place.file(content=b"x")
    file.close()
    file.close()
    for call in (
        file.size,
        lambda: file.pread(1, 0),
        lambda: file.pwrite([b"y"], 0),
        lambda: file.sync(lambda error: None),
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as info:
            call()
        assert info.value.errno == errno.EBADF


async def test_directories(place):
    disk = place.disk
    disk.make_directory(place.path("a/b"))
    disk.make_directory(place.path("a/b"))
    assert disk.list(place.path("a")) == ["b"]
    for name in ("z", "y", "x"):
        place.file(f"a/b/{name}").close()
    assert disk.list(place.path("a/b")) == ["x", "y", "z"]
    disk.sync_directory(place.path("a/b"))
    with pytest.raises(FileNotFoundError):
        disk.list(place.path("none"))
    with pytest.raises(OSError, match="not empty"):
        disk.remove(place.path("a/b"))
    with pytest.raises(FileExistsError):
        disk.make_directory(place.path("a/b/x"))


async def test_rename_replaces(place):
    place.file("old", b"new content").close()
    place.file("target", b"to be replaced").close()
    place.disk.rename(place.path("old"), place.path("target"))
    assert place.disk.list(place.root) == ["target"]
    file = place.disk.open(place.path("target"))
    assert file.pread(100, 0) == b"new content"
    file.close()
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place.path("old"), place.path("target"))


async def test_remove(place):
    place.file("a").close()
    assert place.disk.exists(place.path("a"))
    place.disk.remove(place.path("a"))
    assert not place.disk.exists(place.path("a"))
    with pytest.raises(FileNotFoundError):
        place.disk.remove(place.path("a"))


async def test_write_file_replaces_whole(place):
    place.disk.write_file(place.path("cookie"), b"first, the longer one")
    place.disk.write_file(place.path("cookie"), memoryview(b"second"))
    assert place.disk.list(place.root) == ["cookie"]
    file = place.disk.open(place.path("cookie"))
    assert file.pread(100, 0) == b"second"
    file.close()
    with pytest.raises(FileNotFoundError):
        place.disk.write_file(place.path("none/cookie"), b"")


async def test_lock_has_one_holder(place):
    release = place.disk.lock(place.path("lock"))
    with pytest.raises(BlockingIOError):
        place.disk.lock(place.path("lock"))
    release()
    release()
    place.disk.lock(place.path("lock"))()


async def test_usage(place):
    total, free = place.disk.usage(place.root)
    assert 0 < free <= total


async def test_run_gives_the_result_and_the_error(place):
    assert await place.disk.run(divmod, 17, 5) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        await place.disk.run(divmod, 17, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_any_sequence_of_calls_behaves_like_a_bytearray(place, seed):
    rng = random.Random(seed)
    file = place.file()
    model = bytearray()
    for _ in range(200):
        offset = rng.randrange(9000)
        match rng.randrange(5):
            case 0 | 1:
                parts = [rng.randbytes(rng.randrange(3000)) for _ in range(rng.randrange(1, 5))]
                data = b"".join(parts)
                file.pwrite(parts, offset)
                if data:
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + len(data)] = data
            case 2:
                size = rng.randrange(5000)
                assert file.pread(size, offset) == model[offset : offset + size]
            case 3 if offset < len(model):
                size = rng.randrange(len(model) - offset)
                assert file.read_cached(size, offset) == model[offset : offset + size]
            case 4 if rng.random() < 0.2:
                file.truncate(offset)
                del model[offset:]
                model.extend(bytes(offset - len(model)))
        assert file.size() == len(model)
    file.close()


async def test_preallocate_makes_it_as_long_and_keeps_what_is_there(place):
    file = place.file(content=b"head")
    file.preallocate(100_000)
    assert file.size() == 100_000
    assert file.pread(100_000, 0) == b"head" + bytes(99_996)
    file.preallocate(10)
    assert file.size() == 100_000
    file.close()


def test_preallocate_writes_where_the_file_system_cannot(tmp_path, monkeypatch):
    """glibc does so by itself; musl says that it cannot be done."""

    def refused(code):
        def fallocate(fd, offset, size):
            raise OSError(code, "")

        return fallocate

    monkeypatch.setattr(os, "posix_fallocate", refused(errno.EOPNOTSUPP))
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.pwrite([b"head"], 0)
    for size in (100_000, 10):
        file.preallocate(size)
        assert file.pread(file.size(), 0) == b"head" + bytes(99_996)
    monkeypatch.setattr(os, "posix_fallocate", refused(errno.ENOSPC))
    with pytest.raises(OSError, match="28"):
        file.preallocate(200_000)
    file.close()


def test_a_simulated_disk_has_no_space_to_preallocate():
    disk = SimDisk(random.Random(1))
    disk.faults.capacity_bytes = 1000
    file = disk.open("/f", create=True)
    file.preallocate(600)
    with pytest.raises(OSError, match="space") as caught:
        file.preallocate(1001)
    assert caught.value.errno == errno.ENOSPC
    assert (file.size(), disk.free_bytes()) == (600, 400)

"""What is RealDisk's own: threads, caches, and errors that the kernel reports once."""

import errno
import mmap
import os
import threading

import pytest
import trio

from runtime import file_views, real_disk
from runtime.real_disk import RealDisk


@pytest.fixture
def disk():
    return RealDisk()


@pytest.fixture
def file(disk, tmp_path):
    file = disk.open(str(tmp_path / "file"), create=True)
    yield file
    file.close()


def always(seconds):
    return lambda self, dirty_bytes: seconds


async def test_short_writes_are_completed(file, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: real(fd, [bufs[0], bufs[1][:2]], at))
    file.pwrite([b"abc", b"defg", b"", b"hi"], 4)
    assert file.pread(100, 4) == b"abcdefghi"


async def test_uncached_pages_are_seen_and_not_waited_for(file):
    size = 4 << 20
    file.pwrite([b"x" * size], 0)
    await file.wait_synced()
    fd = os.open(file.path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert not file.is_cached(10_000, 1 << 20)
    assert file.pread_nowait(10_000, 1 << 20) is None
    assert len(file.pread(10_000, 1 << 20)) == 10_000
    assert file.is_cached(10_000, 1 << 20)
    assert file.pread_nowait(10_000, 1 << 20) == b"x" * 10_000
    assert file.pread_nowait(10, size - 4) in (None, b"xxxx")


@pytest.mark.parametrize("seconds", [0.0, 1.0])
async def test_syncs_run_where_they_are_expected_to_be_cheap(disk, file, monkeypatch, seconds):
    monkeypatch.setattr(real_disk.SyncCost, "expected_seconds", always(seconds))
    threads = []
    real = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: (threads.append(threading.current_thread()), real(fd))
    )
    main = threading.current_thread()
    file.pwrite([b"x"], 0)
    reporters = []
    file.sync(lambda error: reporters.append(threading.current_thread()))
    assert reporters == ([] if seconds else [main])
    await file.wait_synced()
    assert all((thread is main) == (seconds == 0.0) for thread in threads)
    assert reporters == [main]
    assert (disk.statistics().syncs_inline, disk.statistics().syncs_threaded) == (
        (0, 2) if seconds else (2, 0)
    )


async def test_requests_during_a_sync_share_the_next_one(disk, file, monkeypatch):
    monkeypatch.setattr(real_disk.SyncCost, "expected_seconds", always(1.0))
    go = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda fd: go.wait(10))
    reports = []
    for index in range(5):
        file.sync(lambda error, index=index: reports.append(index))
    assert reports == []
    go.set()
    await file.wait_synced()
    assert reports == [0, 1, 2, 3, 4]
    assert disk.statistics().syncs_threaded == 2


@pytest.mark.parametrize("seconds", [0.0, 1.0])
async def test_a_failed_sync_fails_all_later_ones(disk, file, monkeypatch, seconds):
    monkeypatch.setattr(real_disk.SyncCost, "expected_seconds", always(seconds))
    failures = [OSError(errno.EIO, "lost pages")]

    def fdatasync(fd):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    reports = []
    for _ in range(3):
        file.sync(reports.append)
    with pytest.raises(OSError, match="lost pages"):
        await file.wait_synced()
    assert [error.errno for error in reports] == [errno.EIO] * 3
    assert disk.statistics().sync_errors == 1


async def test_close_waits_for_the_sync_under_way(file, monkeypatch):
    monkeypatch.setattr(real_disk.SyncCost, "expected_seconds", always(1.0))
    go = threading.Event()
    synced = []
    real = os.fdatasync

    def fdatasync(fd):
        go.wait(10)
        real(fd)  # EBADF if the descriptor was closed under it
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    ended = trio.Event()
    reports = []
    file.sync(lambda error: (reports.append(error), ended.set()))
    file.close()
    go.set()
    with trio.fail_after(10):
        await ended.wait()
    assert reports == [None]
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(synced[0])


async def test_a_report_after_the_loop_ended_is_dropped(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(real_disk.SyncCost, "expected_seconds", always(1.0))
    go, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda fd: (go.wait(10), ended.set()))

    async def leave_early():
        RealDisk().open(str(tmp_path / "other"), create=True).sync(lambda error: None)

    await trio.to_thread.run_sync(trio.run, leave_early)
    go.set()
    assert ended.wait(10)
    assert capfd.readouterr().err == ""


def test_sync_without_a_loop_is_inline(disk, tmp_path):
    """Off-line tools use the same code."""
    file = disk.open(str(tmp_path / "file"), create=True)
    reports = []
    file.sync(reports.append)
    assert reports == [None]
    file.close()


def test_cost_rises_fast_and_falls_slowly():
    cost = real_disk.SyncCost()
    limit = real_disk.INLINE_SYNC_MAX_SECONDS
    assert cost.expected_seconds(0) > limit  # unknown is slow
    for _ in range(60):
        cost.learn(4096, 0.0001)
    assert cost.expected_seconds(0) < limit / 2
    cost.learn(4096, 0.1)
    assert cost.expected_seconds(0) > limit
    for _ in range(20):
        cost.learn(4096, 0.0001)
    assert cost.expected_seconds(0) > limit
    for _ in range(100):
        cost.learn(4096, 0.0001)
    assert cost.expected_seconds(0) < limit
    for _ in range(40):
        cost.learn(100 << 20, 1.0)
    assert 0.5 < cost.expected_seconds(100 << 20) < 1.5


def test_view_does_not_copy(disk, tmp_path):
    """A view of a file that is there costs address space, not memory of its own."""
    file = disk.open(str(tmp_path / "big"), create=True)
    file.truncate(1 << 34)  # a hole
    view = file.view(1 << 33, 1 << 33)
    assert len(view) == 1 << 33
    assert view[-1] == 0
    file.close()


def resident_bytes(path):
    """Of all mappings of a file, by /proc."""
    total = 0
    is_wanted = False
    with open("/proc/self/smaps") as mappings:
        for line in mappings:
            name, *rest = line.split()
            if not name.endswith(":"):
                is_wanted = rest[-1] == str(path)
            elif is_wanted and name == "Rss:":
                total += int(rest[0]) * 1024
    return total


@pytest.mark.parametrize("step", [1 << 16, 1 << 20, 1 << 25])
def test_pages_looked_at_do_not_stay_mapped(disk, tmp_path, step):
    """However much is read, in whatever steps; what was handed out before stays readable."""
    path = tmp_path / "log"
    file = disk.open(str(path), create=True)
    size = 64 << 20
    block = os.urandom(1 << 20)
    for offset in range(0, size, len(block)):
        file.pwrite([block], offset)
    early = file.view(len(block), 0)
    most = 0
    for offset in range(0, size, step):
        view = file.view(step, offset)
        assert bytes(view[:100]) == block[offset % len(block) :][:100]
        assert sum(view[:: mmap.PAGESIZE]) > 0
        if offset % (1 << 20) == 0:
            most = max(most, resident_bytes(path))
        # Longer than the mapping: it is made anew, and the first lives on in `early`.
        if offset == size // 2:
            file.pwrite([block], size)
            file.view(1, size)
    assert 0 < most <= file_views.MAPPED_SIZE_MAX_BYTES + 2 * max(step, 1 << 20)
    assert bytes(early) == block
    file.close()


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no tmpfs at /dev/shm")
def test_memory_needs_no_waiting(disk):
    path = f"/dev/shm/quire-test-{os.getpid()}"
    file = disk.open(path, create=True)
    try:
        file.pwrite([b"x" * 10_000], 0)
        assert file.is_cached(10_000, 0)
        assert file.pread_nowait(20_000, 0) == b"x" * 10_000
    finally:
        file.close()
        os.remove(path)


def test_where_it_is_unknown_a_read_is_taken_to_wait(disk, file, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    file.pwrite([b"x"], 0)
    monkeypatch.setattr(os, "preadv", refuse)
    assert file.pread_nowait(1, 0) is None
    assert not file.is_cached(1, 0)

"""What is RealDisk's own: threads, caches, and errors that the kernel reports once."""

import errno
import os
import threading

import pytest
import trio

from runtime import real_disk
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


async def look_until_gone(file, look):
    """The system keeps pages for a moment that another processor has in hand, and may read some
    ahead once they were looked for."""
    fd = os.open(file.path, os.O_RDONLY)
    with trio.fail_after(10):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        while not look():
            await trio.sleep(0.001)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


async def test_uncached_pages_are_seen_and_not_waited_for(file):
    size = 4 << 20
    file.pwrite([b"x" * size], 0)
    await file.wait_synced()
    await look_until_gone(file, lambda: not file.is_cached(10_000, 1 << 20))
    await look_until_gone(file, lambda: file.read_cached(10_000, 1 << 20) == b"")
    assert len(file.pread(10_000, 1 << 20)) == 10_000
    assert file.is_cached(10_000, 1 << 20)
    assert file.read_cached(10_000, 1 << 20) == b"x" * 10_000
    assert file.read_cached(10, size - 4) in (b"", b"xxxx")


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


@pytest.mark.parametrize("size", [100, 20_000, 300_000, 2 << 20])
def test_what_was_read_is_no_mapping_of_the_file(disk, tmp_path, size):
    """Whoever looks into it is not hit by what happens to the file, and memory is used again."""
    file = disk.open(str(tmp_path / "log"), create=True)
    blocks = [os.urandom(size) for _ in range(4)]
    file.pwrite(blocks, 0)
    first = file.read_cached(size, 0)
    others = [file.read_cached(size, size * i) for i in (1, 2, 3)]
    file.truncate(10)
    assert [first, *others] == blocks
    assert all(view.readonly for view in others)
    with open("/proc/self/maps") as mappings:
        assert str(tmp_path / "log") not in mappings.read()
    del others
    assert file.read_cached(size, 0) == blocks[0][:10]
    assert first == blocks[0]
    file.close()


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no tmpfs at /dev/shm")
def test_memory_needs_no_waiting(disk):
    path = f"/dev/shm/quire-test-{os.getpid()}"
    file = disk.open(path, create=True)
    try:
        file.pwrite([b"x" * 10_000], 0)
        assert file.is_cached(10_000, 0)
        assert file.read_cached(20_000, 0) == b"x" * 10_000
    finally:
        file.close()
        os.remove(path)


def test_where_it_is_unknown_a_read_is_taken_to_wait(disk, file, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    file.pwrite([b"x"], 0)
    monkeypatch.setattr(os, "preadv", refuse)
    assert file.read_cached(1, 0) == b""
    assert not file.is_cached(1, 0)

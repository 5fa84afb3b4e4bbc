"""RealDisk: the operating system's files behind the seam of `runtime.disk`.

Owner: the event loop's thread. Worker threads see a file descriptor for the time of one fdatasync,
and whatever function is given to `run`.

How a sync is made. A file has at most one fdatasync under way; requests that arrive meanwhile share
the next one, which starts after all of their writes. Two at once would be wrong, not only wasteful:
Linux reports a write-back error once for each open file, so the second could succeed over pages
that the first one lost. For the same reason a file whose sync failed fails all later ones.

Where it is made depends on what was measured on that device. A sync of few dirty bytes that is
expected to be short is made on the loop's own thread: nothing is quicker for a client that waits.
Others are handed to the kernel (runtime.kernel_aio), and the loop serves the next burst meanwhile.
Without a poller to hear of their end, or without such a kernel, short ones are made on the loop's
thread and long ones on a worker thread, which costs about as much as a sync of a fast disk, and the
interpreter's lock besides.

Non-obvious: no file is mapped. A mapped page that the disk fails to read, or that a `truncate` cut
off, would end the process with SIGBUS (runtime.cached_reads)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import sys
import time
from typing import TYPE_CHECKING

import trio

from runtime.cached_reads import CachedReads
from runtime.disk import FREE_AT_ONCE, sync_error
from runtime.kernel_aio import KernelAio
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    import outcome

    from runtime.disk import SyncDone, T
    from runtime.poller import Poller
    from wire.buffers import Buffer, Buffers

IOV_MAX = os.sysconf("SC_IOV_MAX")
ALLOCATE_CHUNK_SIZE_BYTES = 1 << 20
#: A sync that is expected to take longer than this does not run on the loop's thread.
INLINE_SYNC_MAX_SECONDS = 0.001
#: Nor does one of more dirty bytes than this, if the kernel can make it by itself.
INLINE_SYNC_MAX_BYTES = 64 * 1024
#: Syncs of at most this many dirty bytes teach a device's latency, larger ones its rate.
SMALL_SYNC_SIZE_BYTES = 64 * 1024
WORKER_THREADS_MAX = 16
PAGE_SIZE_BYTES = mmap.PAGESIZE
#: Blocks are freed in such steps with such pauses, or as long ones as the step took. Mounted with
#: `discard`, every sync waits until the device has heard of all that is freed by then: 60 to 300 ms
#: for 256 MiB. What that costs others, by step and pause: bench/freed.py.
FREE_STEP_SIZE_BYTES = 256 << 10
FREE_PAUSE_SECONDS = 0.002
FREE_SECONDS = 0.25

_NOWAIT_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_FLAG_NOWAIT = os.RWF_NOWAIT


@dataclass(slots=True)
class DiskStatistics:
    """Counters since the start, and the present estimate for a sync of little dirty data."""

    syncs_inline: int = 0
    syncs_kernel: int = 0
    syncs_threaded: int = 0
    sync_seconds: float = 0.0
    sync_errors: int = 0


class SyncCost:
    """What a sync costs on one device: a latency, plus the dirty bytes at a rate.

    Both estimates follow a rise fast and a fall slowly: one stall of a busy disk sends the next
    few dozen syncs to a thread, where they are measured until they are short again. Until the
    first measurement a sync is taken to be slow."""

    __slots__ = ("_latency_seconds", "_seconds_per_byte")

    def __init__(self) -> None:
        self._latency_seconds = 2 * INLINE_SYNC_MAX_SECONDS
        self._seconds_per_byte = 1 / 200e6

    def expected_seconds(self, dirty_bytes: int) -> float:
        return self._latency_seconds + dirty_bytes * self._seconds_per_byte

    def learn(self, dirty_bytes: int, seconds: float) -> None:
        if dirty_bytes <= SMALL_SYNC_SIZE_BYTES:
            self._latency_seconds = _follow(self._latency_seconds, seconds)
        else:
            over = max(0.0, seconds - self._latency_seconds)
            self._seconds_per_byte = _follow(self._seconds_per_byte, over / dirty_bytes)


@dataclass(slots=True)
class Device:
    """What is known of one file system: what syncs cost there, and whether it is memory, where a
    read never waits but RWF_NOWAIT is refused (tmpfs)."""

    cost: SyncCost
    is_memory: bool
    kernel: Callable[[], KernelAio | None]


def _is_memory(device: int) -> bool:
    """Whether the device of an `st_dev` is a file system in memory; False if that is unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return False
    # Field 2 is the device; the type follows the lone dash (proc_pid_mountinfo(5)).
    types = {fields[fields.index("-") + 1] for fields in lines if fields[2] == wanted}
    return bool(types) and types <= {"tmpfs", "ramfs"}


def _follow(estimate: float, sample: float) -> float:
    weight = 0.25 if sample > estimate else 0.0625
    return estimate + (sample - estimate) * weight


class RealFile:
    """See `runtime.disk.File`."""

    __slots__ = (
        "_busy",
        "_cached_reads",
        "_closing",
        "_device",
        "_dirty_bytes",
        "_failure",
        "_fd",
        "_path",
        "_statistics",
        "_waiting",
    )

    def __init__(
        self,
        path: str,
        fd: int,
        device: Device,
        statistics: DiskStatistics,
        cached_reads: CachedReads,
    ) -> None:
        self._path = path
        self._fd = fd
        self._device = device
        self._statistics = statistics
        self._cached_reads = cached_reads
        self._dirty_bytes = 0
        self._waiting: list[SyncDone] = []
        self._busy = False
        self._closing = False
        self._failure: OSError | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pwrite(self, buffers: Buffers, offset: int) -> None:
        if len(buffers) <= IOV_MAX:
            size = sum(map(len, buffers))
            written = os.pwritev(self._fd, buffers, offset)
            self._dirty_bytes += written
            if written < size:
                self._pwrite_rest(buffers, offset + written, written)
            return
        for start in range(0, len(buffers), IOV_MAX):
            part = buffers[start : start + IOV_MAX]
            self.pwrite(part, offset)
            offset += sum(map(len, part))

    def _pwrite_rest(self, buffers: Buffers, offset: int, skip: int) -> None:
        """A short write is rare (a full disk, a signal, 2 GiB): the plain way from here on."""
        for buffer in buffers:
            rest = memoryview(buffer)[skip:]
            skip = max(0, skip - len(buffer))
            while rest:
                written = os.pwrite(self._fd, rest, offset)
                self._dirty_bytes += written
                offset += written
                rest = rest[written:]

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, size: int, offset: int) -> memoryview:
        is_memory = self._device.is_memory
        return self._cached_reads.read(self._fd, size, offset, is_memory=is_memory)

    def is_cached(self, size: int, offset: int) -> bool:
        last = offset + max(size, 1) - 1
        if not self._is_byte_cached(offset):
            return False
        if last // PAGE_SIZE_BYTES == offset // PAGE_SIZE_BYTES:
            return True
        return self._is_byte_cached(last)

    def _is_byte_cached(self, offset: int) -> bool:
        try:
            os.preadv(self._fd, [bytearray(1)], offset, _FLAG_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NOWAIT_UNSUPPORTED:
                return self._device.is_memory
            raise
        return True

    def prefetch(self, size: int, offset: int) -> None:
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def drop_cached(self, size: int, offset: int) -> None:
        skip = offset % PAGE_SIZE_BYTES  # the kernel leaves a page that is only partly in a range
        os.posix_fadvise(self._fd, offset - skip, size + skip, os.POSIX_FADV_DONTNEED)

    def allocate(self, size: int, offset: int) -> None:
        zeros = bytes(min(size, ALLOCATE_CHUNK_SIZE_BYTES))
        end = offset + size
        while offset < end:
            chunk = memoryview(zeros)[: end - offset]
            self.pwrite([chunk], offset)
            offset += len(chunk)

    def preallocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # The file system cannot, and this C library (musl) does not write instead.
            if (had := self.size()) < size:
                self.allocate(size - had, had)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def shrink(self, size: int, behind: int) -> bool:
        end = self.size()
        step = FREE_STEP_SIZE_BYTES * min(1 + behind, 1 + FREE_AT_ONCE)
        until = time.monotonic() + FREE_SECONDS
        while end > size:
            before = time.monotonic()
            if before > until:
                return False
            end = max(size, end - step)
            os.ftruncate(self._fd, end)
            self._sync_step()
            time.sleep(max(FREE_PAUSE_SECONDS, time.monotonic() - before))
        return True

    def _sync_step(self) -> None:
        """On a worker thread: nobody else syncs the file meanwhile. As of any other sync, no later
        one succeeds when one has failed."""
        if self._failure is None:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._failure = sync_error(error)
                self._statistics.sync_errors += 1
        if self._failure is not None:
            raise self._failure

    def discard(self, behind: int) -> bool:
        """The last step is that of the close; a small file has no other, and waits as long as its
        share of a step."""
        step = FREE_STEP_SIZE_BYTES * min(1 + behind, 1 + FREE_AT_ONCE)
        if not self.shrink(step, behind):
            return False
        share = min(self.size() / step, 1.0)
        before = time.monotonic()
        self.close()
        time.sleep(max(FREE_PAUSE_SECONDS * share, time.monotonic() - before))
        return True

    def sync(self, done: SyncDone) -> None:
        if self._fd < 0 or self._closing:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        self._waiting.append(done)
        if not self._busy:
            self._sync_waiting()

    async def wait_synced(self) -> None:
        event = trio.Event()
        errors: list[OSError | None] = []

        def done(error: OSError | None) -> None:
            errors.append(error)
            event.set()

        self.sync(done)
        await event.wait()
        if (error := errors[0]) is not None:
            raise error

    def close(self) -> None:
        if self._busy:
            self._closing = True  # the descriptor's number must not be reused under a sync
        elif self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _sync_waiting(self) -> None:
        """Syncs until nobody waits or a worker thread took over. A `done` that syncs again only
        adds to `_waiting` and is served by this loop, so the stack does not grow."""
        self._busy = True
        while self._waiting:
            batch, self._waiting = self._waiting, []
            dirty_bytes, self._dirty_bytes = self._dirty_bytes, 0
            if self._failure is None:
                kernel = self._device.kernel()
                if kernel is not None:
                    short = self._is_short(dirty_bytes, INLINE_SYNC_MAX_BYTES)
                    if not short and self._sync_in_kernel(kernel, batch, dirty_bytes):
                        return
                elif not self._is_short(dirty_bytes, sys.maxsize) and trio.lowlevel.in_trio_run():
                    self._sync_in_thread(batch, dirty_bytes)
                    return
            seconds, error = _timed_sync(self._fd) if self._failure is None else (0.0, None)
            self._statistics.syncs_inline += 1
            self._synced(batch, dirty_bytes, seconds, error)
        self._busy = False
        if self._closing:
            self.close()

    def _is_short(self, dirty_bytes: int, bytes_max: int) -> bool:
        if dirty_bytes > bytes_max:
            return False
        return self._device.cost.expected_seconds(dirty_bytes) <= INLINE_SYNC_MAX_SECONDS

    def _sync_in_kernel(self, kernel: KernelAio, batch: list[SyncDone], dirty_bytes: int) -> bool:
        start = time.perf_counter()

        def finish(error: OSError | None) -> None:
            self._synced(batch, dirty_bytes, time.perf_counter() - start, error)
            self._sync_waiting()

        if not kernel.fdatasync(self._fd, finish):
            return False
        self._statistics.syncs_kernel += 1
        return True

    def _sync_in_thread(self, batch: list[SyncDone], dirty_bytes: int) -> None:
        fd = self._fd
        token = trio.lowlevel.current_trio_token()
        self._statistics.syncs_threaded += 1

        def finish(seconds: float, error: OSError | None) -> None:
            self._synced(batch, dirty_bytes, seconds, error)
            self._sync_waiting()

        def deliver(result: outcome.Outcome[tuple[float, OSError | None]]) -> None:
            try:
                token.run_sync_soon(finish, *result.unwrap())
            except trio.RunFinishedError:
                return  # the loop ended without waiting for its syncs: nobody is left to tell

        trio.lowlevel.start_thread_soon(lambda: _timed_sync(fd), deliver, "quire-sync")

    def _synced(
        self, batch: list[SyncDone], dirty_bytes: int, seconds: float, error: OSError | None
    ) -> None:
        if error is not None and self._failure is None:
            self._failure = sync_error(error)
            self._statistics.sync_errors += 1
        elif error is None and self._failure is None:
            self._device.cost.learn(dirty_bytes, seconds)
            self._statistics.sync_seconds += seconds
        for done in batch:
            done(self._failure)


def _timed_sync(fd: int) -> tuple[float, OSError | None]:
    start = time.perf_counter()
    try:
        os.fdatasync(fd)
    except OSError as error:
        return time.perf_counter() - start, error
    return time.perf_counter() - start, None


class RealDisk:
    """See `runtime.disk.Disk`."""

    def __init__(self, poller: Poller | None = None) -> None:
        """`poller`: hears of syncs that the kernel has finished, while it runs."""
        self._statistics = DiskStatistics()
        self._devices: dict[int, Device] = {}
        self._limiter: trio.CapacityLimiter | None = None
        self._cached_reads = CachedReads()
        self._poller = poller
        self._kernel: KernelAio | None = None
        if poller is not None:
            self._kernel = KernelAio.open()
            if self._kernel is not None:
                poller.register(self._kernel.eventfd, select.EPOLLIN, self._kernel.on_ready)
                poller.at_end(self._kernel.close)

    def _running_kernel(self) -> KernelAio | None:
        if self._poller is None or not self._poller.is_running:
            return None
        return self._kernel

    def statistics(self) -> DiskStatistics:
        """The live counters; the caller does not change them."""
        return self._statistics

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(path, flags, 0o640)
        number = os.fstat(fd).st_dev
        device = self._devices.get(number)
        if device is None:
            device = self._devices[number] = Device(
                SyncCost(), _is_memory(number), self._running_kernel
            )
        return RealFile(path, fd, device, self._statistics, self._cached_reads)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, 0o750, exist_ok=True)

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.remove(path)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def link_count(self, path: str) -> int:
        return os.stat(path).st_nlink

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise sync_error(error) from error
        finally:
            os.close(fd)

    def write_file(self, path: str, data: Buffer) -> None:
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                try:
                    os.fsync(file.fileno())
                except OSError as error:
                    raise sync_error(error) from error
            os.replace(temporary, path)
        except OSError:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise
        self.sync_directory(os.path.dirname(path) or ".")

    def usage(self, path: str) -> tuple[int, int]:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        held = [fd]

        def release() -> None:
            if held:
                os.close(held.pop())

        return release

    async def run(self, function: Callable[..., T], *args: object) -> T:
        if self._limiter is None:
            self._limiter = trio.CapacityLimiter(WORKER_THREADS_MAX)
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter)

"""SimDisk: files in memory that forget what was not synced.

The same seam as `RealDisk` (one contract suite runs over both), for simulations: no thread, no
operating system, every choice from the given entropy, slow syncs in trio's (virtual) time.

What a crash keeps:
- of each file, all that a finished sync covered; of every write or truncate after it, each one
  by itself, all of it, nothing, or (a write) its first bytes. So a later write may survive an
  earlier one, and a lost write that made the file grow leaves zeros under a later one;
- of each directory, the changes before its last `sync_directory`, and of those after it any
  number of the oldest. A file whose name was lost is gone, however often it was synced.

Files opened before the crash are dead: every call on them fails with EBADF, and a sync that was
under way never reports. `runtime.sim_disk_life` does the same for the disk's
own calls.

`observe` is told of each change before it is made, and may crash the disk there.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from runtime.sim_disk_nodes import Change, NameChange, Node, absolute, parent_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.disk import SyncDone, T
    from runtime.env import Rng
    from wire.buffers import Buffer, Buffers


#: What the system says of a read that fails: of this simulation one can tell it from a sync's.
READ_ERROR = "Input/output error while reading"


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong; may be changed at any time."""

    #: Writes that would take the files' sizes beyond this fail with ENOSPC.
    capacity_bytes: int = 1 << 40
    #: The sync with this number (counted over the disk, the first is 1) fails with EIO.
    failing_sync_number: int | None = None
    #: Each sync takes a time from this range, in seconds; (0, 0) is at once, inline.
    sync_seconds: tuple[float, float] = (0.0, 0.0)
    #: Share of reads that find their pages in memory.
    cached_share: float = 1.0
    #: Share of reads that fail with EIO, and would not if they were tried again. (Parts of a file
    #: that fail again and again: `make_unreadable`.)
    read_error_share: float = 0.0
    #: What `run` takes beside the function's own work, in seconds.
    run_seconds: tuple[float, float] = (0.0, 0.0)
    #: Functions that `run` makes at a time, if they take any time.
    workers_max: int = 16


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class SimFile:
    """See `runtime.disk.File`."""

    __slots__ = ("_disk", "_generation", "_node", "_open", "_path")

    def __init__(self, disk: SimDisk, path: str, node: Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._open = True
        self._generation = disk.generation
        node.open_count += 1

    @property
    def path(self) -> str:
        return self._path

    def _content(self) -> bytearray:
        if not self._open or self._generation != self._disk.generation:
            raise _error(errno.EBADF, self._path)
        return self._node.content

    def size(self) -> int:
        return len(self._content())

    def pwrite(self, buffers: Buffers, offset: int) -> None:
        data = b"".join(buffers)
        self._disk.observe("write", f"{self._path} {offset}+{len(data)}")
        content = self._content()
        room = max(0, len(content) + self._disk.free_bytes() - offset)
        if room < len(data):
            self._change(Change(offset, data[:room]))
            raise _error(errno.ENOSPC, self._path)
        self._change(Change(offset, data))

    def _change(self, change: Change) -> None:
        before = len(self._node.content)
        change.apply(self._node.content)
        self._disk.used_bytes += len(self._node.content) - before
        self._node.changes.append(change)
        if change.data is not None:
            self._node.written(change.offset, change.offset + len(change.data))

    def pread(self, size: int, offset: int) -> bytes:
        content = self._content()
        if self._disk.fails_to_read() or not self._node.is_readable(offset, offset + size):
            self._disk.read_error_count += 1
            raise OSError(errno.EIO, READ_ERROR, self._path)
        return bytes(memoryview(content)[offset : offset + size])

    def read_cached(self, size: int, offset: int) -> memoryview:
        self._content()
        if size < 0:
            raise ValueError("negative count")  # as memory of that size
        return memoryview(self.pread(self._disk.cached_size(size), offset))

    def is_cached(self, size: int, offset: int) -> bool:
        self._content()
        return self._node.is_readable(offset, offset + size) and self._disk.is_lucky()

    def prefetch(self, size: int, offset: int) -> None:
        self._content()

    def drop_cached(self, size: int, offset: int) -> None:
        self._content()

    def allocate(self, size: int, offset: int) -> None:
        self.pwrite([bytes(size)], offset)

    def preallocate(self, size: int) -> None:
        missing = size - len(self._content())
        if missing > self._disk.free_bytes():
            raise _error(errno.ENOSPC, self._path)
        if missing > 0:
            self.truncate(size)

    def truncate(self, size: int) -> None:
        self._disk.observe("truncate", f"{self._path} {size}")
        self._content()
        self._change(Change(size, None))

    def shrink(self, size: int, behind: int) -> bool:
        """Cuts off a part first, so that there is something to crash between."""
        if (over := self.size() - size) > 0:
            self.truncate(size + over // 16)
            self._disk.sync_now(self._path, self._node)
        return over < 16

    def discard(self, behind: int) -> bool:
        """What is cut from a file whose name is not durably gone may be missing after a crash."""
        self.truncate(0)
        self.close()
        return True

    def sync(self, done: SyncDone) -> None:
        self._disk.observe("sync", self._path)
        self._content()
        self._node.waiting.append(done)
        if not self._node.busy:
            self._disk.sync_waiting(self._path, self._node)

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
        if self._open and self._generation == self._disk.generation:
            self._node.open_count -= 1
            self._disk.let_go(self._node)
        self._open = False


class SimDisk:
    """See `runtime.disk.Disk`. Paths are absolute or relative to `/`; `/` is there."""

    def __init__(
        self,
        rng: Rng,
        faults: DiskFaults | None = None,
        *,
        observe: Callable[[str, str], None] | None = None,
    ) -> None:
        """`observe(event, detail)`: see the module's contract."""
        self.faults = faults if faults is not None else DiskFaults()
        self.observe = observe if observe is not None else lambda _event, _detail: None
        self.generation = 0
        self.used_bytes = 0
        self.sync_count = 0
        self.read_error_count = 0
        self._rng = rng
        self._names: dict[str, Node] = {"/": Node(is_directory=True)}
        self._durable_names = dict(self._names)
        self._name_changes: list[NameChange] = []
        self._locks: set[str] = set()
        self._workers: trio.CapacityLimiter | None = None
        #: While the process stands still: set when it goes on.
        self._resumed: trio.Event | None = None

    # What the simulation does to it.

    def crash(self) -> None:
        """The machine loses power: see the module's contract for what is left."""
        self.generation += 1
        self._locks.clear()
        survivors: dict[str, int] = {}  # by directory: how many more of its changes are kept
        for change in self._name_changes:
            directory = parent_of(change.path)
            if directory not in survivors:
                pending = sum(parent_of(c.path) == directory for c in self._name_changes)
                survivors[directory] = self._rng.randrange(pending + 1)
            if survivors[directory] > 0:
                survivors[directory] -= 1
                change.apply(self._durable_names)
        self._name_changes.clear()
        # An entry of a directory that was lost, or of one that is now a file, cannot be reached.
        kept: dict[str, Node] = {}
        for path, node in sorted(self._durable_names.items()):
            parent = kept.get(parent_of(path))
            if path == "/" or (parent is not None and parent.is_directory):
                kept[path] = node
        self._names = kept
        self._durable_names = dict(kept)
        # A file may have several names.
        nodes = list({id(node): node for node in kept.values()}.values())
        for node in nodes:
            self._crash_node(node)
        self.used_bytes = sum(len(node.content) for node in nodes)

    def halt(self) -> None:
        """The process stands still: syncs are done, and it is told after `resume`."""
        self._resumed = trio.Event()

    def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def kill(self) -> None:
        """The process ends, and the machine goes on: nothing that was written is lost, and none of
        it is more durable than before."""
        self.generation += 1
        self._locks.clear()
        nodes = list({id(node): node for node in self._names.values()}.values())
        self.used_bytes = sum(len(node.content) for node in nodes)
        for node in nodes:
            node.open_count = 0
            node.waiting = []
            node.busy = False
            node.failure = None  # who opens the file anew is not told of it

    def _crash_node(self, node: Node) -> None:
        for change in node.changes:
            fate = self._rng.randrange(4)
            if fate == 0 and change.data:
                change.apply(node.durable, self._rng.randrange(len(change.data)))
            elif fate >= 2:
                change.apply(node.durable)
        node.content = bytearray(node.durable)
        node.changes = []
        node.waiting = []
        node.busy = False
        node.failure = None
        node.open_count, node.is_nameless = 0, False

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Bit rot: changes one bit of what is stored, durably. IndexError beyond the end."""
        node = self._node(path)
        node.content[offset] ^= 1 << bit
        if offset < len(node.durable):
            node.durable[offset] ^= 1 << bit

    def make_unreadable(self, path: str, offset: int, size: int) -> None:
        """A latent error: reads of any of these bytes fail with EIO, until all of them are written
        again."""
        self._node(path).unreadable.append((offset, offset + size))

    def durable_content(self, path: str) -> bytes:
        """What a power failure would leave of the file for certain."""
        return bytes(self._node(path).durable)

    def is_durable(self, data: bytes, directory: str) -> bool:
        """Whether a file somewhere below `directory` would have these bytes after a power failure
        now, whatever else that keeps."""
        # Asked for each copy of each entry, mostly of the last that was written: the newest first.
        for path, node in reversed(self._durable_names.items()):
            if path.startswith(directory) and data in node.durable:
                return True
        return False

    # What files ask.

    def free_bytes(self) -> int:
        return max(0, self.faults.capacity_bytes - self.used_bytes)

    def let_go(self, node: Node) -> None:
        """Its last name is gone, or an open file of it: its space comes back after the last."""
        if node.is_nameless and not node.open_count:
            self.used_bytes -= len(node.content)

    def is_lucky(self) -> bool:
        share = self.faults.cached_share
        return share >= 1.0 or self._rng.random() < share

    def fails_to_read(self) -> bool:
        share = self.faults.read_error_share
        return share > 0.0 and self._rng.random() < share

    def cached_size(self, size: int) -> int:
        """How much of a range is in memory, from its start on."""
        if self.is_lucky():
            return size
        if self.faults.cached_share <= 0.0 or self._rng.random() < 0.5:
            return 0
        return self._rng.randrange(size + 1)

    def sync_waiting(self, path: str, node: Node) -> None:
        """As in `RealFile`: one sync of a file at a time, and one for all who asked meanwhile."""
        node.busy = True
        while node.waiting:
            batch, node.waiting = node.waiting, []
            low, high = self.faults.sync_seconds
            if high > 0:
                seconds = low + (high - low) * self._rng.random()
                finish = partial(self._finish_sync, path, node, batch, len(node.changes))
                trio.lowlevel.spawn_system_task(
                    self._sync_later, path, node, finish, seconds, self.generation
                )
                return
            self._finish_sync(path, node, batch, len(node.changes))
        node.busy = False

    async def _sync_later(
        self, path: str, node: Node, finish: Callable[[], None], seconds: float, generation: int
    ) -> None:
        await trio.sleep(seconds)
        if self._resumed is not None:
            await self._resumed.wait()
        if generation == self.generation:
            finish()
            self.sync_waiting(path, node)

    def _finish_sync(self, path: str, node: Node, batch: list[SyncDone], count: int) -> None:
        if node.failure is None:
            try:
                self._count_sync(path)
            except OSError as error:
                node.failure = error
            else:
                for change in node.changes[:count]:
                    change.apply(node.durable)
                del node.changes[:count]
        for done in batch:
            done(node.failure)

    def sync_now(self, path: str, node: Node) -> None:
        """For who waits on a worker thread. OSError."""
        count = len(node.changes)
        self._finish_sync(path, node, [], count)
        if node.busy:
            # Another is under way, which counted what is to be durable then: nothing is left of it.
            node.changes[:0] = [Change(0, b"")] * (count - len(node.changes))
        if node.failure is not None:
            raise node.failure

    def _count_sync(self, path: str) -> None:
        self.sync_count += 1
        if self.sync_count == self.faults.failing_sync_number:
            raise _error(errno.EIO, path)

    # The disk's own calls.

    def _path(self, path: str) -> str:
        return absolute(path)

    def _node(self, path: str) -> Node:
        node = self._names.get(self._path(path))
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _rename_node(self, path: str, node: Node | None, source: str | None = None) -> None:
        parent = self._names.get(parent_of(path))
        if parent is None:
            raise _error(errno.ENOENT, path)
        if not parent.is_directory:
            raise _error(errno.ENOTDIR, path)
        change = NameChange(path, node, source)
        change.apply(self._names)
        self._name_changes.append(change)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimFile:
        full = self._path(path)
        node = self._names.get(full)
        if node is None:
            if not (create or exclusive):
                raise _error(errno.ENOENT, path)
            node = Node()
            self._rename_node(full, node)
        elif exclusive:
            raise _error(errno.EEXIST, path)
        elif node.is_directory:
            raise _error(errno.EISDIR, path)
        return SimFile(self, path, node)

    def list(self, directory: str) -> list[str]:
        full = self._path(directory)
        if not self._node(directory).is_directory:
            raise _error(errno.ENOTDIR, directory)
        before = full.rstrip("/") + "/"
        return sorted(
            path[len(before) :]
            for path in self._names
            if path.startswith(before) and path != "/" and "/" not in path[len(before) :]
        )

    def exists(self, path: str) -> bool:
        return self._path(path) in self._names

    def make_directory(self, path: str) -> None:
        full = self._path(path)
        node = self._names.get(full)
        if node is None:
            self.make_directory(parent_of(full))
            self._rename_node(full, Node(is_directory=True))
        elif not node.is_directory:
            raise _error(errno.EEXIST, path)

    def remove(self, path: str) -> None:
        node = self._node(path)
        if node.is_directory and self.list(path):
            raise _error(errno.ENOTEMPTY, path)
        is_last = self.link_count(path) == 1
        self._rename_node(self._path(path), None)
        if is_last:
            node.is_nameless = True
            self.let_go(node)

    def link(self, source: str, target: str) -> None:
        node = self._node(source)
        if node.is_directory:
            raise _error(errno.EPERM, source)
        if self._path(target) in self._names:
            raise _error(errno.EEXIST, target)
        self._rename_node(self._path(target), node)

    def link_count(self, path: str) -> int:
        node = self._node(path)
        return sum(each is node for each in self._names.values())

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        full_source, full_target = self._path(source), self._path(target)
        if node.is_directory:
            raise _error(errno.EISDIR, source)
        replaced = self._names.get(full_target)
        if replaced is node:
            return
        is_last = replaced is not None and self.link_count(target) == 1
        self._rename_node(full_target, node, full_source)
        if replaced is not None and is_last:
            replaced.is_nameless = True
            self.let_go(replaced)

    def sync_directory(self, path: str) -> None:
        full = self._path(path)
        if not self._node(path).is_directory:
            raise _error(errno.ENOTDIR, path)
        self._count_sync(path)
        rest = []
        for change in self._name_changes:
            if change.touches(full):
                change.apply(self._durable_names)
            else:
                rest.append(change)
        self._name_changes = rest

    def write_file(self, path: str, data: Buffer) -> None:
        temporary = f"{path}.tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite([data], 0)
            failures: list[OSError | None] = []
            node = self._node(temporary)
            self._finish_sync(path, node, [failures.append], len(node.changes))
            if failures[0] is not None:
                raise failures[0]
            self.rename(temporary, path)
        except OSError:
            self.remove(temporary)
            raise
        self.sync_directory(parent_of(self._path(path)))

    def usage(self, path: str) -> tuple[int, int]:
        self._node(path)
        return self.faults.capacity_bytes, self.free_bytes()

    def lock(self, path: str) -> Callable[[], None]:
        full = self._path(path)
        if full in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.open(path, create=True)
        self._locks.add(full)
        generation = self.generation

        def release() -> None:
            if generation == self.generation:
                self._locks.discard(full)

        return release

    async def run(self, function: Callable[..., T], *args: object) -> T:
        low, high = self.faults.run_seconds
        # Not to be cancelled, as a thread is not.
        with trio.CancelScope(shield=True):
            if high > 0:
                if self._workers is None:
                    self._workers = trio.CapacityLimiter(self.faults.workers_max)
                async with self._workers:
                    await trio.sleep(low + (high - low) * self._rng.random())
        if high <= 0:
            await trio.lowlevel.checkpoint()
        return function(*args)

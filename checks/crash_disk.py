"""A simulated disk and index that stop to be copied before each operation that changes them.

`Recorder.points` has, for every operation of a run, what the machine would find after losing power
right before it: what is durable, and what is not and may or may not survive. `choices` enumerates
what may survive, `thaw` makes a disk and an index of it. Right after operation n is the point of
operation n + 1: between the two the disk does not change, and no less was acknowledged.

What may survive is what `runtime.sim_disk` says: of each file's unsynced writes any set, the
beginning of one; of a directory's changes the oldest. Of the index, as RocksDB's two logs have it:
of either database the oldest of what was put after its last sync.
"""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from bookie.storage.index import MemoryIndex
from checks.crash_steps import step_of
from runtime.sim_disk import SimDisk, SimFile
from runtime.sim_disk_nodes import Node, parent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from bookie.storage.index import _Tables
    from runtime.disk import SyncDone
    from runtime.sim_disk_nodes import Change
    from wire.buffers import Buffer

    #: What a change to the index does to its tables.
    IndexChange = Callable[[_Tables], None]
    #: What may survive or not: (node, number of its change), or ("index", database) and
    #: ("directory", path); and of each how much there is.
    Unit = tuple[int | str, int | str]
    Parts = Mapping[Unit, int]

#: With so many independent things that may survive, every set of them is tried.
SUBSETS_MAX = 4
LOCATIONS, LEDGERS = 0, 1
DATABASES = ("locations", "ledgers")


@dataclass(frozen=True, slots=True)
class FrozenNode:
    is_directory: bool
    durable: bytes
    #: Writes and truncates that are not durable, in their order.
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Right before an operation."""

    number: int
    step: str
    #: By the node's number: files and directories that have, or had, a name.
    nodes: dict[int, FrozenNode]
    durable_names: dict[str, int]
    #: (path, node or None, source path or None), in their order.
    name_changes: tuple[tuple[str, int | None, str | None], ...]
    index: _Tables
    #: By database: what is not durable there, in its order.
    index_changes: tuple[tuple[IndexChange, ...], tuple[IndexChange, ...]]
    #: How many of the scenario's events had happened.
    event_count: int

    def directories(self) -> dict[str, int]:
        """How many changes each directory has that are not durable."""
        counts: dict[str, int] = {}
        for path, _, _ in self.name_changes:
            directory = parent_of(path)
            counts[directory] = counts.get(directory, 0) + 1
        return counts


class Recorder:
    """Of one disk and one index. Inactive, it costs nothing and keeps nothing."""

    def __init__(self, *, is_active: bool, forgotten: str | None = None) -> None:
        """`forgotten`: the syncs of this step do nothing, and say that all is well. A test of the
        tests: whoever looks at the points must find out."""
        self.is_active = is_active
        self.forgotten = forgotten
        self.points: list[Point] = []
        #: Of the operation that comes next; the scenario's events are told by it.
        self.number = 0
        self.count_events: Callable[[], int] = lambda: 0
        self.disk: CrashDisk | None = None
        self.index: CrashIndex | None = None
        #: By the node's number; with the node, so that no other gets its number.
        self._frozen: dict[int, tuple[Node, FrozenNode]] = {}

    def operation(self, kind: str, path: str, data: bytes = b"", step: str | None = None) -> bool:
        """An operation is about to be done. False if it is forgotten."""
        if not self.is_active:
            return True
        if step is None:
            step = step_of(kind, path, data, call_names())
        self._add(step)
        return step != self.forgotten

    def end(self) -> None:
        """The point after the last operation."""
        self._add("the end")
        self.is_active = False

    def _add(self, step: str) -> None:
        self.points.append(self._point(step))
        self.number += 1

    def touched(self, node: Node) -> None:
        self._frozen.pop(id(node), None)

    def _freeze(self, node: Node) -> FrozenNode:
        found = self._frozen.get(id(node))
        if found is None:
            frozen = FrozenNode(node.is_directory, bytes(node.durable), tuple(node.changes))
            found = self._frozen[id(node)] = (node, frozen)
        return found[1]

    def _point(self, step: str) -> Point:
        disk, index = self.disk, self.index
        assert disk is not None
        assert index is not None
        names = disk._durable_names
        named = [*names.values()]
        named += [change.node for change in disk._name_changes if change.node is not None]
        return Point(
            self.number,
            step,
            {id(node): self._freeze(node) for node in named},
            {path: id(node) for path, node in names.items()},
            tuple(
                (change.path, None if change.node is None else id(change.node), change.source)
                for change in disk._name_changes
            ),
            index.frozen(),
            (tuple(index.unsynced[0]), tuple(index.unsynced[1])),
            self.count_events(),
        )


def call_names() -> set[str]:
    """The functions of the bookie that led here."""
    names = set()
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if "/bookie/" in frame.f_code.co_filename:
            names.add(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


class CrashFile(SimFile):
    __slots__ = ("_crash_disk",)

    def __init__(self, disk: CrashDisk, path: str, node: Node) -> None:
        super().__init__(disk, path, node)
        self._crash_disk = disk

    def _change(self, change: Change) -> None:
        recorder = self._crash_disk.recorder
        kind = "truncate" if change.data is None else "write"
        recorder.operation(kind, self._path, change.data or b"")
        recorder.touched(self._node)
        super()._change(change)

    def sync(self, done: SyncDone) -> None:
        disk = self._crash_disk
        if disk.recorder.is_active:
            # A sync that takes its time ends where nobody knows who began it.
            disk.sync_steps[id(self._node)] = step_of("sync", self._path, b"", call_names())
        super().sync(done)


class CrashDisk(SimDisk):
    def __init__(self, recorder: Recorder, seed: int = 0) -> None:
        super().__init__(random.Random(seed))
        self.recorder = recorder
        recorder.disk = self
        self.sync_steps: dict[int, str] = {}
        self._whole_file: str | None = None

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimFile:
        file = super().open(path, create=create, exclusive=exclusive)
        made = CrashFile(self, path, file._node)
        file.close()
        return made

    def _rename_node(self, path: str, node: Node | None, source: str | None = None) -> None:
        if node is None:
            kind = "remove"
        elif source is not None:
            kind = "rename"
        elif any(each is node for each in self._names.values()):
            kind = "link"
        else:
            kind = "make directory" if node.is_directory else "create"
        self.recorder.operation(kind, path)
        super()._rename_node(path, node, source)

    def _finish_sync(self, path: str, node: Node, batch: list[SyncDone], count: int) -> None:
        step = self.sync_steps.pop(id(node), None)
        if not self.recorder.operation("sync", path, step=step):
            for done in batch:
                done(None)
            return
        self.recorder.touched(node)
        super()._finish_sync(path, node, batch, count)

    def sync_directory(self, path: str) -> None:
        if self.recorder.operation("directory sync", self._whole_file or path):
            super().sync_directory(path)

    def write_file(self, path: str, data: Buffer) -> None:
        self._whole_file = path
        try:
            super().write_file(path, data)
        finally:
            self._whole_file = None


class CrashIndex(MemoryIndex):
    """As RocksIndex: two databases, each with a log and stamps of its own."""

    __slots__ = ("_frozen", "recorder", "unsynced")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        recorder.index = self
        self.unsynced: tuple[list[IndexChange], list[IndexChange]] = ([], [])
        self._frozen: _Tables | None = None

    def frozen(self) -> _Tables:
        if self._frozen is None:
            self._frozen = self._durable.copy()
        return self._frozen

    def restore(self, tables: _Tables, changes: Sequence[Sequence[IndexChange]]) -> None:
        self._durable = tables.copy()
        for change in (*changes[0], *changes[1]):
            change(self._durable)
        self._tables = self._durable.copy()

    def put(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        ids, places = list(entry_ids), list(locations)
        self._write(LOCATIONS, "put", lambda tables: tables.put(ledger_id, ids, places))

    def delete_entries(self, ledger_ids: Iterable[int]) -> None:
        ids = list(ledger_ids)
        if ids:
            self._write(LOCATIONS, "delete", lambda tables: _delete_locations(tables, ids))

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        ids = list(ledger_ids)
        if ids:
            self._write(LOCATIONS, "delete", lambda tables: _delete_locations(tables, ids))
            self._write(LEDGERS, "delete", lambda tables: _delete_states(tables, ids))

    def put_ledgers(self, states: Iterable[tuple[int, bytes]]) -> None:
        items = list(states)
        if items:
            self._write(LEDGERS, "put", lambda tables: tables.ledgers.update(items))

    def _write(self, database: int, kind: str, change: IndexChange) -> None:
        self.recorder.operation(f"index {kind}", DATABASES[database])
        change(self._tables)
        self.unsynced[database].append(change)

    def sync(self) -> None:
        for database, unsynced in enumerate(self.unsynced):
            if not unsynced:
                continue
            stamp = self._tables.stamps[database] + 1
            unsynced.append(partial(_set_stamp, database=database, stamp=stamp))
            if not self.recorder.operation("index sync", DATABASES[database]):
                continue
            self._frozen = None
            for change in unsynced:
                change(self._durable)
            unsynced.clear()
            _set_stamp(self._tables, database, stamp)


def _set_stamp(tables: _Tables, database: int, stamp: int) -> None:
    locations, ledgers = tables.stamps
    tables.stamps = (stamp, ledgers) if database == LOCATIONS else (locations, stamp)


def _delete_locations(tables: _Tables, ledger_ids: Iterable[int]) -> None:
    for ledger_id in ledger_ids:
        tables.locations.pop(ledger_id, None)
        tables.sorted_ids.pop(ledger_id, None)


def _delete_states(tables: _Tables, ledger_ids: Iterable[int]) -> None:
    for ledger_id in ledger_ids:
        tables.ledgers.pop(ledger_id, None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What survives of what is not durable."""

    #: lost, kept, torn, reordered
    name: str
    #: (node, number of its change): all of it, or as many bytes.
    changes: dict[tuple[int, int], int | None]
    directories: dict[str, int]
    index: tuple[int, int]


def choices(point: Point, *, thorough: bool) -> Iterator[Choice]:
    """What may be left at a point. Not `thorough`: nothing, all, all but the first, only the last,
    and all with the last of each kind in part."""
    writes: Parts = {
        (number, i): len(change.data or b"")
        for number, node in point.nodes.items()
        for i, change in enumerate(node.changes)
    }
    directories = point.directories()
    counts: Parts = {
        **{("index", i): len(each) for i, each in enumerate(point.index_changes) if each},
        **{("directory", path): count for path, count in directories.items()},
    }
    units = [*writes, *counts]
    everything: dict[Unit, int | None] = {**dict.fromkeys(writes), **counts}
    yield _choice("lost", {})
    if not units:
        return
    yield _choice("kept", everything)
    if thorough and len(units) <= SUBSETS_MAX:
        subsets = [
            list(chosen) for size in range(1, len(units)) for chosen in combinations(units, size)
        ]
    else:
        subsets = [[unit for unit in units if unit != each] for each in units]
        subsets += [[each] for each in units]
        if not thorough:
            subsets = [units[1:], units[-1:]]
    for chosen in subsets:
        yield _choice("reordered", {unit: everything[unit] for unit in chosen})
    for name, parts in (("torn", writes), ("reordered", counts)):
        for unit in parts if thorough else list(parts)[-1:]:
            size = parts[unit]
            sizes = range(1, size) if name == "reordered" else {size // 2, size - 1}
            for part in sizes if thorough else list(sizes)[:1]:
                if 0 < part < size:
                    yield _choice(name, everything | {unit: part})
                    if thorough:
                        yield _choice(name, {unit: part})


def _choice(name: str, units: Mapping[Unit, int | None]) -> Choice:
    changes: dict[tuple[int, int], int | None] = {}
    directories: dict[str, int] = {}
    index = [0, 0]
    for (what, which), size in units.items():
        if isinstance(what, int):
            assert isinstance(which, int)
            changes[what, which] = size
        elif isinstance(which, str):
            directories[which] = size or 0
        else:
            index[which] = size or 0
    return Choice(name, changes, directories, (index[0], index[1]))


def thaw(point: Point, choice: Choice, recorder: Recorder) -> tuple[CrashDisk, CrashIndex, bytes]:
    """The disk and the index after the crash, and a digest of all that is on them."""
    disk = CrashDisk(recorder)
    nodes = {number: _thaw_node(frozen, number, choice) for number, frozen in point.nodes.items()}
    names = {path: nodes[number] for path, number in point.durable_names.items()}
    left = dict(choice.directories)
    for path, number, source in point.name_changes:
        directory = parent_of(path)
        if left.get(directory, 0) <= 0:
            continue
        left[directory] -= 1
        if source is not None:
            names.pop(source, None)
        if number is None:
            names.pop(path, None)
        else:
            names[path] = nodes[number]
    kept: dict[str, Node] = {}
    digest = hashlib.blake2b()
    for path, node in sorted(names.items()):
        parent = kept.get(parent_of(path))
        if path == "/" or (parent is not None and parent.is_directory):
            kept[path] = node
            digest.update(b"%s\0%d\0" % (path.encode(), len(node.durable)) + node.durable)
    disk._names = kept
    disk._durable_names = dict(kept)
    disk.used_bytes = sum(len(node.content) for node in kept.values())
    index = CrashIndex(recorder)
    index.restore(
        point.index,
        [changes[:count] for changes, count in zip(point.index_changes, choice.index, strict=True)],
    )
    tables = index._durable
    digest.update(
        repr(
            (sorted(tables.locations.items()), sorted(tables.ledgers.items()), tables.stamps)
        ).encode()
    )
    return disk, index, digest.digest()


def _thaw_node(frozen: FrozenNode, number: int, choice: Choice) -> Node:
    durable = bytearray(frozen.durable)
    for i, change in enumerate(frozen.changes):
        if (number, i) in choice.changes:
            size = choice.changes[number, i]
            change.apply(durable, size if change.data is not None else None)
    return Node(frozen.is_directory, bytearray(durable), durable)

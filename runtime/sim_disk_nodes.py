"""What a simulated disk remembers: files' contents, durable and not, names and what became of them.

Owner: the disk (runtime/sim_disk.py), which says what a crash does to it.
"""

from __future__ import annotations

import posixpath
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.disk import SyncDone

#: Paths whose parents are remembered: each change of the names asks for them.
_PATHS_MAX = 4096


@lru_cache(_PATHS_MAX)
def parent_of(path: str) -> str:
    """The directory that `path` is in."""
    return posixpath.dirname(path)


@lru_cache(_PATHS_MAX)
def absolute(path: str) -> str:
    """The only form that names have."""
    return posixpath.normpath(posixpath.join("/", path))


@dataclass(slots=True)
class Change:
    """A write (data) or a truncate (no data) that is not durable yet."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray, size: int | None = None) -> None:
        """Does it to `content`; of a write only the first `size` bytes."""
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
        elif data := self.data[:size]:
            content.extend(bytes(max(0, self.offset - len(content))))
            content[self.offset : self.offset + len(data)] = data


@dataclass(slots=True)
class Node:
    """A file or a directory, whatever names it has."""

    is_directory: bool = False
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)
    waiting: list[SyncDone] = field(default_factory=list)
    busy: bool = False
    failure: OSError | None = None
    #: Files of this process that are open; what has none, and no name, takes no space.
    open_count: int = 0
    is_nameless: bool = False
    #: Parts of the content, [start, end), that cannot be read until they are written again.
    unreadable: list[tuple[int, int]] = field(default_factory=list)

    def is_readable(self, start: int, end: int) -> bool:
        return not any(start < last and first < end for first, last in self.unreadable)

    def written(self, start: int, end: int) -> None:
        """A sector that is written is mapped to another place."""
        if self.unreadable:
            self.unreadable = [
                (first, last) for first, last in self.unreadable if not start <= first < last <= end
            ]


@dataclass(slots=True)
class NameChange:
    """`path` will name `node` (None: nothing), and `source`, if given, will name nothing."""

    path: str
    node: Node | None
    source: str | None = None

    def apply(self, names: dict[str, Node]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.node is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.node

    def touches(self, directory: str) -> bool:
        paths = (self.path,) if self.source is None else (self.path, self.source)
        return any(parent_of(path) == directory for path in paths)

"""The meanings of a metadata tree, once for all stores that keep the tree themselves.

Pure functions over a `Table` (where the nodes are): `memory` gives a dictionary, `sqlite` a table.
They check everything before the first change, so that a refused operation has changed nothing;
`multi`, which may be refused half-way, uses the table's savepoint. What changed is appended to
`changes`, for the watches. Meanings are ZooKeeper's (docs: «ZooKeeper Programmer's Guide»), and so
is the largest request (metadata/limits.py).

Counters of sequence nodes count *every* child ever made under a parent, as ZooKeeper's cversion.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, assert_never

from metadata.limits import check_size, multi_bytes
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    PutOp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.store import Op

ROOT = "/"
#: Owner of nodes that are not ephemeral; sessions are numbered from 1.
NO_OWNER = 0

#: ("node", path of what was made, put or deleted) or ("children", the parent's path)
Change = tuple[Literal["node", "children"], str]


class Row(NamedTuple):
    data: bytes
    version: int
    #: Children ever made under this node.
    sequence: int
    owner: int


EMPTY_ROW = Row(b"", 0, 0, NO_OWNER)


class Table(Protocol):
    """Where nodes are kept. Parents always exist; the root always exists."""

    def find(self, path: str) -> Row | None: ...
    def insert(self, path: str, row: Row) -> None: ...
    def update(self, path: str, row: Row) -> None: ...
    def remove(self, path: str) -> None: ...
    def children(self, path: str) -> list[str]:
        """Names, sorted by code point."""

    def has_children(self, path: str) -> bool: ...
    def owned(self, owner: int) -> list[str]:
        """Paths of the ephemeral nodes of this session."""

    def savepoint(self) -> None: ...
    def rollback(self) -> None:
        """Undoes all changes since the savepoint, and ends it."""

    def release(self) -> None:
        """Keeps all changes since the savepoint, and ends it."""


#: Most paths, told with one look: what it does not take may be fine, too.
_IS_PLAIN = re.compile("(?:/[!-.0-~]+)+").fullmatch


def check_path(path: str) -> None:
    """ValueError unless the path is absolute, in normal form, free of control characters, and
    text that UTF-8 can hold."""
    if path == ROOT or (_IS_PLAIN(path) and "/." not in path):
        return
    if not path.startswith("/"):
        raise ValueError(f"metadata path {path!r} does not start with «/»")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise ValueError(f"metadata path {path!r} has a component {name!r}")
    if any(character < " " for character in path):
        raise ValueError(f"metadata path {path!r} has a control character")
    path.encode("utf-8")


def split_path(path: str) -> tuple[str, str]:
    """(parent's path, name); ("", "") for the root."""
    if path == ROOT:
        return "", ""
    parent, _, name = path.rpartition("/")
    return parent or ROOT, name


def get(table: Table, path: str) -> Row:
    row = table.find(path)
    if row is None:
        raise NoNodeError(path, "no such node")
    return row


def children(table: Table, path: str) -> list[str]:
    get(table, path)
    return table.children(path)


def create(
    table: Table,
    path: str,
    data: bytes,
    changes: list[Change],
    *,
    owner: int = NO_OWNER,
    sequence: bool = False,
    make_parents: bool = False,
) -> str:
    """The path that was made."""
    check_size(path, len(data))
    if path == ROOT:
        raise NodeExistsError(path, "the root always exists")
    parent = split_path(path)[0]
    missing: list[str] = []
    parent_row = table.find(parent)
    if parent_row is None and not make_parents:
        raise NoNodeError(path, f"its parent {parent} does not exist")
    while parent_row is None:
        missing.append(parent)
        parent = split_path(parent)[0]
        parent_row = table.find(parent)
    if parent_row.owner != NO_OWNER:
        raise MetadataError(path, f"{parent} is ephemeral and can have no children")
    for path_between in reversed(missing):
        _insert(table, parent, parent_row, path_between, EMPTY_ROW, changes)
        parent, parent_row = path_between, EMPTY_ROW
    if sequence:
        path = f"{path}{parent_row.sequence:010d}"
    if table.find(path) is not None:
        raise NodeExistsError(path, "the node exists")
    _insert(table, parent, parent_row, path, Row(bytes(data), 0, 0, owner), changes)
    return path


def take_numbers(table: Table, path: str, count: int, changes: list[Change]) -> list[int]:
    """As if so many sequence nodes had been made, and deleted."""
    parent = split_path(path)[0]
    row = table.find(parent)
    if row is None:
        create(table, parent, b"", changes, make_parents=True)
        row = EMPTY_ROW
    elif row.owner != NO_OWNER:
        raise MetadataError(path, f"{parent} is ephemeral and can have no children")
    table.update(parent, row._replace(sequence=row.sequence + count))
    return list(range(row.sequence, row.sequence + count))


def _insert(
    table: Table, parent: str, parent_row: Row, path: str, row: Row, changes: list[Change]
) -> None:
    table.update(parent, parent_row._replace(sequence=parent_row.sequence + 1))
    table.insert(path, row)
    changes.append(("node", path))
    changes.append(("children", parent))


def put(table: Table, path: str, data: bytes, version: int, changes: list[Change]) -> int:
    """The new version."""
    check_size(path, len(data))
    row = get(table, path)
    _check_version(path, row, version)
    table.update(path, row._replace(data=bytes(data), version=row.version + 1))
    changes.append(("node", path))
    return row.version + 1


def delete(table: Table, path: str, version: int, changes: list[Change]) -> None:
    if path == ROOT:
        raise MetadataError(path, "the root cannot be deleted")
    row = get(table, path)
    _check_version(path, row, version)
    if table.has_children(path):
        raise NotEmptyError(path, "the node has children")
    table.remove(path)
    changes.append(("node", path))
    changes.append(("children", split_path(path)[0]))


def _check_version(path: str, row: Row, version: int) -> None:
    if version not in (ANY_VERSION, row.version):
        raise BadVersionError(path, f"version is {row.version}, expected {version}")


def multi(table: Table, ops: Sequence[Op], owner: int, changes: list[Change]) -> None:
    """All or nothing; `owner` is the session that ephemeral nodes get."""
    done: list[Change] = []
    if ops:
        check_size(ops[0].path, multi_bytes(ops))
    table.savepoint()
    try:
        for op in ops:
            match op:
                case CreateOp():
                    create(
                        table,
                        op.path,
                        op.data,
                        done,
                        owner=owner if op.ephemeral else NO_OWNER,
                        make_parents=op.make_parents,
                    )
                case PutOp():
                    put(table, op.path, op.data, op.version, done)
                case DeleteOp():
                    delete(table, op.path, op.version, done)
                case CheckOp():
                    _check_version(op.path, get(table, op.path), op.version)
                case _:
                    assert_never(op)
    except BaseException:
        table.rollback()
        raise
    table.release()
    changes.extend(done)


def end_session(table: Table, owner: int, changes: list[Change]) -> None:
    """Deletes the session's ephemeral nodes."""
    for path in table.owned(owner):
        delete(table, path, ANY_VERSION, changes)

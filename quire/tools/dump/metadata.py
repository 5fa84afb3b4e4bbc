"""`quire dump metadata`: the tree in metadata.db, each node with what it means.

A file that begins as BookKeeper's LedgerMetadata does (a znode's data, of version 1, 2 or 3) is
shown too.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from broker.log.life.chain import ChainDocument, ChainFormatError, archive_from_bytes, is_archive
from metadata.rules import NO_OWNER
from metadata.sqlite import APPLICATION_ID, FORMAT_VERSION
from quire.tools.dump.files import LEDGER_METADATA_MAGIC, ReadFile
from quire.tools.dump.sqlite_view import open_view
from wire.bookkeeper.ledger_metadata import LedgerMetadata, MetadataFormatError, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.tools.output import Output

LEDGER_METADATA_SIZE_MAX = 16 * 1024 * 1024
_LEDGER = re.compile(r"/ledgers(/\d+)+/L\d+")
_CHAIN = re.compile(r"/quire/(partitions|deleted)/[^/]+/\d+")
_DOCUMENT = re.compile(r"/quire/(topics/[^/]+|configs/[^/]+/[^/]+)")
#: The cluster's own; users, and delegation tokens.
_SECRET = re.compile(r"/quire/secret")
_CREDENTIALS = re.compile(r"/quire/(users|tokens)/[^/]+")
_HIDDEN = ("salt", "stored_key", "server_key")

#: Path, and the columns: SQLite would take data of any type into a damaged file.
_Found = tuple[str, object, int, int, int]
#: A node's data, and whether to show secrets -> fields of its row. ValueError.
_Decode = Callable[[bytes, bool], dict[str, Any]]


def show_metadata(out: Output, path: str, node: str, show_secrets: bool) -> None:
    """`node` and all below it. OSError."""
    with ReadFile(path) as file:
        head = file.pread(len(LEDGER_METADATA_MAGIC), 0)
        if head == LEDGER_METADATA_MAGIC:
            data = file.pread(LEDGER_METADATA_SIZE_MAX, 0)
            out.row("metadata", {"file": path, "size": file.size}, 0)
            _show_value(out, path, {"path": ""}, _ledger_value, data, show_secrets)
            return
    try:
        with closing(open_view(path)) as connection:
            _show_tree(out, path, connection, node, show_secrets)
    except sqlite3.Error as error:
        raise OSError(f"SQLite: {error}") from error
    except ValueError as error:
        raise OSError(str(error)) from error


def _show_tree(
    out: Output, path: str, connection: sqlite3.Connection, node: str, show_secrets: bool
) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise ValueError("it is an SQLite file, but none of quire's metadata")
    out.row("metadata", {"file": path, "version": version}, 0)
    if version != FORMAT_VERSION:
        raise ValueError(f"its format version is {version}, this program knows {FORMAT_VERSION}")
    count = 0
    for found in _walk(connection, node):
        count += 1
        _show_node(out, path, found, show_secrets)
    if not count:
        out.damage(path, None, f"there is no node {node}", 1)
    (total,) = connection.execute("SELECT count(*) FROM node").fetchone()
    if node == "/" and total != count:
        out.damage(path, None, f"{total - count} nodes cannot be reached from the root", 1)
    out.row("end", {"nodes": count}, 1)


_COLUMNS = "data, version, sequence, owner FROM node"


def _walk(connection: sqlite3.Connection, top: str) -> Iterator[_Found]:
    """Depth first, children by name. A million children of one node are not in memory at once."""
    parent, _, name = top.rstrip("/").rpartition("/")
    root = ("", "") if top == "/" else (parent or "/", name)
    found = connection.execute(f"SELECT {_COLUMNS} WHERE parent = ? AND name = ?", root).fetchone()
    if found is None:
        return
    yield (top, *found)
    waiting = [(top, _children(connection, top))]
    while waiting:
        above, children = waiting[-1]
        row = children.fetchone()
        if row is None:
            waiting.pop()
            continue
        name, *rest = row
        path = f"{above.rstrip('/')}/{name}"
        yield (path, *rest)
        waiting.append((path, _children(connection, path)))


def _children(connection: sqlite3.Connection, path: str) -> sqlite3.Cursor:
    return connection.execute(
        f"SELECT name, {_COLUMNS} WHERE parent = ? AND name != '' ORDER BY name", (path,)
    )


def _show_node(out: Output, file: str, found: _Found, show_secrets: bool) -> None:
    path, data, version, sequence, owner = found
    if not isinstance(data, bytes):
        out.damage(file, None, f"node {path}: its data is {data!r}, no bytes", 1)
        return
    fields: dict[str, Any] = {"path": path, "version": version, "size": len(data)}
    if sequence:
        fields["sequence"] = sequence
    if owner != NO_OWNER:
        fields["ephemeral"] = True
    _show_value(out, file, fields, _decoder_of(path), data, show_secrets)


def _show_value(
    out: Output, file: str, fields: dict[str, Any], decode: _Decode, data: bytes, show_secrets: bool
) -> None:
    try:
        decoded = decode(data, show_secrets)
    except (MetadataFormatError, ChainFormatError, ValueError, RecursionError) as error:
        is_hidden = not show_secrets and _CREDENTIALS.fullmatch(str(fields["path"]))
        out.row("node", {**fields, "value": "hidden" if is_hidden else data}, 1)
        where = f"node {fields['path']}: " if fields["path"] else ""
        out.damage(file, None, f"{where}{error}", 1)
        return
    out.row("node", {**fields, **decoded}, 1)


def _decoder_of(path: str) -> _Decode:
    if _LEDGER.fullmatch(path):
        return _ledger_value
    if is_archive(path) and _CHAIN.match(path):
        return _archive_value
    if _CHAIN.fullmatch(path):
        return _chain_value
    if _DOCUMENT.fullmatch(path):
        return _document_value
    if _SECRET.fullmatch(path):
        return _secret_value
    if _CREDENTIALS.fullmatch(path):
        return _credentials_value
    return _plain_value


def _plain_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    if not data:
        return {}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"value": data}
    return {"value": text}


def _document_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    return {"value": json.loads(data)}


def _secret_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    return {"value": data.hex() if show_secrets else f"hidden ({len(data)} bytes)"}


def _credentials_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    """A document of JSON without what a login is checked by."""

    def shown(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        hide = () if show_secrets else _HIDDEN
        return {name: "hidden" if name in hide else value for name, value in pairs}

    return {"value": json.loads(data, object_pairs_hook=shown)}


def _chain_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    document = ChainDocument(data)
    if not document.archives:
        document.chain()  # names what is damaged
    return {"value": json.loads(data)}


def _archive_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    archive_from_bytes(data)
    return {"value": json.loads(data)}


def _ledger_value(data: bytes, show_secrets: bool) -> dict[str, Any]:
    return {"value": ledger_fields(parse(data), data, show_secrets)}


def ledger_fields(metadata: LedgerMetadata, data: bytes, show_secrets: bool) -> dict[str, Any]:
    """LedgerMetadata, with the version of its format."""
    digest_type = metadata.digest_type
    password: Any = metadata.password
    if password and not show_secrets:
        password = f"hidden ({len(password)} bytes)"
    return {
        "format": int(data[len(LEDGER_METADATA_MAGIC) : data.index(b"\n")]),
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "last_entry": metadata.last_entry_id,
        "length": metadata.length,
        "digest_type": None if digest_type is None else digest_type.name.lower(),
        "password": password,
        "ctime_ms": metadata.ctime_ms,
        "ctoken": metadata.ctoken,
        "custom": dict(metadata.custom_metadata),
        "segments": [
            {"first_entry": first_entry_id, "bookies": list(bookies)}
            for first_entry_id, bookies in metadata.segments
        ],
    }

"""`quire dump index`: the RocksDB databases `locations` and `ledgers` of a ledger directory.

They are opened read-only, which takes no lock, so a running bookie is not disturbed: what it wrote
up to now is shown, from the write-ahead log too. The binding writes a file of its own into the
directory that it opens, even then; so it is given a temporary directory with links to the
database's files. Files that a compaction removed between the listing and the opening make the
opening fail; then it is tried again.
"""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rocksdict import AccessType, Options, Rdict

from bookie.ledger_table import decode_ledger_state
from bookie.storage.rocks_database import STAMP_LEDGER_ID
from quire.tools.dump.files import is_rocksdb
from quire.tools.dump.secrets import lac_packet_text, master_key_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import RdictIter

    from quire.tools.dump.options import EntryOptions
    from quire.tools.output import Output

OPEN_ATTEMPTS_MAX = 5
_KEY = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_NEEDED = ("CURRENT", "IDENTITY", "MANIFEST-", "OPTIONS-")
_NEEDED_SUFFIXES = (".sst", ".log", ".blob")


def show_index(out: Output, options: EntryOptions, directory: str) -> None:
    """`directory` is one of the databases, or one with both in it. OSError."""
    names = os.listdir(directory)
    if is_rocksdb(names):
        _show_database(out, options, directory)
        return
    inner = [os.path.join(directory, name) for name in ("ledgers", "locations") if name in names]
    found = [path for path in inner if is_rocksdb(os.listdir(path))]
    if not found:
        out.damage(directory, None, "there is no RocksDB database here")
    for path in found:
        _show_database(out, options, path)


def _show_database(out: Output, options: EntryOptions, path: str) -> None:
    with _opened(path) as database:
        iterator = database.iter()
        iterator.seek_to_last()
        name = _name_of(path, len(iterator.key()) if iterator.valid() else 0)
        iterator.seek_to_first()
        out.row("index", {"file": path, "database": name}, 0)
        if name == "ledgers":
            count = _show_ledgers(out, options, path, iterator)
        else:
            count = _show_locations(out, options, path, iterator)
        # Iteration ends at damage as it does at the end; only this tells them apart.
        iterator.status()
        out.row("end", {"keys": count}, 1)


def _name_of(path: str, key_size: int) -> str:
    """By the directory, or else by the last key: both databases have stamps in front."""
    name = os.path.basename(os.path.abspath(path))
    if name in ("ledgers", "locations"):
        return name
    return "ledgers" if key_size == _I64.size else "locations"


@contextmanager
def _opened(path: str) -> Iterator[Rdict]:
    """OSError if it cannot be opened, or turns out to be damaged while it is read."""
    with tempfile.TemporaryDirectory(prefix="quire-dump-") as scratch:
        database = _open(os.path.abspath(path), scratch)
        try:
            yield database
        except OSError:
            raise
        except Exception as error:  # rocksdict has no class of its own for its errors
            if type(error) is not Exception:
                raise
            raise OSError(f"the database cannot be read: {error}") from error
        finally:
            database.close()


def _open(path: str, scratch: str) -> Rdict:
    for attempt in range(OPEN_ATTEMPTS_MAX):
        view = os.path.join(scratch, str(attempt))
        os.mkdir(view)
        for name in os.listdir(path):
            if name.startswith(_NEEDED) or name.endswith(_NEEDED_SUFFIXES):
                os.symlink(os.path.join(path, name), os.path.join(view, name))
        try:
            return Rdict(view, Options(raw_mode=True), access_type=AccessType.read_only())
        except Exception as error:  # rocksdict has no class of its own for its errors
            failure = error
    raise OSError(f"the database does not open: {failure}") from failure


class _Stamps:
    """What a `sync` leaves behind (rocks_database.py): numbers without a gap, or a part of the
    database is lost."""

    __slots__ = ("_count", "_first", "_last")

    def __init__(self) -> None:
        self._count = self._first = self._last = 0

    def take(self, key: bytes, value: bytes) -> bool:
        """Whether it is one."""
        if len(key) != _KEY.size or len(value) != _I64.size:
            return False
        ledger_id, stamp = _KEY.unpack(key)
        if ledger_id != STAMP_LEDGER_ID:
            return False
        (first,) = _I64.unpack(value)
        self._first, self._last = first, stamp
        self._count += 1
        return True

    def show(self, out: Output, path: str) -> None:
        if not self._count:
            return
        # Those below the first that counts are left over.
        missing = self._last - self._first + 1 - self._count
        fields = {"first": self._first, "last": self._last, "missing": max(missing, 0)}
        out.row("stamps", fields, 1)
        if missing > 0:
            words = f"of syncs {self._first} to {self._last}, {missing} are not there"
            out.damage(path, None, f"the index has lost a part of itself: {words}", 1)


def _show_ledgers(out: Output, options: EntryOptions, path: str, iterator: RdictIter) -> int:
    count = 0
    stamps = _Stamps()
    while iterator.valid():
        key, value = iterator.key(), iterator.value()
        count += 1
        if len(key) != _I64.size:
            if not stamps.take(key, value):
                out.damage(path, None, f"a key of {len(key)} bytes: {key.hex()}", 1)
        else:
            (ledger_id,) = _I64.unpack(key)
            if options.ledger in (None, ledger_id) and not options.summary:
                _show_ledger(out, options, path, ledger_id, value)
        iterator.next()
    stamps.show(out, path)
    return count


def _show_ledger(
    out: Output, options: EntryOptions, path: str, ledger_id: int, value: bytes
) -> None:
    if ledger_id < 0:
        # BookKeeper keeps flags of its storage there.
        out.row("flags", {"key": ledger_id, "value": value}, 1)
        return
    try:
        state = decode_ledger_state(ledger_id, value)
    except ValueError as error:
        out.damage(path, None, f"LedgerData of {error}", 1)
        return
    fields = {
        "ledger": ledger_id,
        "fenced": state.fenced,
        "master_key": master_key_text(state.master_key, options.show_secrets),
        "explicit_lac": lac_packet_text(state.explicit_lac),
    }
    out.row("ledger", fields, 1)


def _show_locations(out: Output, options: EntryOptions, path: str, iterator: RdictIter) -> int:
    """With `summary` a row per ledger instead of one per entry."""
    if options.ledger is not None:
        iterator.seek(_KEY.pack(options.ledger, max(options.entry or 0, 0)))
    count = 0
    stamps = _Stamps()
    run: list[int] = []  # ledger, entries, first, last
    while iterator.valid():
        key, value = iterator.key(), iterator.value()
        if stamps.take(key, value):
            count += 1
            iterator.next()
            continue
        if len(key) != _KEY.size or len(value) != _I64.size:
            words = f"a key of {len(key)} and a value of {len(value)} bytes: {key.hex()}"
            out.damage(path, None, words, 1)
            iterator.next()
            continue
        ledger_id, entry_id = _KEY.unpack(key)
        if options.ledger is not None and ledger_id != options.ledger:
            break
        if options.wants(ledger_id, entry_id):
            count += 1
            if not options.summary:
                (location,) = _I64.unpack(value)
                fields = {
                    "ledger": ledger_id,
                    "entry": entry_id,
                    "log": location >> 32,
                    "offset": location & 0xFFFFFFFF,
                }
                out.row("location", fields, 1)
            elif run and run[0] == ledger_id:
                run[1] += 1
                run[3] = entry_id
            else:
                _show_run(out, run)
                run = [ledger_id, 1, entry_id, entry_id]
        iterator.next()
    _show_run(out, run)
    stamps.show(out, path)
    return count


def _show_run(out: Output, run: list[int]) -> None:
    if run:
        names = ("ledger", "entries", "first_entry", "last_entry")
        out.row("ledger", dict(zip(names, run, strict=True)), 1)

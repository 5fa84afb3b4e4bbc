"""A bookie on the real disk, the dump commands in this process, and a reader of raw bytes."""

import json
import os
import struct
from contextlib import asynccontextmanager
from types import SimpleNamespace

import click.testing
import pytest
import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from quire.tools.dump.command import dump as dump_group
from runtime.env import real_env
from wire.bookkeeper.entry import master_key

KEY = master_key(b"")
MIB = 1 << 20


class Result(SimpleNamespace):
    def rows(self, kind):
        return [row for row in self.all_rows if row["type"] == kind]

    def row(self, kind):
        (row,) = self.rows(kind)
        return row


@pytest.fixture
def dump():
    """dump("journal", path, "--summary") -> exit_code, stdout, stderr, and with --json rows."""

    def run(*arguments, stdin=None, json_rows=True):
        arguments = [str(argument) for argument in arguments]
        if json_rows:
            arguments.append("--json")
        got = click.testing.CliRunner().invoke(dump_group, arguments, input=stdin)
        if got.exception is not None and not isinstance(got.exception, SystemExit):
            raise got.exception
        rows = [json.loads(line) for line in got.stdout.splitlines()] if json_rows else []
        return Result(exit_code=got.exit_code, stdout=got.stdout, stderr=got.stderr, all_rows=rows)

    return run


def make_entry(ledger_id, entry_id, payload, length=None):
    """An entry with a CRC32C digest, as BookKeeper's clients make it."""
    length = len(payload) if length is None else length
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, length)
    return header + struct.pack(">I", crc32c(payload, crc32c(header))) + payload


@pytest.fixture(name="make_entry")
def make_entry_fixture():
    return make_entry


def bookie_config(directory, **changes):
    values = {
        "bookie_id": "bookie-1",
        "instance_id": "instance",
        "journal_directory": str(directory / "journal"),
        "ledger_directory": str(directory / "ledgers"),
        "journal_size_bytes": 4 * MIB,
        "journal_group_size_max_bytes": MIB,
        "entry_size_max_bytes": MIB,
        "entry_log_size_limit_bytes": 4 * MIB,
        "write_cache_size_bytes": 8 * MIB,
        "write_cache_preallocated_size_bytes": MIB,
        "disk_reserve_size_bytes": 0,
        "flush_interval_ms": 60_000,
    }
    return BookieConfig(**{**values, **changes})


class RunningBookie:
    def __init__(self, bookie, directory):
        self.bookie = bookie
        self.journal = directory / "journal" / "current"
        self.ledgers = directory / "ledgers" / "current"
        #: (ledger id, entry id) -> the entry's bytes, in the order of the adds.
        self.entries = {}

    async def add(self, ledger_id, entry_ids, payload=b"payload"):
        """Adds them in one burst; returns when all are acknowledged."""
        answers = []
        finished = trio.Event()
        entry_ids = list(entry_ids)

        def done(status):
            answers.append(status)
            if len(answers) == len(entry_ids):
                finished.set()

        for entry_id in entry_ids:
            entry = make_entry(ledger_id, entry_id, payload)
            self.entries[ledger_id, entry_id] = entry
            self.bookie.add_entry(ledger_id, entry_id, KEY, [entry], 0, done)
        with trio.fail_after(20):
            await finished.wait()
        assert set(answers) == {0}


@pytest.fixture
def running_bookie(tmp_path):
    """`async with running_bookie() as node`: leaving is a clean stop."""

    @asynccontextmanager
    async def run(directory=tmp_path, **changes):
        env = real_env()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(env.turn.serve)
            nursery.start_soon(env.poller.run)
            bookie = Bookie(bookie_config(directory, **changes), env)
            async with trio.open_nursery() as inner:
                await inner.start(bookie.run)
                yield RunningBookie(bookie, directory)
                inner.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    return run


def state_of(directory):
    """What a dump must not change: all names, sizes, contents' times and modes."""
    found = {}
    for top, folders, names in os.walk(directory):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(top, name))
            found[os.path.join(top, name)] = (status.st_size, status.st_mtime_ns, status.st_mode)
    return found


@pytest.fixture(name="state_of")
def state_of_fixture():
    return state_of


def read_log(path):
    """An entry log by hand: [(offset, entry)], {ledger id: bytes} or None without a map."""
    data = path.read_bytes()
    magic, version, map_offset, count = struct.unpack_from(">4siqi", data)
    assert (magic, version) == (b"BKLO", 1)
    at, entries, ledgers = 1024, [], None
    while at < (map_offset or len(data)):
        (length,) = struct.unpack_from(">i", data, at)
        entries.append((at + 4, data[at + 4 : at + 4 + length]))
        at += 4 + length
    if map_offset:
        assert struct.unpack_from(">qqi", data, map_offset + 4) == (-1, -2, count)
        ledgers = dict(struct.iter_unpack(">qq", data[map_offset + 24 :][: 16 * count]))
    return entries, ledgers


@pytest.fixture(name="read_log")
def read_log_fixture():
    return read_log


def read_journal(path):
    """A journal by hand, up to the first block that is no group of it:
    [(offset, sequence, durable sequence, [(offset, ledger id, entry id, record)])]."""
    data = path.read_bytes()
    magic, version, journal_id, alignment = struct.unpack_from(">4sIqI", data)
    assert (magic, version) == (b"QKJL", 2)
    passed_over = struct.pack(">qq", -1, -2)
    # The first 1024 bytes, a filler of 20 bytes or more, and then the next multiple.
    at, groups = -(-(1024 + 20) // alignment) * alignment, []
    while data[at + 4 : at + 24] == passed_over + b"QJGR":
        found_id, offset, sequence, durable, size, count = struct.unpack_from(
            ">qqqqII", data, at + 28
        )
        assert (found_id, offset) == (journal_id, at)
        where, records = at + 68, []
        for _ in range(count):
            length, ledger_id, entry_id = struct.unpack_from(">iqq", data, where)
            start, where = where + 4, where + 4 + length
            if (ledger_id, entry_id) == (-1, -2):
                start += 16
                ledger_id, entry_id = struct.unpack_from(">qq", data, start)
            records.append((start, ledger_id, entry_id, data[start:where]))
        assert where == at + 68 + size
        groups.append((at, sequence, durable, records))
        if where % alignment:
            length, *ids = struct.unpack_from(">iqq", data, where)
            assert ids == [-1, -2]
            where += 4 + length
        at = where
    return groups


@pytest.fixture(name="read_journal")
def read_journal_fixture():
    return read_journal

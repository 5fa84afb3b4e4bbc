"""What only the SQLite store can get wrong: durability, damage, the second opener, grouping."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from metadata.sqlite import MetadataCorruptError, SqliteStore
from metadata.store import (
    BadVersionError,
    CreateOp,
    MetadataUnavailableError,
    Node,
    PutOp,
    SessionState,
)
from runtime.real_disk import RealDisk

ROOT = Path(__file__).parents[2]

#: Puts from many tasks as fast as it can; one line per acked put, after the ack.
WRITER = """
import sys, trio
from metadata.sqlite import SqliteStore
from runtime.real_disk import RealDisk

async def put(store, n):
    await store.create(f"/n{n}")
    await store.create(f"/e{n}", ephemeral=True)
    version = 0
    while True:
        version = await store.put(f"/n{n}", b"%d" % (version + 1), version)
        sys.stdout.write(f"{n} {version}\\n")
        sys.stdout.flush()

async def main():
    async with trio.open_nursery() as nursery:
        store = SqliteStore(sys.argv[1], RealDisk().run)
        await nursery.start(store.run)
        for n in range(8):
            nursery.start_soon(put, store, n)

trio.run(main)
"""


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "metadata.sqlite")


def _write_until_killed(file, put_count):
    """{node: last version that was acked}. A pipe keeps what was written to it, whatever becomes
    of the writer."""
    acked: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, file], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(put_count):
            n, version = map(int, process.stdout.readline().split())
            acked[n] = version
        process.send_signal(signal.SIGKILL)
        # The last line may be cut: then its put was acked, but not told.
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                n, version = map(int, line.split())
                acked[n] = version
    assert process.returncode == -signal.SIGKILL
    return acked


@pytest.mark.parametrize("put_count", [30, 300, 1_000])
async def test_every_acked_put_survives_a_kill(file, nursery, put_count):
    acked = _write_until_killed(file, put_count)
    assert len(acked) == 8
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    for n, version in acked.items():
        node = await store.get(f"/n{n}")
        assert node.version >= version
        assert node.data == b"%d" % node.version
    assert await store.children("/") == [f"n{n}" for n in range(8)]
    await store.aclose()


def _overwrite(file, data):
    Path(file).write_bytes(data)


def _damage(file):
    """Garbage at the start of every page but the first."""
    data = bytearray(Path(file).read_bytes())
    assert len(data) > 20 * 4096
    for offset in range(4096, len(data), 4096):
        data[offset : offset + 64] = b"\xee" * 64
    _overwrite(file, data)


async def _run_error(file):
    with pytest.raises((MetadataCorruptError, MetadataUnavailableError)) as raised:
        await SqliteStore(file, RealDisk().run).run()
    return raised.value


async def test_a_file_of_something_else_is_named(file):
    _overwrite(file, b"this is a text, however long it may be\n" * 500)
    error = await _run_error(file)
    assert isinstance(error, MetadataCorruptError)
    assert file in str(error)
    assert "not a database" in str(error)


async def test_somebody_elses_database_is_refused(file):
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE node (x)")
    connection.close()
    assert "none of quire's metadata" in str(await _run_error(file))


async def test_a_newer_format_is_refused(file, nursery):
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    await store.aclose()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    assert "format version is 9" in str(await _run_error(file))


async def test_a_damaged_page_ends_the_store(file):
    store = SqliteStore(file, RealDisk().run)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.multi([CreateOp(f"/node{n:04d}", bytes(200)) for n in range(400)])
        await store.aclose()
    _damage(file)
    error = await _run_error(file)
    assert isinstance(error, MetadataCorruptError)
    assert "malformed" in str(error)


async def test_a_second_opener_is_refused(file, nursery):
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    await store.create("/a")
    error = await _run_error(file)
    assert isinstance(error, MetadataUnavailableError)
    assert "has this metadata file open" in str(error)
    assert await store.exists("/a")
    await store.aclose()


async def test_a_call_before_run_says_so(file):
    with pytest.raises(MetadataUnavailableError, match="start run"):
        await SqliteStore(file, RealDisk().run).get("/a")


async def test_waiting_requests_share_a_transaction(file, nursery):
    calls = []
    disk = RealDisk()

    async def counting(function, *args):
        calls.append(function)
        return await disk.run(function, *args)

    store = SqliteStore(file, counting)
    await nursery.start(store.run)
    await store.create("/a", b"0")
    calls.clear()
    refused = []

    async def work(n):
        try:
            await store.put("/a", b"x", 50) if n % 10 == 9 else await store.create(f"/a/{n}")
        except BadVersionError:
            refused.append(n)

    async with trio.open_nursery() as inner:
        for n in range(100):
            inner.start_soon(work, n)
    # The first may travel alone; all that queued behind it go together. The ten that were refused
    # took nobody with them.
    assert len(calls) <= 3
    assert len(refused) == 10
    assert len(await store.children("/a")) == 90
    await store.aclose()


async def test_a_full_disk_refuses_and_changes_nothing(file, nursery):
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    await store.create("/a", b"old")
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MetadataUnavailableError, match="full"):
        await store.multi([PutOp("/a", b"new", 0), CreateOp("/b", bytes(100_000))])
    assert await store.get("/a") == Node(b"old", 0)
    store._connection.execute("PRAGMA max_page_count = 1000000")
    await store.multi([PutOp("/a", b"new", 0), CreateOp("/b", bytes(100_000))])
    await store.aclose()


async def test_a_caller_that_leaves_disturbs_nobody(file, nursery):
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    async with trio.open_nursery() as inner:
        for n in range(20):
            inner.start_soon(store.create, f"/n{n}")
        await trio.lowlevel.checkpoint()
        inner.cancel_scope.cancel()
    await store.create("/after")
    assert await store.exists("/after")
    await store.aclose()


async def test_cancelling_run_answers_all_and_closes_the_file(file):
    store = SqliteStore(file, RealDisk().run)
    outcomes = []

    async def create(n):
        try:
            outcomes.append(await store.create(f"/n{n}", ephemeral=n % 2 == 0))
        except MetadataUnavailableError:
            outcomes.append(None)

    async with trio.open_nursery() as callers, trio.open_nursery() as keeper:
        await keeper.start(store.run)
        for n in range(20):
            callers.start_soon(create, n)
        await trio.sleep(0.0005)
        keeper.cancel_scope.cancel()
    assert len(outcomes) == 20
    made = {path for path in outcomes if path is not None}
    async with trio.open_nursery() as keeper:
        store = SqliteStore(file, RealDisk().run)
        await keeper.start(store.run)
        assert {f"/{name}" for name in await store.children("/")} == {
            path for path in made if int(path[2:]) % 2
        }
        await store.aclose()


async def test_opening_and_reading_a_thousand_nodes_is_fast(file):
    async with trio.open_nursery() as nursery:
        store = SqliteStore(file, RealDisk().run)
        await nursery.start(store.run)
        await store.multi([CreateOp(f"/n{n:04d}", bytes(300)) for n in range(1_000)])
        await store.aclose()
    async with trio.open_nursery() as nursery:
        started = time.process_time()
        store = SqliteStore(file, RealDisk().run)
        await nursery.start(store.run)
        names = await store.children("/")
        nodes = await store.get_many([f"/{name}" for name in names])
        elapsed = time.process_time() - started
        assert len(nodes) == 1_000
        assert None not in nodes
        # Of processor: 50 ms is the goal; a busy machine's caches need more.
        assert elapsed < 0.5
        await store.aclose()


async def test_sessions_of_a_process_that_was_killed_are_over(file, nursery, tmp_path):
    store = SqliteStore(file, RealDisk().run)
    await nursery.start(store.run)
    sessions = [store.session() for _ in range(3)]
    for number, session in enumerate(sessions):
        await nursery.start(session.run)
        await session.create(f"/e{number}", ephemeral=True)
    await store.create("/mine", ephemeral=True)
    assert not await store.owns("/e0")
    await sessions[0].aclose()
    assert await store.children("/") == ["e1", "e2", "mine"]
    copy = str(tmp_path / "copy")  # as the disk is if the process ends here
    for suffix in ("", "-wal"):
        shutil.copy(file + suffix, copy + suffix)
    again = SqliteStore(copy, RealDisk().run)
    await nursery.start(again.run)
    assert await again.children("/") == []
    told = []
    sessions[1].subscribe(told.append)
    await store.aclose()
    assert told == [SessionState.LOST]
    await sessions[1].aclose()
    assert told == [SessionState.LOST]
    await again.aclose()

"""Ledger clients and bookies in BookKeeper's protocol over sockets, in one process."""

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.server.server import BookieServer, BookieServerSettings
from ledger.client import LedgerClient
from ledger.errors import LedgerFencedError
from ledger.network.client import NetworkBookieClient
from ledger.network.config import NetworkConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from runtime.env import real_env

MIB = 1024 * 1024


class Node:
    """A bookie with its server, in a nursery of its own that `kill` ends."""

    def __init__(self, env, directory, name):
        self.bookie = Bookie(
            BookieConfig(
                bookie_id=name,
                instance_id="",
                journal_directory=str(directory / name / "journal"),
                ledger_directory=str(directory / name / "ledgers"),
                journal_size_bytes=8 * MIB,
                journal_group_size_max_bytes=MIB,
                write_cache_size_bytes=16 * MIB,
            ),
            env,
        )
        self.server = BookieServer(
            self.bookie, env, BookieServerSettings(port=0), lambda: (1000, 500)
        )
        self.address = None
        self._scope = trio.CancelScope()

    async def run(self, *, task_status):
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.bookie.run)
                self.address = await nursery.start(self.server.run)
                task_status.started()

    def stop(self):
        self.address = None
        self._scope.cancel()


class World:
    def __init__(self, env, nursery, directory, names):
        self.env = env
        self.nursery = nursery
        self.store = MemoryStore()
        self.nodes = {name: Node(env, directory, name) for name in names}

    async def start(self):
        for node in self.nodes.values():
            await self.nursery.start(node.run)

    async def client(self, **settings):
        bookies = NetworkBookieClient(
            self.env, lambda name: self.nodes[name].address, NetworkConfig(**settings)
        )
        await self.nursery.start(bookies.run)
        client = LedgerClient(
            self.store,
            bookies,
            self.env,
            placement=RandomPlacement(
                lambda: [name for name, node in self.nodes.items() if node.address], self.env.rng
            ),
        )
        await self.nursery.start(client.run)
        return client


@pytest.fixture
async def world(tmp_path):
    env = real_env()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        made = World(env, nursery, tmp_path, ["b1", "b2", "b3", "b4"])
        await made.start()
        yield made
        nursery.cancel_scope.cancel()


async def write(writer, count):
    told = []
    finished = trio.Event()

    def done(entry_id, error):
        told.append((entry_id, error))
        if len(told) == count:
            finished.set()

    for _ in range(count):
        writer.append_nowait([b"entry ", b"%d" % (writer.last_add_pushed + 1)], done)
    with trio.fail_after(20):
        await finished.wait()
    return told


async def read_all(reader):
    payloads = []
    while len(payloads) <= reader.last_add_confirmed:
        got = await reader.read(len(payloads), count_max=64, size_max=MIB)
        payloads += [bytes(payload) for payload in got]
    return payloads


SIZES = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2)]


def quorums(sizes):
    return dict(zip(("ensemble_size", "write_quorum_size", "ack_quorum_size"), sizes, strict=True))


@pytest.mark.parametrize("sizes", SIZES)
async def test_write_fence_recover_read(world, sizes):
    first, second = await world.client(), await world.client()
    writer = await first.create_ledger(**quorums(sizes))
    told = await write(writer, 500)
    assert told == [(n, None) for n in range(500)]
    expected = [b"entry %d" % n for n in range(500)]
    assert await read_all(writer.reader) == expected
    reader = await second.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 499
    assert await read_all(reader) == expected
    (_, error), *_ = await write(writer, 1)
    assert isinstance(error, LedgerFencedError)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 3, 3)])
async def test_a_bookie_that_goes_is_replaced(world, sizes):
    client = await world.client()
    writer = await client.create_ledger(**quorums(sizes))
    await write(writer, 100)
    gone = writer.metadata.last_segment[1][1]
    world.nodes[gone].stop()
    told = await write(writer, 400)
    assert [error for _, error in told] == [None] * 400
    assert gone not in writer.metadata.last_segment[1]
    metadata = await writer.close()
    assert metadata.last_entry_id == 499
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert await read_all(reader) == [b"entry %d" % n for n in range(500)]


async def test_large_entries(world):
    client = await world.client()
    writer = await client.create_ledger(**quorums((3, 3, 2)))
    payload = bytes(range(256)) * 4096
    done = []
    for _ in range(10):
        writer.append_nowait([payload], lambda entry_id, error: done.append((entry_id, error)))
    with trio.fail_after(20):
        while len(done) < 10:
            await trio.sleep(0.01)
    assert done == [(n, None) for n in range(10)]
    got = []
    while len(got) < 10:
        got += await writer.reader.read(len(got), count_max=10, size_max=10 * MIB)
    assert all(bytes(each) == payload for each in got)

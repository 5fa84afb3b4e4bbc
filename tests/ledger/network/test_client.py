"""Ledger clients and bookies in BookKeeper's protocol over sockets, in one process."""

import time

import pytest
import trio

from bookie.errors import IndexReadError
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.errors import LedgerFencedError, LedgerForceError
from ledger.network.client import NetworkBookieClient
from ledger.network.config import NetworkConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from tests.ledger.bookie_configs import MIB
from tests.ledger.network_node import Node
from tests.ledger.real_parts import networked, write
from wire.bookkeeper import v2
from wire.bookkeeper.auth import DISABLED_PLUGIN_NAME
from wire.bookkeeper.entry import Digest, DigestType, master_key
from wire.bookkeeper.responses import AuthResponse
from wire.bookkeeper.status import Status


class World:
    def __init__(self, env, nursery, directory, names):
        self.env = env
        self.nursery = nursery
        self.store = MemoryStore()
        self.nodes = {name: Node(env, directory, name) for name in names}

    async def start(self):
        for node in self.nodes.values():
            await self.nursery.start(node.run)

    async def bookie_client(self, **settings):
        bookies = NetworkBookieClient(
            self.env, lambda name: self.nodes[name].address, NetworkConfig(**settings)
        )
        await self.nursery.start(bookies.run)
        return bookies

    async def client(self, config=None, **settings):
        bookies = await self.bookie_client(**settings)
        client = LedgerClient(
            self.store,
            bookies,
            self.env,
            LedgerClientConfig(**(config or {})),
            placement=RandomPlacement(
                lambda: [name for name, node in self.nodes.items() if node.address], self.env.rng
            ),
        )
        await self.nursery.start(client.run)
        return client


@pytest.fixture
async def world(tmp_path):
    async with networked() as (env, nursery):
        made = World(env, nursery, tmp_path, ["b1", "b2", "b3", "b4"])
        await made.start()
        yield made


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
    await world.nodes[gone].stop()
    told = await write(writer, 400)
    assert [error for _, error in told] == [None] * 400
    count = 500
    if sizes[1] > sizes[2]:  # all 400 may have had their quorum before the lost one was missed
        with trio.fail_after(20):
            while gone in writer.metadata.last_segment[1]:
                assert await write(writer, 1) == [(count, None)]
                count += 1
    assert gone not in writer.metadata.last_segment[1]
    metadata = await writer.close()
    assert metadata.last_entry_id == count - 1
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert await read_all(reader) == [b"entry %d" % n for n in range(count)]


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


async def test_tailing_by_long_poll(world):
    first, second = await world.client(), await world.client()
    writer = await first.create_ledger(**quorums((3, 3, 2)))
    await write(writer, 2)
    reader = await second.open_ledger(writer.ledger_id, recover=False)
    got = []

    async def follow():
        while len(got) < 50:
            await reader.wait_for(len(got), timeout_ms=10_000)
            while len(got) <= reader.last_add_confirmed:
                got.extend(await reader.read(len(got), count_max=64, size_max=MIB))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for _ in range(50):
                await write(writer, 1)
                await trio.sleep(0.005)
    assert [bytes(payload) for payload in got[:50]] == [b"entry %d" % n for n in range(50)]
    # They were told, and did not ask again and again.
    assert second.statistics.long_polls < 150
    assert await reader.wait_for(50, timeout_ms=5_000) == 50
    start = trio.current_time()
    assert await reader.wait_for(99, timeout_ms=200) == 50
    assert 0.19 < trio.current_time() - start < 1


async def test_the_end_of_a_ledger_is_told_to_its_followers(world):
    client = await world.client()
    writer = await client.create_ledger(**quorums((3, 2, 2)))
    await write(writer, 5)
    reader = await client.open_ledger(writer.ledger_id, recover=False)

    async def close():
        await trio.sleep(0.1)
        await writer.close()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            assert await reader.wait_for(99, timeout_ms=30_000) == 4
    assert await read_all(reader) == [b"entry %d" % n for n in range(5)]


async def test_a_frozen_bookie_is_read_around(world):
    config = {"speculative_read_timeout_ms": 100, "speculative_lac_timeout_ms": 100}
    client = await world.client(config)
    writer = await client.create_ledger(**quorums((3, 3, 2)))
    await write(writer, 200)
    await writer.close()
    frozen = writer.metadata.last_segment[1][0]
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    await reader.read(0, count_max=1, size_max=MIB)  # entry 0 makes it the one that is read from
    world.nodes[frozen].freeze()
    start = trio.current_time()
    assert await read_all(reader) == [b"entry %d" % n for n in range(200)]
    assert trio.current_time() - start < 2
    assert client.statistics.speculative_reads == 1
    # The next reader of this client knows, and does not even try.
    start = trio.current_time()
    other = await client.open_ledger(writer.ledger_id, recover=False)
    assert await read_all(other) == [b"entry %d" % n for n in range(200)]
    assert client.statistics.speculative_reads == 1


async def test_a_frozen_bookie_is_followed_around(world):
    client = await world.client({"speculative_lac_timeout_ms": 100})
    writer = await client.create_ledger(**quorums((3, 3, 2)))
    await write(writer, 2)
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    world.nodes[writer.metadata.last_segment[1][2]].freeze()
    for _ in range(3):
        await write(writer, 1)
    start = trio.current_time()
    assert await reader.wait_for(2, timeout_ms=10_000) >= 2
    assert trio.current_time() - start < 2


async def test_deferred_sync_and_force(world):
    client = await world.client()
    writer = await client.create_ledger_deferred_sync(**quorums((3, 3, 2)))
    assert await write(writer, 100) == [(n, None) for n in range(100)]
    assert writer.last_add_confirmed == -1
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == -1
    assert await writer.force() == 99
    await write(writer, 1)
    assert await reader.wait_for(99, timeout_ms=5_000) == 99
    assert await read_all(reader) == [b"entry %d" % n for n in range(100)]
    metadata = await writer.close()
    assert (metadata.last_entry_id, len(metadata.segments)) == (100, 1)


async def test_acks_of_an_earlier_connection_cannot_be_forced(world):
    """The bookie might have restarted and lost them."""
    client = await world.client()
    writer = await client.create_ledger_deferred_sync(**quorums((3, 3, 2)))
    await write(writer, 10)
    assert await writer.force() == 9
    members = writer.metadata.last_segment[1]
    await write(writer, 10)
    # All of them answered: each has acks to lose.
    await trio.sleep(0.05)
    world.nodes[members[1]].break_connections()
    await trio.sleep(0.05)
    await write_with_any_outcome(writer)
    with pytest.raises(LedgerForceError, match=members[1]):
        await writer.force()
    assert (await writer.close()).last_entry_id == 9


async def write_with_any_outcome(writer):
    told = trio.Event()
    writer.append_nowait([b"x"], lambda entry_id, error: told.set())
    with trio.fail_after(5):
        await told.wait()


async def test_adds_in_any_order(world):
    client = await world.client()
    writer = await client.create_ledger_adv(ledger_id=12345, **quorums((3, 2, 2)))
    told = []
    for entry_id in (3, 1, 0, 2, 5, 4):
        writer.add_nowait(
            entry_id, [b"entry %d" % entry_id], lambda entry_id, error: told.append(entry_id)
        )
    with trio.fail_after(5):
        while len(told) < 6:
            await trio.sleep(0.01)
    assert told == list(range(6))
    await writer.close()
    reader = await client.open_ledger(12345, recover=False)
    assert await read_all(reader) == [b"entry %d" % n for n in range(6)]


async def test_what_only_v3_can_ask(world, monkeypatch):
    client = await world.client({"explicit_lac_interval_ms": 50})
    bookies = await world.bookie_client()
    writer = await client.create_ledger(**quorums((3, 3, 2)))
    await write(writer, 20)
    member = writer.metadata.last_segment[1][0]
    digest = Digest(DigestType.CRC32C, b"")
    with trio.fail_after(5):
        while (record := await bookies.read_lac(member, writer.ledger_id)).packet is None:
            await trio.sleep(0.02)
    assert digest.open_lac(record.packet, writer.ledger_id) == 19
    assert digest.open(record.last_entry, writer.ledger_id, 19) == b"entry 19"
    status, entries = await bookies.list_entries(member, writer.ledger_id)
    assert (status, list(entries)) == (Status.EOK, list(range(20)))
    assert (await bookies.list_entries(member, 77))[0] is Status.ENOLEDGER
    index = world.nodes[member].bookie._index
    with monkeypatch.context() as damaged:

        def read(*_):
            raise IndexReadError("a block is damaged")

        damaged.setattr(type(index), "entry_ids", read)
        damaged.setattr(type(index), "last_entry_id", read)
        assert (await bookies.list_entries(member, writer.ledger_id))[0] is Status.EIO
    assert await bookies.bookie_info(member) == (Status.EOK, 1000, 500)
    assert await bookies.force_ledger(member, writer.ledger_id) is Status.EOK
    key = master_key(b"another")
    packet = digest.seal_lac(writer.ledger_id, 5)
    assert await bookies.write_lac(member, writer.ledger_id, 5, key, packet) is Status.EUA
    answer = await bookies.wait_lac(member, writer.ledger_id, 3, timeout_ms=1_000, with_entry=True)
    assert (answer.status, answer.last_add_confirmed, answer.entry_id) == (Status.EOK, 19, 4)
    assert digest.open(answer.entry, writer.ledger_id, 4) == b"entry 4"
    await world.nodes[member].stop()
    with trio.fail_after(5):
        while (await bookies.bookie_info(member)).status is not Status.EIO:
            await trio.sleep(0.02)
    assert (await bookies.read_lac(member, writer.ledger_id)).status is Status.EIO


async def test_what_a_hanging_bookie_does_not_take_is_bounded(world):
    """As one that is stopped right after the first request."""
    unsent_bytes_max = 4 * MIB
    bookies = await world.bookie_client(unsent_bytes_max=unsent_bytes_max, add_timeout_ms=4_000)
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        world.nodes["b1"].address = listener.getsockname()
        told = []
        finished = trio.Event()

        def done(status):
            told.append(status)
            if len(told) == 400:
                finished.set()

        def add(entry_id):
            bookies.add_entry("b1", 7, entry_id, b"k" * 20, (bytes(64 * 1024),), 0, done)

        started = trio.current_time()
        add(0)
        accepted, _ = await listener.accept()
        await accepted.recv(1000)
        answer = AuthResponse(Status.EOK, DISABLED_PLUGIN_NAME, b"")
        await accepted.send(b"".join(v2.encode_response(answer)))
        await trio.sleep(0.05)
        for entry_id in range(1, 400):
            add(entry_id)
        await trio.sleep(0.05)
        assert bookies._channels["b1"]._transport.unsent_bytes > unsent_bytes_max
        with trio.fail_after(10):
            await finished.wait()
        assert set(told) == {Status.EIO}
        assert trio.current_time() - started < 3
        assert bookies._channels["b1"]._transport is None
        accepted.close()


async def test_what_waits_for_a_connection_is_bounded(world):
    """As one that was stopped before: the kernel connects, and nobody reads."""
    bookies = await world.bookie_client(unsent_bytes_max=4 * MIB, connect_timeout_ms=1_000)
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        world.nodes["b1"].address = listener.getsockname()
        told = []
        for entry_id in range(400):
            bookies.add_entry("b1", 7, entry_id, b"k" * 20, (bytes(64 * 1024),), 0, told.append)
        assert 300 < len(told) < 340
        with trio.fail_after(10):
            while len(told) < 400:
                await trio.sleep(0.05)
        assert set(told) == {Status.EIO}


async def test_a_client_that_was_stopped_reads_its_answers_first(world):
    """A process that was stopped for longer than the time-out finds its adds old, and answered."""
    bookies = await world.bookie_client(add_timeout_ms=1_000)
    digest = Digest(DigestType.CRC32C, b"")
    told = []
    for entry_id in range(2):
        answered = trio.Event()

        def done(status, answered=answered):
            told.append(status)
            answered.set()

        entry = (digest.seal(7, entry_id, -1, entry_id + 1, (b"x",), 1), b"x")
        bookies.add_entry("b1", 7, entry_id, master_key(b""), entry, 0, done)
        if entry_id:  # the first one has to connect
            time.sleep(1.2)  # noqa: ASYNC251  # nothing of this process runs, as in a SIGSTOP
        with trio.fail_after(5):
            await answered.wait()
    assert told == [Status.EOK] * 2

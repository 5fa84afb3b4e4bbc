"""Client, metadata in SQLite and real bookies, in one process, over a restart."""

import pytest
import trio

from bookie.bookie import Bookie
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.errors import LedgerFencedError
from ledger.placement import RandomPlacement
from metadata.sqlite import SqliteStore
from runtime.env import real_env
from tests.ledger.bookie_configs import MIB, small_bookie
from tests.ledger.real_parts import write


async def start_node(nursery, directory, names):
    """(client, env) of a process with its bookies, metadata and ledger client."""
    env = real_env()
    nursery.start_soon(env.turn.serve)
    store = SqliteStore(str(directory / "metadata.sqlite"), env.disk.run)
    await nursery.start(store.run)
    bookies = {}
    for name in names:
        bookies[name] = Bookie(small_bookie(directory, name), env)
        await nursery.start(bookies[name].run)
    client = LedgerClient(
        store,
        LocalBookieClient(bookies),
        env,
        placement=RandomPlacement(lambda: sorted(bookies), env.rng),
    )
    await nursery.start(client.run)
    return client


async def read_all(reader):
    payloads = []
    while len(payloads) <= reader.last_add_confirmed:
        first = len(payloads)
        got = reader.read_nowait(first, count_max=64, size_max=MIB)
        if got is None:
            got = await reader.read(first, count_max=64, size_max=MIB)
        payloads += [bytes(payload) for payload in got]
    return payloads


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
async def test_write_fence_restart_read(tmp_path, sizes):
    names = ["b1", "b2", "b3"][: sizes[0]]
    quorums = dict(
        zip(("ensemble_size", "write_quorum_size", "ack_quorum_size"), sizes, strict=True)
    )
    expected = [b"entry %d" % n for n in range(300)]
    async with trio.open_nursery() as nursery:
        client = await start_node(nursery, tmp_path, names)
        closed = await client.create_ledger(**quorums)
        assert await write(closed, 300) == [(n, None) for n in range(300)]
        assert (await closed.close()).last_entry_id == 299
        assert await read_all(closed.reader) == expected
        fenced = await client.create_ledger(**quorums)
        await write(fenced, 200)
        reader = await client.open_ledger(fenced.ledger_id, recover=True)
        assert await read_all(reader) == expected[:200]
        told = await write(fenced, 1)
        assert isinstance(told[0][1], LedgerFencedError)
        left_open = await client.create_ledger(**quorums)
        await write(left_open, 100)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        client = await start_node(nursery, tmp_path, names)
        for writer, count in ((closed, 300), (fenced, 200), (left_open, 100)):
            reader = await client.open_ledger(writer.ledger_id, recover=True)
            assert reader.metadata.last_entry_id == count - 1
            assert await read_all(reader) == expected[:count]
        nursery.cancel_scope.cancel()

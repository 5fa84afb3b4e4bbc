"""Bookies in the same process, as the ledger client meets them."""

import errno
import os

import trio

from bookie.bookie import Bookie
from joined.local_bookie import LocalBookieClient
from ledger.bookie_client import DiskSpace
from ledger.client import LedgerClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from runtime.env import real_env
from tests.ledger.bookie_configs import small_bookie
from wire.bookkeeper.status import Status


async def test_who_waits_in_vain_for_a_lac_is_forgotten(nursery, tmp_path):
    """A reader that asks again and again would leave something behind each time, and the ledger
    would be followed for ever."""
    env = real_env()
    nursery.start_soon(env.turn.serve)
    bookie = Bookie(small_bookie(tmp_path, "b1"), env)
    await nursery.start(bookie.run)
    bookies = LocalBookieClient({"b1": bookie})
    placement = RandomPlacement(lambda: ["b1"], env.rng)
    client = LedgerClient(MemoryStore(), bookies, env, placement=placement)
    await client.manager.ensure_layout()
    await nursery.start(client.run)
    writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    added = trio.Event()
    writer.append_nowait([b"entry"], lambda _entry_id, _error: added.set())
    await added.wait()
    ledger_id = writer.ledger_id
    answer = await bookies.wait_lac("b1", ledger_id, 1, timeout_ms=10)
    assert answer.status is Status.EOK
    _, followed = await bookie.lacs.follow(ledger_id)
    assert not followed.is_waited_for, "after its time"
    async with trio.open_nursery() as waiting:

        async def wait():
            await bookies.wait_lac("b1", ledger_id, 1, timeout_ms=3_600_000)

        waiting.start_soon(wait)
        while not followed.is_waited_for:
            await trio.lowlevel.checkpoint()
        waiting.cancel_scope.cancel()
    assert not followed.is_waited_for, "who was cancelled"


async def test_a_disk_that_tells_no_space_is_an_answer(tmp_path):
    """As over the network (bookie/server/processor.py)."""

    def no_space():
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/ledgers")

    bookie = Bookie(small_bookie(tmp_path, "b1"), real_env())
    known = LocalBookieClient({"b1": bookie}, lambda: (1000, 500))
    assert await known.bookie_info("b1") == DiskSpace(Status.EOK, 1000, 500)
    assert await known.bookie_info("b2") == DiskSpace(Status.EIO)
    broken = LocalBookieClient({"b1": bookie}, no_space)
    assert await broken.bookie_info("b1") == DiskSpace(Status.EIO)

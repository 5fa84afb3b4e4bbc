"""Addresses that change hands: a bookie starts where another was, and must not answer for it."""

import sys
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from bookie.server.processor import Processor
from ledger.bookie_watcher import BookieWatcher, Place
from ledger.network.greeting import Greeting
from sim.history import Violation
from wire.bookkeeper.auth import DISABLED_PLUGIN_NAME
from wire.bookkeeper.responses import AuthResponse
from wire.bookkeeper.status import Status

THREE = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


async def one_acked_entry(world):
    """On bookies 1 and 2; bookie 3 was not reached. Bookie 2 is slow to tell the recovery of it."""
    client = await world.ledger_client("writer")
    client.fates.lost |= {(3, 0)}
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer)
    await world.until(lambda: client.acked)
    return client, writer


def give_host_of_one_to_four(world):
    one, four = world.bookies[0], world.bookies[3]
    for bookie in (one, four):
        bookie.crash(is_silent=False)
    world.exchange_hosts(one, four)
    four.start()
    return four


async def recover_and_judge(world, client, writer):
    other = await world.ledger_client("other")
    other.fates.slow_reads[2] = 1.0
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    world.bookies[0].start()
    await world.until(lambda: all(bookie.is_serving for bookie in world.bookies))
    await world.judge(other, writer.ledger_id, client.acked)
    return other


async def another_bookie_before_it_is_registered(world):
    """Bookie 1's registration is still there, bookie 4 listens at its address already."""
    client, writer = await one_acked_entry(world)
    give_host_of_one_to_four(world)
    await trio.sleep(0.5)
    assert not world.bookies[3].is_serving
    other = await recover_and_judge(world, client, writer)
    assert other.network.wrong_bookie_count > 0


def test_another_bookie_before_it_is_registered(run_script, monkeypatch):
    run_script(another_bookie_before_it_is_registered, bookies=4)

    async def believes_everybody(self, bookie, protocol):
        return True

    monkeypatch.setattr(Greeting, "check_identity", believes_everybody)
    with pytest.raises(Violation, match="entry 0 was acked, the end is -1"):
        run_script(another_bookie_before_it_is_registered, bookies=4)


async def another_bookie_is_registered_there(world):
    """Of bookie 1 only its last address is known."""
    client, writer = await one_acked_entry(world)
    four = give_host_of_one_to_four(world)
    await world.until(lambda: four.is_serving)
    await recover_and_judge(world, client, writer)


def test_another_bookie_is_registered_there(run_script, monkeypatch):
    """Bookies that do not tell who they are, as Java's."""

    def tells_nothing(self, connection, request):
        connection.answer(
            AuthResponse(Status.EOK, DISABLED_PLUGIN_NAME, b"", request.transaction_id)
        )

    async def with_last_addresses(world):
        # The recoverer has seen bookie 1 where it was.
        seen = await world.ledger_client("seen")
        monkeypatch.setattr(world, "ledger_client", once(seen, world.ledger_client))
        await another_bookie_is_registered_there(world)

    def once(first, make):
        async def ledger_client(name):
            return first if name == "other" else await make(name)

        return ledger_client

    monkeypatch.setattr(Processor, "_auth", tells_nothing)
    run_script(with_last_addresses, bookies=4)

    def for_ever(self, bookie):
        address = self._last_addresses.get(bookie) or self._addresses.get(bookie)
        return address and Place(*address)

    monkeypatch.setattr(BookieWatcher, "resolve", for_ever)
    with pytest.raises(Violation, match="entry 0 was acked, the end is -1"):
        run_script(with_last_addresses, bookies=4)

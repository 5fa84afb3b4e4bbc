"""The mark of an open ledger in a world of real bookies (conftest.py): an auditor looks while one
is started anew."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from ledger.autorecovery.repair import LedgerRepair
from ledger.underreplication import UnderReplication
from sim import preset
from sim.nodes import ROOT as LEDGERS
from wire.bookkeeper.ledger_metadata import LedgerState

THREE = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
#: For the mark to go, of virtual time: many times the worker's longest pause (sim/preset.py).
WAIT_SECONDS = 30


@pytest.fixture
def slow_fence(monkeypatch):
    """Nobody fences the ledger while the bookie is started anew."""
    config = replace(preset.autorecovery_config(), open_ledger_grace_ms=600_000)
    monkeypatch.setattr(preset, "autorecovery_config", lambda: config)


async def restart(world, ensure):
    """Of two bookies that a silent writer's ledger names, one after the other. `ensure(records,
    writer)` is awaited when the second one is back."""
    client = await world.ledger_client("writer")
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer, 5)
    await world.until(lambda: len(client.acked) == 5)
    recoverer = world.recoverers[0]
    recoverer.start()
    await world.until(lambda: recoverer.is_serving)
    await world.until(lambda: recoverer.service.audit_statistics.is_auditor)
    records = UnderReplication(client.store, LEDGERS)
    for number in (1, 2):
        name = f"bookie-{number}:"
        world.bookies[number - 1].crash(is_silent=False)
        while not await is_marked_for(records, writer.ledger_id, name):
            await trio.sleep(0.01)
        await world.start_again(number)
    await ensure(records, writer)
    client.append(writer, 2)
    await world.until(lambda: len(client.acked) == 7)
    # Nobody had to close the ledger for it.
    metadata = (await client.ledgers.manager.read(writer.ledger_id)).metadata
    assert metadata.state is LedgerState.OPEN
    assert [first for first, _ in metadata.segments] == [0]
    await world.judge(client, writer.ledger_id, client.acked)


async def is_marked_for(records, ledger_id, name):
    marked = await records.ledger(ledger_id)
    return marked is not None and any(each.startswith(name) for each in marked.replicas)


async def wait_unmarked(records, writer):
    with trio.fail_after(WAIT_SECONDS):
        while await records.ledger(writer.ledger_id) is not None:
            await trio.sleep(0.01)


def test_bookies_are_started_anew_while_an_auditor_looks(run_script, slow_fence, monkeypatch):
    script = partial(restart, ensure=wait_unmarked)
    run_script(script, bookies=3, recoverers=1)

    async def never(_self, _fragment, _metadata, _version):
        return False

    monkeypatch.setattr(LedgerRepair, "may_take_back", never)
    with pytest.raises(trio.TooSlowError):
        run_script(script, bookies=3, recoverers=1)

"""Auto-recovery on naive bookies, whose registrations are nodes as real ones are."""

from dataclasses import replace

import pytest
import trio

from ledger.autorecovery.config import AutoRecoveryConfig
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.service import AutoRecovery
from ledger.bookie_watcher import BookieWatcher
from ledger.placement import SpreadPlacement
from ledger.placement.candidates import CandidateSource
from ledger.underreplication import UnderReplication
from metadata.memory import MemoryStore
from wire.bookkeeper.records import BookieServiceInfo, Endpoint, encode_service_info

FAST = AutoRecoveryConfig(
    bookie_check_interval_s=0,
    ledger_check_interval_s=0,
    open_ledger_grace_ms=2_000,
    failed_ledger_pause_ms=1_000,
    failed_ledger_pause_max_ms=30_000,
)


class Recovered:
    """A world with registrations; `start` gives one more process with auto-recovery."""

    def __init__(self, world, nursery):
        self.world = world
        self.nursery = nursery
        self.records = UnderReplication(world.store)
        self.config = FAST
        self.racks = dict(zip("abcdef", ["/x/1", "/x/2"] * 3, strict=True))

    async def register(self, *names):
        for name in names:
            info = encode_service_info(BookieServiceInfo((Endpoint("bookie", "127.0.0.1", 1),)))
            await self.world.store.create(f"/ledgers/available/{name}", info, make_parents=True)
            path = f"/ledgers/cookies/{name}"
            if not await self.world.store.exists(path):
                await self.world.store.create(path, b"", make_parents=True)
            self.world.bookies.dead.discard(name)

    async def lose(self, *names, with_data=False):
        for name in names:
            self.world.bookies.dead.add(name)
            await self.world.store.delete(f"/ledgers/available/{name}")
            if with_data:
                self.world.bookies.bookies[name].ledgers.clear()

    async def start(self, bookie_id="a", **changes):
        store = MemoryStore(self.world.store.tree)
        watcher = BookieWatcher(store)
        await self.nursery.start(watcher.run)
        candidates = CandidateSource(watcher)
        await self.nursery.start(candidates.run)
        client = self.world.new_client(store)
        await self.nursery.start(client.run)
        parts = AutoRecoveryParts(
            config=replace(self.config, **changes),
            env=self.world.env,
            store=store,
            client=client,
            bookies=self.world.bookies,
            watcher=watcher,
            placement=SpreadPlacement(candidates.snapshot, self.world.env.rng),
            locations=lambda: {
                each.bookie: self.racks[each.bookie] for each in candidates.snapshot()
            },
            min_racks=2,
        )
        service = AutoRecovery(parts, bookie_id=bookie_id)
        service.store = store
        await self.nursery.start(service.run)
        return service

    async def write(self, count=10, sizes=(3, 3, 2), *, close=True, **keywords):
        """A ledger; its writer."""
        writer = await self.world.create(*sizes, **keywords)
        told = []
        for number in range(count):
            writer.append_nowait([b"%d" % number, bytes(50)], lambda *each: told.append(each))
        while len(told) < count:
            await trio.sleep(0.01)
        if close:
            await writer.close()
        return writer

    async def ensembles(self, ledger_id):
        metadata = await self.world.metadata(ledger_id)
        return [set(ensemble) for _, ensemble in metadata.segments]

    async def marked(self):
        return [each async for each in self.records.ledger_ids()]

    async def wait_whole(self, seconds=60):
        """Until nothing is marked any more."""
        with trio.fail_after(seconds):
            while await self.marked():
                await trio.sleep(0.1)

    async def check_copies(self, ledger_id):
        """Every entry is on each bookie of its write set."""
        metadata = await self.world.metadata(ledger_id)
        assert metadata.is_closed
        size = metadata.ensemble_size
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.ensemble_at(entry_id)
            for step in range(metadata.write_quorum_size):
                bookie = self.world.bookies.bookies[ensemble[(entry_id + step) % size]]
                assert entry_id in bookie.ledgers[ledger_id].entries


@pytest.fixture
async def cluster(new_world, nursery):
    """For tests that ask for `autojump_clock` themselves."""
    world = new_world("abcdef")
    await world.start(nursery)
    made = Recovered(world, nursery)
    await made.register(*"abcdef")
    return made

"""The bookie against a naive model, with collection of garbage: adds, deletions, flushes,
compactions and power failures at any moment, also on a disk that fills up.

What was acknowledged of a ledger that lives is there; a ledger whose deletion was acknowledged does
not come back; and when all is done, the space of what was deleted is free.
"""

import random
from math import inf

import pytest
import trio

from bookie.space.gc_config import GcConfig
from bookie.storage import map_walk
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

KEY = b"k" * 20
LIVE_MAX = 5


class Metadata:
    """Which ledgers there are; what the bookie is told of it is sometimes nothing."""

    def __init__(self, rng):
        self.rng = rng
        self.ledgers = set()
        self.last_id = 0

    async def gone(self, ledger_ids):
        await trio.sleep(self.rng.random() * 0.003)
        if self.rng.random() < 0.2:
            return []
        return [i for i in ledger_ids if i not in self.ledgers]

    async def confirmed(self):
        return []

    seconds_to_confirm = inf

    async def digest(self, ledger_id):
        return Digest() if self.rng.random() < 0.8 else None


class Model:
    def __init__(self, machine, rng):
        self.machine = machine
        self.rng = rng
        self.metadata = machine.known_ledgers = Metadata(rng)
        self.written = {}
        self.acknowledged = set()
        self.next_entry = {}
        self.may_be_damaged = False

    def new_ledger(self):
        self.metadata.last_id += 1
        ledger_id = self.metadata.last_id
        self.metadata.ledgers.add(ledger_id)
        self.next_entry[ledger_id] = 0
        return ledger_id

    def live(self):
        while len(self.metadata.ledgers) < LIVE_MAX:
            self.new_ledger()
        return sorted(self.metadata.ledgers)


def burst(bookie, model, entry_bytes):
    rng = model.rng
    ledgers = model.live()
    for _ in range(rng.choice([1, 5, 20])):
        ledger_id = rng.choice(ledgers)
        if rng.random() < 0.9:
            entry_id = model.next_entry[ledger_id]
            model.next_entry[ledger_id] += 1
        else:
            entry_id = rng.randrange(model.next_entry[ledger_id] + 1)
        key = (ledger_id, entry_id)
        entry = model.written.get(key)
        if entry is None:
            size = rng.choice([0, 30, 100, 300, 1000, 3000])
            entry = model.written[key] = entry_bytes(*key, rng.randbytes(size))

        def done(status, key=key):
            if status is Status.EOK:
                model.acknowledged.add(key)

        flags = FLAG_RECOVERY_ADD if rng.random() < 0.2 else 0
        bookie.add_entry(*key, KEY, [entry], flags, done)


def delete_from_metadata(model):
    model.metadata.ledgers.discard(model.rng.choice(model.live()))


async def check(bookie, model):
    for key in sorted(model.written):
        ledger_id, _ = key
        is_alive = ledger_id in model.metadata.ledgers
        status, entry = await bookie.read_entry(*key)
        if is_alive and key in model.acknowledged:
            assert status is Status.EOK, f"{key} is lost: {status!r}"
        if status is Status.EOK:
            assert bytes(entry) == model.written[key]
        elif is_alive:
            assert status in (Status.ENOENTRY, Status.ENOLEDGER), status


async def collect(bookie, rng):
    with trio.move_on_after(rng.random() * 0.05):
        await bookie.collect_garbage(force_minor=rng.random() < 0.5, force_major=rng.random() < 0.7)


async def one_life(machine, model, rng, entry_bytes):
    async with machine.running_until_crash() as bookie:
        await check(bookie, model)
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randrange(1, 30)):
                action = rng.random()
                if action < 0.5:
                    burst(bookie, model, entry_bytes)
                elif action < 0.6:
                    delete_from_metadata(model)
                elif action < 0.75:
                    nursery.start_soon(collect, bookie, rng)
                elif action < 0.85:
                    with trio.move_on_after(rng.random() * 0.02):
                        await bookie.flush()
                elif action < 0.9:
                    await check(bookie, model)
                await trio.sleep(rng.random() * rng.choice([0, 0.001, 0.01]))
            nursery.cancel_scope.cancel()


async def settle(machine, model, rng):
    """In the end, with space and without crashes, what is left is what is alive."""
    machine.disk.faults.capacity_bytes = 1 << 40
    async with machine.running() as bookie:
        for _ in range(30):
            # Metadata does not always answer, and a log is looked at once a round.
            await bookie.collect_garbage(force_major=True)
            await bookie.flush()
        await check(bookie, model)
        assert set(bookie.list_ledgers()) <= model.metadata.ledgers
        assert not bookie._logs.unknown()
        alive = sum(
            len(model.written[key]) + 4 for key in model.written if key[0] in model.metadata.ledgers
        )
        # Copies of what was written twice, a header for each log, and the log of the flush.
        assert bookie.statistics().entry_log_bytes < 2.5 * alive + 20_000
        for ledger_id in range(1, model.metadata.last_id + 1):
            if ledger_id not in model.metadata.ledgers:
                assert machine.index.last_entry_id(ledger_id) == -1, ledger_id
    names = [
        name
        for path in machine.config.ledger_directories
        for name in machine.disk.list(f"{path}/current")
    ]
    assert not any(name.endswith(".compacting") for name in names)


@pytest.mark.parametrize("seed", range(60))
async def test_history(seed, machine_class, entry_bytes, monkeypatch, autojump_clock):
    rng = random.Random(seed)
    if seed % 2:
        # As with thousands of logs: their maps are left to the collector's round.
        monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", 0)
        monkeypatch.setattr(map_walk, "PENDING_MAX", seed % 4)
    machine = machine_class(
        seed,
        flush_interval_ms=rng.choice([3, 20, 10_000]),
        journal_size_bytes=rng.choice([16, 64]) * 1024,
        entry_log_size_limit_bytes=rng.choice([9, 16, 64]) * 1024,
        disk_reserve_size_bytes=0,
        more_ledger_directories=rng.choice([(), ("/more",)]),
        gc=GcConfig(
            wait_ms=rng.choice([5, 50]),
            minor_interval_ms=rng.choice([50, 100]),
            major_interval_ms=rng.choice([150, 10_000]),
            rate_entries=rng.choice([0, 5000]),
            use_target_log_size=rng.random() < 0.2,
        ),
    )
    model = Model(machine, rng)
    for _ in range(8):
        faults = machine.disk.faults
        faults.sync_seconds = rng.choice([(0, 0), (0.0001, 0.002), (0.001, 0.01)])
        faults.cached_share = rng.choice([1.0, 0.5, 0.0])
        if rng.random() < 0.2:
            faults.failing_sync_number = machine.disk.sync_count + rng.randrange(1, 80)
        try:
            await one_life(machine, model, rng, entry_bytes)
        except* (OSError, AssertionError):
            # A sync that failed is an error of the start, or of what is read after it.
            number = faults.failing_sync_number
            if number is None or machine.disk.sync_count < number:
                raise
            machine.crash()
        faults.failing_sync_number = None
    await settle(machine, model, rng)

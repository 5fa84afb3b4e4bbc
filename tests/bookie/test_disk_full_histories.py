"""Journals that become entry logs, under everything at once: disks and an index that fill up,
deletions, ledgers that are given up, collections, power failures and kills. What was acknowledged
is there after each start, and nothing else is read.
"""

import random

import pytest
import trio

from bookie.space.gc_config import GcConfig
from tests.bookie.fault_histories.known import GIVEN_UP, Known, Metadata
from tests.bookie.test_disk_full import KEY, KIB, RECOVERY, FullIndex, fill, make_room
from wire.bookkeeper.status import Status

LEDGERS = range(4)


async def check(bookie, known):
    """One by one, and in batches, of which what follows the first may end anywhere."""
    for (ledger_id, entry_id), entry in sorted(known.acknowledged.items()):
        if ledger_id in known.deleted:
            continue
        status, found = await bookie.read_entry(ledger_id, entry_id)
        if (ledger_id, entry_id) in known.uncertain:
            assert status is not Status.EOK or bytes(found) == entry
            continue
        assert (status, bytes(found)) == (Status.EOK, entry), (ledger_id, entry_id)
        status, batch = await bookie.read_entries(ledger_id, entry_id, 4, 1 << 20)
        assert status is Status.EOK
        for behind, each in enumerate(batch):
            assert bytes(each) == known.sent[ledger_id, entry_id + behind]


def add(bookie, rng, entry_bytes, known):
    ledger_id = rng.choice(LEDGERS)
    if ledger_id in known.deleted:
        return
    key = ledger_id, known.next_ids[ledger_id]
    known.next_ids[ledger_id] += 1
    entry = entry_bytes(*key, rng.randbytes(rng.choice([30, 300, 1500, 2000, 3000])))
    known.sent[key] = entry

    def done(status):
        if status is Status.EOK:
            known.acknowledged[key] = entry

    is_recovery = ledger_id == GIVEN_UP or rng.random() < 0.3
    bookie.add_entry(*key, KEY, [entry], RECOVERY if is_recovery else 0, done)


async def collect(bookie, is_major):
    with trio.move_on_after(5):
        await bookie.collect_garbage(force_major=is_major, force_minor=True)


async def step(machine, bookie, nursery, rng, entry_bytes, known):
    what = rng.random()
    if what < 0.5:
        for _ in range(rng.choice([1, 2, 5])):
            add(bookie, rng, entry_bytes, known)
    elif what < 0.65:
        with trio.move_on_after(rng.random() * 3):
            await bookie.flush()
    elif what < 0.77:
        fill(machine, rng.choice([0, 500, 3 * KIB, 20 * KIB, 40 * KIB, 1 << 30]))
    elif what < 0.80:
        machine.index.share = rng.choice([0, 0.1, 0.5])
    elif what < 0.84:
        ledger_id = rng.randrange(GIVEN_UP)
        known.deleted[ledger_id] = False
        with trio.move_on_after(0.1):
            await bookie.delete_ledger(ledger_id)
    elif what < 0.92:
        machine.known_ledgers.is_over_replicated = rng.random() < 0.5
        is_major = rng.random() < 0.7
        if rng.random() < 0.5:
            nursery.start_soon(collect, bookie, is_major)
        else:
            await collect(bookie, is_major)
    else:
        await check(bookie, known)
    await trio.sleep(rng.choice([0, 0.001, 0.01, 1.1]))


async def life(machine, rng, entry_bytes, known):
    async with trio.open_nursery() as nursery, machine.running_until_crash() as bookie:
        await check(bookie, known)
        for _ in range(rng.randrange(2, 25)):
            await step(machine, bookie, nursery, rng, entry_bytes, known)
        if rng.random() < 0.4:
            machine.disk.kill()  # without a loss of power
            machine.index.crash()
        nursery.cancel_scope.cancel()


#: 38 found a start that was never settled.
@pytest.mark.parametrize("seed", [*range(15), 38])
async def test_nothing_is_lost_or_wrong(seed, machine_class, entry_bytes, autojump_clock):
    rng = random.Random(seed)
    machine = machine_class(
        seed,
        gc=GcConfig(rate_entries=0, over_replicated_wait_ms=1),
        more_ledger_directories=rng.choice([(), ("/more",)]),
        verify_digest_on_write=rng.random() < 0.5,
        flush_interval_ms=rng.choice([20, 1000]),
        journal_kept_entry_min_bytes=rng.choice([200, 1000]),
        journal_size_bytes=rng.choice([12, 16, 24]) * KIB,
        entry_log_size_limit_bytes=rng.choice([9, 16, 64]) * KIB,
        write_cache_size_bytes=64 * KIB,
        disk_check_interval_ms=500,
        disk_reserve_size_bytes=rng.choice([0, 4 * KIB]),
    )
    known = Known()
    machine.index, machine.known_ledgers = FullIndex(rng), Metadata(known)
    for _ in range(7):
        machine.disk.faults.sync_seconds = rng.choice([(0, 0), (0.0001, 0.002)])
        await life(machine, rng, entry_bytes, known)
        machine.index.share = 0.0
        # A start needs room for an entry log; whether it finds more is left to chance.
        spare = machine.disk.used_bytes + rng.choice([4 * KIB, 40 * KIB, 1 << 30])
        machine.disk.faults.capacity_bytes = max(machine.disk.faults.capacity_bytes, spare)
    make_room(machine)
    for _ in range(2):
        async with machine.running() as bookie:
            await bookie.flush()
            assert not bookie.is_read_only
            await check(bookie, known)
    assert known.acknowledged

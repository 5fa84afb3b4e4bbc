"""The bookie against a naive model, through crashes: what was acknowledged is there, and nothing
that is there was never written.

Each seed is one history: bursts of adds on a few ledgers, flushes, fences, deletions, reads, and
power failures at any moment, also while starting, with syncs that take time (virtual) and unsynced
writes that are lost, torn and kept in any mixture.
"""

import random

import pytest
import trio

from bookie import adds
from wire.bookkeeper.status import FLAG_DO_FENCING, FLAG_RECOVERY_ADD, Status

KEY = b"k" * 20
LEDGERS = 4


class Model:
    def __init__(self, disk):
        self.disk = disk
        self.written = {}  # (ledger, entry) -> all bytes that were ever given
        self.acknowledged = set()
        self.fenced = set()
        self.maybe_deleted = set()
        self.deleted = set()
        self.next_entry = dict.fromkeys(range(LEDGERS), 0)

    def disk_failed(self):
        number = self.disk.faults.failing_sync_number
        return number is not None and self.disk.sync_count >= number


def random_payload(rng):
    size = rng.choice([0, 1, 30, 100, 100, 300, 1000, 3000])
    return rng.randbytes(size)


async def one_life(machine, model, rng, adds_class, entry_bytes):
    async with machine.running_until_crash() as bookie:
        await check_all(bookie, model)
        for _ in range(rng.randrange(1, 25)):
            action = rng.random()
            if action < 0.6:
                burst(bookie, model, rng, entry_bytes)
            elif action < 0.7:
                with trio.move_on_after(rng.random() * 0.01):
                    await bookie.flush()
            elif action < 0.75:
                await fence(bookie, model, rng)
            elif action < 0.77:
                await delete(bookie, model, rng)
            elif action < 0.85:
                await check_some(bookie, model, rng)
            await trio.sleep(rng.random() * rng.choice([0, 0.001, 0.01]))


def burst(bookie, model, rng, entry_bytes):
    for _ in range(rng.choice([1, 2, 5, 20])):
        ledger_id = rng.randrange(LEDGERS)
        kind = rng.random()
        if kind < 0.9:
            entry_id = model.next_entry[ledger_id]
            model.next_entry[ledger_id] += rng.choice([1, 1, 1, 2])
        else:
            entry_id = rng.randrange(model.next_entry[ledger_id] + 1)
        flags = FLAG_RECOVERY_ADD if rng.random() < 0.2 else 0
        key = (ledger_id, entry_id)
        given = model.written.setdefault(key, [])
        entry = given[-1] if given else entry_bytes(*key, random_payload(rng))
        given.append(entry)
        was_fenced = ledger_id in model.fenced - model.maybe_deleted

        def done(status, key=key, flags=flags, was_fenced=was_fenced):
            assert status in (
                Status.EOK,
                Status.EFENCED,
                Status.ETOOMANYREQUESTS,
                Status.EIO,
                Status.EREADONLY,
            )
            if status is Status.EOK:
                assert flags or not was_fenced, "a fenced ledger took an ordinary add"
                model.acknowledged.add(key)

        cut = rng.randrange(len(entry))
        bookie.add_entry(*key, KEY, [entry[:cut], entry[cut:]], flags, done)


async def fence(bookie, model, rng):
    ledger_id = rng.randrange(LEDGERS)
    with trio.move_on_after(0.01):
        status, _ = await bookie.read_entry(ledger_id, -1, flags=FLAG_DO_FENCING, master_key=KEY)
        if status in (Status.EOK, Status.ENOENTRY):
            model.fenced.add(ledger_id)


async def delete(bookie, model, rng):
    ledger_id = rng.randrange(LEDGERS)
    model.maybe_deleted.add(ledger_id)
    with trio.move_on_after(0.01):
        if await bookie.delete_ledger(ledger_id) is Status.EOK:
            model.deleted.add(ledger_id)


async def check_some(bookie, model, rng):
    for ledger_id, entry_id in rng.sample(sorted(model.written), min(5, len(model.written))):
        await check_entry(bookie, model, ledger_id, entry_id)
    ledger_id = rng.randrange(LEDGERS)
    first = rng.randrange(model.next_entry[ledger_id] + 1)
    status, entries = await bookie.read_entries(
        ledger_id, first, rng.choice([0, 3]), rng.choice([0, 500, 5000])
    )
    assert status in (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER) or model.disk_failed()
    for entry_id, entry in enumerate(entries, first):
        assert bytes(entry) in model.written[ledger_id, entry_id]
    # In one turn, so that one of them brings the next ones along.
    for entry_id in range(first, model.next_entry[ledger_id] + 2, rng.choice([1, 1, 3])):
        found = bookie.read_entry_nowait(ledger_id, entry_id)
        if found is None:
            continue  # it would wait for the disk
        status, entries = found
        assert len(entries) == (status is Status.EOK)
        if status is Status.EOK:
            assert bytes(entries[0]) in model.written[ledger_id, entry_id]
        elif status is Status.EIO:
            assert model.disk_failed()
        elif ledger_id not in model.maybe_deleted:
            assert (ledger_id, entry_id) not in model.acknowledged


async def check_entry(bookie, model, ledger_id, entry_id):
    key = (ledger_id, entry_id)
    status, entry = await bookie.read_entry(*key)
    if status is Status.EIO:
        assert model.disk_failed(), "EIO although no sync failed"
        return
    if key in model.acknowledged and ledger_id not in model.maybe_deleted:
        assert status is Status.EOK, f"acknowledged {key} is lost: {status!r}"
    assert status in (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER)
    if status is Status.EOK:
        assert bytes(entry) in model.written[key]


async def check_all(bookie, model):
    for key in sorted(model.written):
        await check_entry(bookie, model, *key)
    for ledger_id in model.fenced - model.maybe_deleted:
        answers = []
        entry = ledger_id.to_bytes(8, "big") + (10**6).to_bytes(8, "big") + bytes(24)
        bookie.add_entry(ledger_id, 10**6, KEY, [entry], 0, answers.append)
        assert answers == [Status.EFENCED] or model.disk_failed()


@pytest.mark.parametrize("seed", range(60))
async def test_history(seed, machine_class, adds_class, entry_bytes, autojump_clock, monkeypatch):
    rng = random.Random(seed)
    # From which size on a record's checksum is known to the journal.
    monkeypatch.setattr(adds, "JOINED_SIZE_MIN", (40, 200, 1 << 20)[seed % 3])
    machine = machine_class(
        seed,
        verify_digest_on_write=seed % 2 == 0,
        flush_interval_ms=rng.choice([3, 20, 10_000]),
        journal_size_bytes=rng.choice([12, 16, 64]) * 1024,
        journal_alignment_bytes=rng.choice([64, 256, 1024]),
        journal_kept_entry_min_bytes=rng.choice([0, 1, 60, 400]),
        journal_buffered_writes_threshold_bytes=rng.choice([1, 1000, 1 << 20]),
        entry_log_size_limit_bytes=rng.choice([9, 16, 64]) * 1024,
        write_cache_size_bytes=rng.choice([16, 64]) * 1024,
        write_cache_pinned_size_max_bytes=rng.choice([0, 1 << 20]),
    )
    model = Model(machine.disk)
    for _ in range(8):
        machine.disk.faults.sync_seconds = rng.choice([(0, 0), (0.0001, 0.002), (0.001, 0.01)])
        machine.disk.faults.cached_share = rng.choice([1.0, 0.5, 0.0])
        if rng.random() < 0.2:
            machine.disk.faults.failing_sync_number = machine.disk.sync_count + rng.randrange(1, 60)
        machine_fails = machine.disk.faults.failing_sync_number is not None
        try:
            if rng.random() < 0.3:
                await crash_while_starting(machine, rng)
            await one_life(machine, model, rng, adds_class, entry_bytes)
        except* OSError:
            # The failing sync may be one of the start's.
            assert machine_fails
            machine.crash()
        machine.disk.faults.failing_sync_number = None
    async with machine.running() as bookie:
        await check_all(bookie, model)
    async with machine.running() as bookie:
        await check_all(bookie, model)
        assert not model.deleted & set(bookie.list_ledgers()) or model.maybe_deleted


async def crash_while_starting(machine, rng):
    with trio.move_on_after(rng.random() * 0.03):
        async with machine.running_until_crash():
            return
    machine.crash()

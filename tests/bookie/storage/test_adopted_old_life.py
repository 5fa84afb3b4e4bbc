"""A journal's file is used again, and so may hold, behind what was written to it last, a group that
begins where that ends: of an earlier life, in which it was never durable."""

import trio

from tests.bookie.storage.large_entries import JOURNALS, SIZE, payload_of
from wire.bookkeeper.status import Status


async def put(machine, bookie, entry_bytes, ledger_id, entry_id, size=SIZE):
    """Waits for it, unless a sync takes ten seconds."""
    answers = []
    entry = entry_bytes(ledger_id, entry_id, payload_of(ledger_id, entry_id, size))
    bookie.add_entry(ledger_id, entry_id, b"k" * 20, [entry], 0, answers.append)
    machine.turn.run()
    if machine.disk.faults.sync_seconds == (0.0, 0.0):
        while not answers:
            await trio.sleep(0.01)
        assert answers == [Status.EOK]


async def lose(machine, entry_bytes):
    """(1, 1) and (1, 2) are written, and lost in a power failure before anybody was told."""
    async with machine.running_until_crash() as bookie:
        await put(machine, bookie, entry_bytes, 1, 0)
        machine.disk.faults.sync_seconds = (10.0, 10.0)
        for entry_id in (1, 2):
            await put(machine, bookie, entry_bytes, 1, entry_id)
            await trio.sleep(0.01)
    machine.disk.faults.sync_seconds = (0.0, 0.0)


def old_place(machine, bookie):
    """Where in the journal in use the lost (1, 2) still is; below 0: nowhere."""
    path = f"{JOURNALS}/{bookie._journal._journal_id:x}.txn"
    return machine.disk.open(path).pread(20_000, 0).find(payload_of(1, 2)[:64])


async def write_up_to_it(machine, bookie, entry_bytes):
    """(1, 1) once more, just before the lost (1, 2); False if it did not survive in a file."""
    number = 0
    while bookie._journal._journal_id < 3 and number < 400:
        await put(machine, bookie, entry_bytes, 9, number, 300)
        number += 1
        if number % 5 == 0:
            await bookie.flush()
        await trio.sleep(0.01)
    at = old_place(machine, bookie)
    await bookie.flush()
    target = (at - 108) // 256 * 256 - 1792
    if at < 0 or bookie._journal.filled_bytes() > target:
        return False
    while bookie._journal.filled_bytes() < target:
        await put(machine, bookie, entry_bytes, 9, number, 90)
        number += 1
    await put(machine, bookie, entry_bytes, 1, 1)
    assert await bookie.flush()
    return bool(bookie._logs.adopted)


async def test_what_a_crash_lost_does_not_come_back(machine_class, entry_bytes, autojump_clock):
    reached = 0
    for seed in range(20):
        machine = machine_class(
            seed,
            journal_kept_entry_min_bytes=1000,
            journal_size_bytes=16 << 10,
            journal_turn_size_max_bytes=1 << 20,  # written by when it is killed
            write_cache_size_bytes=64 << 10,
            journal_buffered_writes_threshold_bytes=1,
            journal_attest_interval_ms=0,
        )
        await lose(machine, entry_bytes)
        async with machine.running_until_crash() as bookie:
            found = [(await bookie.read_entry(1, number))[0] for number in range(3)]
            if found != [Status.EOK, Status.ENOENTRY, Status.ENOENTRY]:
                continue  # it was written after all
            if not await write_up_to_it(machine, bookie, entry_bytes):
                continue
            reached += 1
            assert (await bookie.read_entry(1, 2))[0] is Status.ENOENTRY
            status, entries = await bookie.read_entries(1, 1, 5, 1 << 20)
            assert (status, len(entries)) == (Status.EOK, 1)
            assert (await bookie.read_entry(1, 2))[0] is Status.ENOENTRY
    assert reached >= 3

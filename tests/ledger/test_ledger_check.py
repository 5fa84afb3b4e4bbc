"""Which copies of a ledger are missing, against a plain look into naive bookies."""

import random

import pytest
import trio

from ledger.distribution import Schedule
from ledger.errors import LedgerMetadataError
from ledger.ledger_check import LedgerChecker, MissingCopies
from wire.bookkeeper.ledger_metadata import LedgerMetadata
from wire.bookkeeper.status import Status


async def write(writer, count):
    finished, told = trio.Event(), []

    def done(entry_id, error):
        told.append(error)
        if len(told) == count:
            finished.set()

    for _ in range(count):
        writer.append_nowait([b"entry"], done)
    await finished.wait()


async def closed_ledger(world, sizes, count):
    writer = await world.create(*sizes)
    await write(writer, count)
    return writer.ledger_id, await writer.close()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (4, 2, 2), (5, 3, 2)])
@pytest.mark.parametrize("seed", range(5))
async def test_random_holes(world, monkeypatch, sizes, seed):
    monkeypatch.setattr("ledger.ledger_check.PORTION_COUNT", 7)
    rng = random.Random(seed)
    ledger_id, metadata = await closed_ledger(world, sizes, 60)
    schedule = Schedule(*sizes)
    ensemble = metadata.last_segment[1]
    holes, damaged = set(), set()
    for _ in range(rng.randint(0, 60)):
        entry_id = rng.randrange(60)
        index = rng.choice(schedule.write_set(entry_id))
        if (entry_id, index) in holes | damaged:
            continue
        if rng.random() < 0.7:
            del world.bookies.bookies[ensemble[index]].ledgers[ledger_id].entries[entry_id]
            holes.add((entry_id, index))
        else:
            world.bookies.corrupt(ensemble[index], ledger_id, entry_id)
            damaged.add((entry_id, index))
    told = []
    found = await LedgerChecker(world.bookies, ledger_id, metadata).check(59, told.append)
    assert sum(told) == found.entries == 60
    assert found.copies == 60 * sizes[1]
    assert found.missing_copies == len(holes | damaged)
    bad = [[e for e in range(60) if (e, i) in holes | damaged] for i in range(sizes[0])]
    counts = [sum(e in each for each in bad) for e in range(60)]
    assert found.lost_entries == sum(count == sizes[1] for count in counts)
    assert found.below_ack_quorum == sum(sizes[1] - count < sizes[2] for count in counts)
    # The runs say the same, entry by entry.
    told_holes, told_damaged = set(), set()
    for run in found.missing:
        index = ensemble.index(run.bookie)
        for entry_id in range(run.first_entry_id, run.last_entry_id + 1):
            if index in schedule.write_set(entry_id):
                (told_damaged if run.reason == "DAMAGED" else told_holes).add((entry_id, index))
    assert (told_holes, told_damaged) == (holes, damaged)


async def test_runs_cross_portions_and_a_silent_bookie_is_left_alone(world, monkeypatch):
    monkeypatch.setattr("ledger.ledger_check.PORTION_COUNT", 10)
    ledger_id, metadata = await closed_ledger(world, (3, 3, 2), 95)
    dead = metadata.last_segment[1][1]
    world.bookies.dead.add(dead)
    asked = []
    read_entry = world.bookies.read_entry

    async def counted(bookie, *arguments, **keywords):
        asked.append(bookie)
        return await read_entry(bookie, *arguments, **keywords)

    world.bookies.read_entry = counted
    found = await LedgerChecker(world.bookies, ledger_id, metadata).check(94)
    assert found.missing == [MissingCopies(dead, 0, 94, Status.EIO.name)]
    assert (found.lost_entries, found.below_ack_quorum) == (0, 0)
    assert asked.count(dead) == 3


async def test_an_open_ledger_is_checked_as_far_as_told(world):
    writer = await world.create(3, 3, 2)
    await write(writer, 10)
    found = await LedgerChecker(world.bookies, writer.ledger_id, writer.metadata).check(7)
    assert (found.entries, found.copies, found.missing) == (8, 24, [])
    empty = await LedgerChecker(world.bookies, writer.ledger_id, writer.metadata).check(-1)
    assert (empty.entries, empty.missing) == (0, [])


async def test_metadata_without_keys(world):
    old = LedgerMetadata(1, 1, 1, ((0, ("a",)),), digest_type=None, password=None)
    with pytest.raises(LedgerMetadataError):
        LedgerChecker(world.bookies, 1, old)


async def test_a_part_is_checked_and_good_copies_are_shown(world):
    ledger_id, metadata = await closed_ledger(world, (3, 3, 2), 20)
    ensemble = metadata.last_segment[1]
    world.bookies.corrupt(ensemble[0], ledger_id, 12)
    world.bookies.corrupt(ensemble[1], ledger_id, 3)  # before the part
    seen = []

    def show(bookie, entry_id, payload):
        assert bytes(payload) == b"entry"
        seen.append((entry_id, bookie))

    checker = LedgerChecker(world.bookies, ledger_id, metadata, show)
    found = await checker.check(14, first_entry_id=10)
    assert (found.entries, found.copies) == (5, 15)
    assert found.missing == [MissingCopies(ensemble[0], 12, 12, "DAMAGED")]
    good = {(entry_id, bookie) for entry_id in range(10, 15) for bookie in ensemble}
    assert sorted(seen) == sorted(good - {(12, ensemble[0])})

"""Journals damaged at every byte: what was acknowledged is replayed, or the start is refused with
the place; and what the last group cannot say of itself (Journal.attest)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from bookie.errors import CorruptionError
from bookie.journal.journal_format import FORCE, NO_LEDGER
from bookie.journal.journal_replay import JournalReplay
from bookie.storage.checkpoint import read_checkpoint
from checks.damage import HEAD, journal_figures, write_journals
from wire.bookkeeper.status import Status

JOURNALS = "/journal/current"


def show(figures):
    print(HEAD)
    for each in figures:
        print(each.row())


async def test_damage_anywhere_is_told_once_the_journal_says_that_all_was_durable():
    journals = await write_journals(attested=True)
    figures = journal_figures(journals, "attested", (0x01, 0xFF))
    show(figures)
    truncated, *flips, zeroed = figures
    size = sum(map(len, journals.files.values()))
    assert (truncated.cases, truncated.refused) == (size, size)
    for each in (*flips, zeroed):
        assert (each.cut, each.lost, each.invented) == (0, 0, 0)
        assert each.kept + each.refused == each.cases
        assert each.refused > each.cases / 4
    assert [each.cases for each in flips] == [size, size]


async def test_what_looks_torn_is_only_the_last_group_that_no_later_one_vouches_for():
    journals = await write_journals(attested=False)
    figures = journal_figures(journals, "not attested", (0x01, 0xFF))
    show(figures)
    truncated, *flips, _ = figures
    assert truncated.refused == truncated.cases
    name, start, end = journals.groups[-1]
    for each in flips:
        assert (each.lost, each.invented) == (0, 0)
        # Its padding, up to a block, is not its bytes.
        assert 0 < each.cut <= end - start, name


async def test_an_idle_bookie_vouches_for_its_last_group_once(machine, adds_class, wait_until):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        await wait_until(lambda: bookie.statistics().journal_groups == 0)
        adds.add(1, 0)
        await adds.wait(1)
        groups = bookie.statistics().journal_groups
        await wait_until(lambda: bookie.statistics().journal_groups == groups + 1)
        for _ in range(3):
            assert not bookie._journal.attest(), "it was said already"
        adds.add(1, 1)
        await adds.wait(2)
        assert bookie._journal.attest()
        assert not bookie._journal.attest()


async def test_it_does_not_vouch_while_something_is_under_way(machine, adds_class):
    machine.disk.faults.sync_seconds = (0.005, 0.005)
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(30):
            adds.add(1, entry_id)
            assert not bookie._journal.attest()
            await adds.wait(entry_id)
        machine.disk.faults.sync_seconds = (0.0, 0.0)


async def killed_after_a_moment(machine, adds_class, wait_until, *, vouched):
    """A bookie that was killed after its last add; the offset of that add's group in its file."""
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(4):
            adds.add(1, entry_id, b"x" * 50)
            await adds.wait(entry_id + 1)
        offset, end = bookie._journal._durable.offset - 256, bookie._journal._durable.offset
        if vouched:
            await wait_until(lambda: bookie._journal._durable.offset > end)
    return offset


@pytest.mark.parametrize("vouched", [True, False])
async def test_a_damaged_last_group_through_a_bookie(machine, adds_class, wait_until, vouched):
    offset = await killed_after_a_moment(machine, adds_class, wait_until, vouched=vouched)
    name = max(n for n in machine.disk.list(JOURNALS) if n == "1.txn")
    machine.disk.flip_bit(f"{JOURNALS}/{name}", offset + 70)
    if vouched:
        with pytest.raises(BaseExceptionGroup) as error:
            async with machine.running():
                pass
        assert error.group_contains(CorruptionError, match=rf"1\.txn: offset {offset}: damaged")
        return
    async with machine.running() as bookie:
        # Nothing tells it from a write that the crash tore.
        assert (await bookie.read_entry(1, 2))[0] is Status.EOK
        assert (await bookie.read_entry(1, 3))[0] is Status.ENOENTRY


async def test_the_vouching_record_says_nothing_to_a_replay(machine, adds_class, wait_until):
    await killed_after_a_moment(machine, adds_class, wait_until, vouched=True)
    mark = read_checkpoint(machine.disk, "/ledgers/current").mark
    found = [(i, j) for i, j, _ in JournalReplay(machine.disk, JOURNALS, mark).records()]
    assert found[-1] == (NO_LEDGER, FORCE)
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [1]
        _, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
        assert len(entries) == 4

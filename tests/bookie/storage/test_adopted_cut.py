"""How a journal that becomes an entry log is cut behind its last entry."""

import errno

import pytest
import trio

from runtime.disk import FREE_AT_ONCE
from runtime.sim_disk import SimFile
from tests.bookie.storage.large_entries import add, check


@pytest.fixture
def machine(machine_class):
    return machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)


@pytest.fixture
def cuts(monkeypatch):
    """(how, behind) of all that is done to files whose names end in `.log`."""
    noted = []
    shrink, truncate = SimFile.shrink, SimFile.truncate

    def shrunk(file, size, behind):
        noted.append(("shrink", behind))
        return shrink(file, size, behind)

    def truncated(file, size):
        if file.path.endswith(".log"):
            noted.append(("truncate", 0))
        truncate(file, size)

    monkeypatch.setattr(SimFile, "shrink", shrunk)
    monkeypatch.setattr(SimFile, "truncate", truncated)
    return noted


IDS = [(ledger_id, entry_id) for entry_id in range(6) for ledger_id in (1, 2)]


async def write(machine, bookie, entry_bytes):
    for start in range(0, len(IDS), 3):
        await add(machine, bookie, IDS[start : start + 3], entry_bytes)
        if not await bookie.flush():
            return


async def test_in_steps_as_somebody_waits_for_it_and_at_once_at_a_stop(
    machine, entry_bytes, autojump_clock, cuts
):
    """A clean stop has nobody whose syncs are to be spared."""
    async with machine.running() as bookie:
        await write(machine, bookie, entry_bytes)
        count = bookie._logs.adopted_count
        assert count > 0
        shrinks = [behind for how, behind in cuts if how == "shrink"]
        assert len(shrinks) > count, "more than a step for some"
        assert set(shrinks) == {FREE_AT_ONCE}, "or the checkpoint would wait for long"
        assert bookie._logs.adopted
        cuts.clear()
    assert cuts
    assert {how for how, _ in cuts} == {"truncate"}
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, IDS, entry_bytes)


async def test_a_bookie_ends_if_what_was_cut_cannot_be_synced(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    failed = []
    sync_now = type(machine.disk).sync_now

    def fail_once(disk, path, node):
        if not failed:
            failed.append(path)
            node.failure = OSError(errno.EIO, "no", path)
        sync_now(disk, path, node)

    monkeypatch.setattr(type(machine.disk), "sync_now", fail_once)
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="no"), allow_unwrapped=True):
        async with machine.running() as bookie:
            with trio.move_on_after(60):
                await write(machine, bookie, entry_bytes)
                await trio.sleep_forever()
    assert failed
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, IDS[:3], entry_bytes)

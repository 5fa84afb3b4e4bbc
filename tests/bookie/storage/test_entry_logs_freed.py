"""Space of removed entry logs: who waits for it gets it quickly, else it is freed little by little,
so that the journal's syncs are not held up."""

from itertools import pairwise

import pytest
import trio

from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.entry_logs import EntryLogs
from runtime.disk import FREE_AT_ONCE
from runtime.sim_disk import SimFile


class Freed:
    """Each file is freed in so many pieces; notes which, and what waited behind it. A piece waits
    for a word if `held`."""

    def __init__(self, monkeypatch, pieces=3):
        self.noted: list[tuple[str, int]] = []
        self.files: set[SimFile] = set()
        self._left: dict[str, int] = {}
        self._pieces = pieces
        discard = SimFile.discard

        def in_pieces(file, behind):
            name = file.path.rpartition("/")[2]
            self.noted.append((name, behind))
            self.files.add(file)
            self._left[name] = self._left.get(name, self._pieces) - 1
            return discard(file, behind) if self._left[name] == 0 else False

        monkeypatch.setattr(SimFile, "discard", in_pieces)


def slow(disk, monkeypatch):
    """A quarter of a second for each piece."""
    run = disk.run

    async def slowly(_, *arguments):
        await trio.sleep(0.25)
        return await run(*arguments)

    monkeypatch.setattr(type(disk), "run", slowly)


async def remove_some(logs, disk, config, count):
    writer = EntryLogWriter(config, disk, logs)
    for _ in range(count):
        await writer.start_log()
        writer.current.ledgers[1] = 10  # else it goes when the next one is started
    await writer.complete_current()
    for log in logs.all():
        logs.remove(log)


async def removed(disk, config, count):
    logs = EntryLogs(config, disk, "/d")
    await logs.load(-1)
    await remove_some(logs, disk, config, count)
    return logs


async def test_who_waits_for_space_gets_it_at_once(disk, tiny, monkeypatch):
    freed = Freed(monkeypatch)
    logs = await removed(disk, tiny(), 2)
    await logs.close_removed()
    assert [behind for _, behind in freed.noted] == [FREE_AT_ONCE] * 6
    assert {name for name, _ in freed.noted} == {"0.log", "1.log"}
    await logs.close_removed()
    assert len(freed.noted) == 6


async def test_nothing_of_a_file_goes_before_its_name_is_durably_gone(disk, tiny, monkeypatch):
    """Else a crash might bring back a log without its end. Also of one that somebody read when
    the others' names were made certain."""
    freed = Freed(monkeypatch, pieces=1)
    logs = await removed(disk, tiny(), 2)
    sync = disk.sync_directory

    def noted(_, path):
        freed.noted.append(("sync", 0))
        sync(path)

    monkeypatch.setattr(type(disk), "sync_directory", noted)
    await logs.close_removed()
    names = [name for name, _ in freed.noted]
    assert [*dict.fromkeys(names)] == ["sync", "1.log", "0.log"]
    assert all(before == "sync" for before, name in pairwise(names) if name != "sync")


async def test_the_more_wait_the_quicker_they_are_freed(disk, tiny, monkeypatch, autojump_clock):
    freed = Freed(monkeypatch)
    logs = await removed(disk, tiny(), 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        await logs.close_removed_later()
        assert freed.noted == [], "who asks does not wait"
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert [behind for _, behind in freed.noted] == [2] * 3 + [1] * 3 + [0] * 3


async def test_who_waits_hastens_what_is_being_freed(disk, tiny, monkeypatch, autojump_clock):
    """And waits for it, too: the space of one that is half freed is wanted as much."""
    freed = Freed(monkeypatch, pieces=50)
    logs = await removed(disk, tiny(), 1)
    slow(disk, monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        await logs.close_removed_later()
        await trio.sleep(2)
        before = len(freed.noted)
        assert 0 < before < 20
        await logs.close_removed()
        assert len(freed.noted) == 50
        assert {behind for _, behind in freed.noted[:before]} == {0}
        assert {behind for _, behind in freed.noted[before + 1 :]} == {FREE_AT_ONCE}
        # Nobody waits any more.
        await remove_some(logs, disk, tiny(), 1)
        await logs.close_removed_later()
        await trio.sleep(60)
        assert {behind for _, behind in freed.noted[50:]} == {0}
        nursery.cancel_scope.cancel()


async def test_an_end_does_not_wait_for_what_is_being_freed(
    disk, tiny, monkeypatch, autojump_clock
):
    freed = Freed(monkeypatch, pieces=1000)
    logs = await removed(disk, tiny(), 2)
    slow(disk, monkeypatch)
    with trio.move_on_after(1) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.run)
            await logs.close_removed_later()
    assert scope.cancelled_caught
    assert 0 < len(freed.noted) < 1000
    logs.close()
    assert len(freed.files) == 1
    for file in freed.files:
        with pytest.raises(OSError, match="descriptor"):
            file.size()

"""Space of removed entry logs: who waits for it gets it quickly, else it is freed little by little,
so that the journal's syncs are not held up."""

import pytest
import trio

from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.removed_files import RemovedFiles
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
    assert names == ["sync", "0.log", "1.log"], "one sync for all: a sync for each takes longer"


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


async def test_a_log_that_somebody_reads_is_freed_when_he_is_done(
    disk, tiny, monkeypatch, autojump_clock
):
    freed = Freed(monkeypatch, pieces=1)
    logs = EntryLogs(tiny(), disk, "/d")
    await logs.load(-1)
    writer = EntryLogWriter(tiny(), disk, logs)
    await writer.start_log()
    writer.current.ledgers[1] = 10
    await writer.complete_current()
    (log,) = logs.all()
    file = logs.file(log)
    log.readers += 1
    logs.remove(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        await logs.close_removed()
        assert freed.noted == []
        assert file.pread(4, 0) == b"BKLO"
        logs.release(log)
        await trio.sleep(1)
        assert freed.noted == [("0.log", 0)], "nobody needs to ask for it"
        nursery.cancel_scope.cancel()
    with pytest.raises(OSError, match="descriptor"):
        file.size()


async def deleted_ledger_of(disk, config, count):
    """So many logs have the same ledger alone, which is deleted."""
    logs = EntryLogs(config, disk, "/d")
    await logs.load(-1)
    writer = EntryLogWriter(config, disk, logs)
    for _ in range(count):
        await writer.start_log()
        writer.current.ledgers[1] = 10
    await writer.complete_current()
    await logs.drop_ledgers([1], at_once=True)
    return logs


@pytest.mark.parametrize("waits", [True, False])
async def test_no_more_of_them_are_open_than_a_share_of_the_limit(
    disk, tiny, monkeypatch, autojump_clock, waits
):
    """A topic of thousands of logs is deleted: the rest wait, dead, with their names."""
    freed = Freed(monkeypatch)
    config = tiny(entry_log_open_files_max=60)
    logs = await deleted_ledger_of(disk, config, 100)
    assert logs.removed.count == 15
    assert len(logs.all()) == 85
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        if waits:
            await logs.close_removed()
        else:
            await logs.close_removed_later()
            assert len(logs.all()) == 85
            await trio.sleep(600)
        nursery.cancel_scope.cancel()
    assert logs.all() == []
    assert logs.removed.count == 0
    assert len(freed.noted) == 3 * 100
    if not waits:
        assert max(behind for _, behind in freed.noted) <= 15


async def test_who_waits_does_not_wait_for_what_is_removed_later(disk, monkeypatch, autojump_clock):
    """Else he would wait as long as somebody goes on deleting."""
    freed = Freed(monkeypatch, pieces=1)
    removed = RemovedFiles(disk)
    slow(disk, monkeypatch)
    count = 0

    async def go_on_removing():
        nonlocal count
        while True:
            count += 1
            removed.add(disk.open(f"/d/{count}", create=True))
            await removed.sync_names()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on_removing)
        removed.add(disk.open("/d/0", create=True))
        with trio.fail_after(60):
            await removed.free()
        nursery.cancel_scope.cancel()
    assert ("0", FREE_AT_ONCE) in freed.noted
    assert removed.count > 0


async def test_who_waits_waits_for_the_names_that_another_is_just_syncing(
    disk, monkeypatch, autojump_clock
):
    freed = Freed(monkeypatch, pieces=1)
    removed = RemovedFiles(disk)
    slow(disk, monkeypatch)
    removed.add(disk.open("/d/0", create=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(removed.sync_names)
        await trio.sleep(0.1)
        await removed.free()
        assert freed.noted == [("0", FREE_AT_ONCE)]


async def test_a_full_disk_hastens_all(disk, monkeypatch, autojump_clock):
    freed = Freed(monkeypatch, pieces=1)
    removed = RemovedFiles(disk)
    for is_short in (False, True, False):
        removed.is_short_of_space = is_short
        removed.add(disk.open(f"/d/{len(freed.noted)}", create=True))
        removed.free_later()
        await removed.run_once()
    assert [behind for _, behind in freed.noted] == [0, FREE_AT_ONCE, 0]


@pytest.mark.parametrize("failing", ["sync", "discard"])
async def test_what_failed_is_not_forgotten(disk, monkeypatch, failing):
    removed = RemovedFiles(disk)
    files = [disk.open(f"/d/{each}", create=True) for each in range(3)]
    for file in files:
        removed.add(file)

    def fail(*_):
        raise OSError(5, "no")

    owner, name = (type(disk), "sync_directory") if failing == "sync" else (SimFile, "discard")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(OSError, match="no"):
            await removed.free()
    assert removed.count == 3
    removed.close()
    for file in files:
        with pytest.raises(OSError, match="descriptor"):
            file.size()


async def test_a_word_that_comes_while_files_are_freed_is_not_lost(
    disk, monkeypatch, autojump_clock
):
    freed = Freed(monkeypatch, pieces=1)
    removed = RemovedFiles(disk)
    slow(disk, monkeypatch)
    removed.add(disk.open("/d/0", create=True))
    removed.free_later()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(removed.run_once)
        await trio.sleep(0.4)
        removed.add(disk.open("/d/1", create=True))
        removed.free_later()
    with trio.fail_after(10):
        await removed.run_once()
    assert [name for name, _ in freed.noted] == ["0", "1"]

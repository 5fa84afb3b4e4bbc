"""The index made anew where journals are to be entry logs (bookie/storage/adopted.py)."""

import os
import random
import shutil
from dataclasses import replace

import pytest
import trio

from bookie.bookie import Bookie
from bookie.health.rebuild_index import IndexRebuild
from bookie.storage.checkpoint import END_UNKNOWN, read_checkpoint, write_checkpoint
from runtime.env import real_env
from runtime.real_disk import RealDisk
from wire.bookkeeper.status import Status

COUNT = 3


@pytest.fixture
async def killed(tmp_path, tiny, entry_bytes):
    """The directory as a kill leaves it: three large entries, all of them before the mark."""
    live, path = tmp_path / "live", tmp_path / "node"
    config = tiny(
        journal_directory=f"{live}/journal",
        ledger_directory=f"{live}/ledgers",
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=16 * 1024,
        disk_reserve_size_bytes=0,
    )
    env = real_env()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        nursery.start_soon(env.poller.run)
        bookie = Bookie(config, env)
        async with trio.open_nursery() as inner:
            await inner.start(bookie.run)
            for entry_id in range(COUNT):
                answers = []
                entry = entry_bytes(1, entry_id, random.Random(entry_id).randbytes(1500))
                bookie.add_entry(1, entry_id, b"k" * 20, [entry], 0, answers.append)
                while not answers:
                    await trio.sleep(0.001)
                assert answers == [Status.EOK]
            assert await bookie.flush()
            assert bookie._logs.adopted
            # With its hard links, and nothing of it changes meanwhile.
            assert os.system(f"cp -a {live} {path}") == 0  # noqa: ASYNC221
            inner.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    shutil.rmtree(f"{path}/ledgers/current/locations")
    return path


def rebuild(path):
    return IndexRebuild(RealDisk(), [f"{path}/ledgers"], f"{path}/journal").run()


async def test_what_is_in_a_pending_journal(killed):
    report = rebuild(killed)
    assert (report.records, report.limbo, report.gaps) == (COUNT, [], [])


async def test_what_is_in_a_pending_journal_of_which_nobody_knows_the_end(killed):
    """As the first start without a checkpoint names it, when that is killed right after."""
    disk, directory = RealDisk(), f"{killed}/ledgers/current"
    found = read_checkpoint(disk, directory)
    doubtful = tuple(replace(each, end=END_UNKNOWN, ledgers={}) for each in found.adopted)
    write_checkpoint(disk, directory, replace(found, adopted=doubtful))
    report = rebuild(killed)
    assert report.records == COUNT


async def test_without_a_checkpoint_what_is_in_a_pending_journal_is_not_left_out(killed):
    """`lastMark` counts then: the next start replays nothing of what is before it."""
    os.remove(f"{killed}/ledgers/current/checkpoint")
    report = rebuild(killed)
    assert report.records == COUNT or report.limbo

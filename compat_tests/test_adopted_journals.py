"""Journals of ours that became entry logs, read by Java BookKeeper's own tools.

A bookie of ours writes large entries and stops cleanly; then the shell of Apache BookKeeper reads
its directory: the scan of DefaultEntryLogger finds each entry and nothing else, and the ledgers map
that it reads says the same.
"""

import re
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from harness import tools
from harness.bookkeeper import java

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from runtime.env import real_env
from wire.bookkeeper.status import Status

MIB = 1 << 20
ENTRIES, SIZE = 12, 700_000
SHELL = "org.apache.bookkeeper.bookie.BookieShell"


@asynccontextmanager
async def running(directory):
    env = real_env()
    config = BookieConfig(
        bookie_id="127.0.0.1:3181",
        instance_id="",
        journal_directory=f"{directory}/journal",
        ledger_directory=f"{directory}/ledgers",
        journal_size_bytes=16 * MIB,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        nursery.start_soon(env.poller.run)
        bookie = Bookie(config, env)
        async with trio.open_nursery() as inner:
            await inner.start(bookie.run)
            yield bookie
            inner.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def entry_of(ledger_id, entry_id):
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + bytes(20) + bytes([entry_id]) * SIZE


async def write(directory):
    async with running(directory) as bookie:
        for entry_id in range(ENTRIES):
            for ledger_id in (1, 2):
                answers, done = [], trio.Event()

                def told(status, answers=answers, done=done):
                    answers.append(status)
                    done.set()

                entry = entry_of(ledger_id, entry_id)
                bookie.add_entry(ledger_id, entry_id, b"k" * 20, [entry], 0, told)
                await done.wait()
                assert answers == [Status.EOK]
            await bookie.flush()
        assert bookie.statistics().flushed_bytes == 0
        assert bookie.statistics().adopted_journals > 0


def shell(directory, *arguments):
    config = directory / "bk_server.conf"
    lines = {
        "journalDirectory": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        "metadataServiceUri": "zk+hierarchical://127.0.0.1:1/ledgers",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    jvm = java(directory / "log4j", "INFO", "%msg")
    return tools.run([*jvm, SHELL, "-conf", str(config), *arguments], timeout_s=120, code=0)


def test_java_reads_what_was_a_journal(tmp_path):
    trio.run(write, tmp_path)
    logs = sorted(Path(tmp_path, "ledgers", "current").glob("*.log"))
    assert len(logs) > 1
    found = []
    for log in logs:
        said = shell(tmp_path, "readlog", str(int(log.stem, 16)))
        some = re.findall(r"Lid=(-?\d+), Eid=(-?\d+), .*?EntrySize=(\d+)", said)
        assert some, said
        found += [tuple(map(int, each)) for each in some]
        told = shell(tmp_path, "readlogmetadata", str(int(log.stem, 16)))
        by_ledger = dict(re.findall(r"Lid=(\d+), TotalSizeOfEntriesOfLedger=(\d+)", told))
        expected = {}
        for ledger, _, size in some:
            expected[ledger] = expected.get(ledger, 0) + int(size) + 4
        assert {i: int(size) for i, size in by_ledger.items()} == expected, told
    assert sorted(found) == [
        (ledger_id, entry_id, 36 + SIZE) for ledger_id in (1, 2) for entry_id in range(ENTRIES)
    ]

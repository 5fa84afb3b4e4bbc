"""What deleted ledgers cost the index: a look-up next to them, a round of collection, a start.

    python -m bench.index_bench [--ledgers 100000] [--directory DIR]

A bookie gets that many ledgers of one entry, of which one in fifty thousand stays,
and then they are deleted, as the collector does it. The figures are of `last_entry_id`, which runs
on the loop: for deleted ledgers, each asked for the first time, before and after the index was
opened anew. A look-up that holds the loop holds all clients.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from contextlib import asynccontextmanager

import trio
import trio.lowlevel

from bench.gc_bench import KEY, Known, make_entry
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from runtime.env import real_env
from wire.bookkeeper.status import Status

FIRST_LEDGER = 1_000_000
#: One in so many stays.
KEPT_SHARE = 50_000
LOOK_UPS = 200


@asynccontextmanager
async def serving(config, known):
    """A bookie, and how long it took to start, in seconds."""
    env = real_env()
    bookie = Bookie(config, env, known_ledgers=known)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(lambda task_status: env.poller.run(task_status=task_status))
        start = time.perf_counter()
        await nursery.start(lambda task_status: bookie.run(task_status=task_status))
        yield bookie, time.perf_counter() - start
        nursery.cancel_scope.cancel()


async def fill(bookie, count):
    pending = 0
    event = trio.Event()

    def done(status):
        nonlocal pending
        assert status is Status.EOK, status
        pending -= 1
        if pending == 0:
            event.set()

    for start in range(0, count, 1000):
        event = trio.Event()
        for number in range(start, min(start + 1000, count)):
            ledger_id = FIRST_LEDGER + 3 * number
            pending += 1
            entry = make_entry(ledger_id, 0, b"x" * 100)
            bookie.add_entry(ledger_id, 0, KEY, entry, 0, done)
        await event.wait()
    await bookie.flush()


def look_up(bookie, ledger_ids, name):
    seconds = []
    for ledger_id in ledger_ids:
        start = time.perf_counter()
        assert bookie._index.last_entry_id(ledger_id) == -1
        seconds.append(time.perf_counter() - start)
    print(
        f"last_entry_id, {name:22} {len(seconds)} ledgers: median "
        f"{statistics.median(seconds) * 1000:.3f} ms, max {max(seconds) * 1000:.3f} ms"
    )


class Longest:
    """The longest time between two turns of a task that does nothing, in seconds."""

    def __init__(self):
        self.seconds = 0.0

    async def watch(self):
        while True:
            start = time.perf_counter()
            await trio.lowlevel.checkpoint()
            self.seconds = max(self.seconds, time.perf_counter() - start)


async def main(args):
    directory = tempfile.mkdtemp(prefix="index-bench", dir=args.directory)
    known = Known()
    config = BookieConfig(
        bookie_id="bench",
        instance_id="",
        journal_directory=f"{directory}/journal",
        ledger_directory=f"{directory}/ledgers",
        write_cache_size_bytes=256 << 20,
        entry_log_size_limit_bytes=12 << 20,
        held_adds_max=1_000_000,
        held_adds_size_max_bytes=1 << 30,
    )
    numbers = range(args.ledgers)
    gone = [FIRST_LEDGER + 3 * i for i in numbers if i % KEPT_SHARE]
    try:
        async with serving(config, known) as (bookie, _):
            await fill(bookie, args.ledgers)
            known.gone_ids.update(gone)
            longest = Longest()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(longest.watch)
                start = time.perf_counter()
                report = await bookie.collect_garbage()
                await bookie.flush()
                print(
                    f"deleted {report.deleted_ledgers} ledgers in "
                    f"{time.perf_counter() - start:.2f} s, longest turn "
                    f"{longest.seconds * 1000:.1f} ms"
                )
                nursery.cancel_scope.cancel()
            chosen = random.Random(1).sample(gone, min(LOOK_UPS, len(gone)))
            look_up(bookie, chosen, "just deleted")
        async with serving(config, known) as (bookie, seconds):
            print(f"start {seconds:.2f} s, with {bookie.statistics().entry_logs} entry logs")
            look_up(bookie, chosen, "after a start")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--directory", default=os.environ.get("TMPDIR"))
    trio.run(main, parser.parse_args())

"""What entry logs with many ledgers cost a bookie: memory, and the processor's time of its start
and of its collector's rounds.

    python -m bench.log_maps_bench [--directory DIR] [--logs 200] [--each 10000] [--ledgers 50000]
                                   [--deleted 1000]

Entry logs are made by hand: each has a ledgers map of `--each` ledgers, chosen at random among
`--ledgers` in all, and no records (its file has a hole in their place, which nothing here reads).
A bookie starts on them, and makes rounds of collection: two with nothing to do, one that deletes
`--deleted` ledgers, one that deletes all that are left. Memory is the process's, less what it had
with the same ledgers and no log. CPU seconds are of all threads; the longest turn of the loop is
that thread's CPU time of one step of a task.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import tempfile
import time
from math import inf
from pathlib import Path

import trio

from bench.longest_step import LongestStep
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.ledger_table import LedgerState
from bookie.space.gc_config import GcConfig
from bookie.storage.entry_log_format import HEADER_SIZE, log_name, pack_header, pack_ledgers_map
from bookie.storage.rocks_index import RocksIndex
from runtime.env import real_env

KEY = b"k" * 20
MIB = 1 << 20
RECORDS_SIZE = 4 * MIB
FIRST_LOG_ID = 1000


class Known:
    def __init__(self):
        self.gone_ids = []

    async def gone(self, ledger_ids):
        gone, self.gone_ids = self.gone_ids, []
        return gone

    async def confirmed(self):
        return []

    seconds_to_confirm = inf

    async def digest(self, ledger_id):
        return None


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def config_of(directory):
    return BookieConfig(
        bookie_id="bench",
        instance_id="",
        journal_directory=f"{directory}/journal",
        ledger_directory=f"{directory}/ledgers",
        write_cache_size_bytes=16 * MIB,
        gc=GcConfig(),
    )


async def run(directory, work, known=None):
    """A life of the bookie."""
    env = real_env()
    bookie = Bookie(config_of(directory), env, known_ledgers=known)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(lambda task_status: env.poller.run(task_status=task_status))
        await nursery.start(lambda task_status: bookie.run(task_status=task_status))
        await work(bookie)
        nursery.cancel_scope.cancel()


def make_ledgers(directory, count):
    index = RocksIndex(f"{directory}/ledgers/current", 8 * MIB)
    index.open(must_exist=True)
    for start in range(0, count, 1000):
        states = (LedgerState(i, KEY) for i in range(start, min(start + 1000, count)))
        index.put_ledgers((state.ledger_id, state.encode()) for state in states)
    index.sync()
    index.close()


def make_logs(directory, logs, each, count):
    rng = random.Random(1)
    for number in range(logs):
        ledgers = dict.fromkeys(sorted(rng.sample(range(count), each)), RECORDS_SIZE // each)
        ledgers_map = pack_ledgers_map(ledgers)
        offset = HEADER_SIZE + RECORDS_SIZE
        path = f"{directory}/ledgers/current/{log_name(FIRST_LOG_ID + number)}"
        with Path(path).open("wb") as file:
            file.write(pack_header(offset, each, ledgers_map))
            file.seek(offset)
            file.write(ledgers_map)


async def measured(name, work):
    longest = LongestStep()
    cpu, start = time.process_time(), time.perf_counter()
    trio.lowlevel.add_instrument(longest)
    result = await work()
    trio.lowlevel.remove_instrument(longest)
    print(
        f"{name:34} {time.process_time() - cpu:7.3f} s CPU {time.perf_counter() - start:8.3f} s, "
        f"longest turn {longest.seconds * 1000:.1f} ms"
    )
    return result


async def rounds(bookie, known, args):
    for name in ("first round, nothing to do", "second round, nothing to do"):
        await measured(name, bookie.collect_garbage)
    for name, count in (("deletes", args.deleted), ("deletes all:", args.ledgers)):
        # Those that were deleted before are not the bookie's any more.
        known.gone_ids = list(range(0 if count == args.deleted else args.deleted, count))

        async def work():
            report = await bookie.collect_garbage()
            await bookie._logs.close_removed()  # their space is freed
            return report

        report = await measured(f"round that {name} {count}", work)
        print(f"{'':34} {report.deleted_ledgers} ledgers, {report.removed_logs} logs removed")
        print(f"{'':34} entry logs: {bookie.statistics().entry_log_bytes // MIB} MiB")


async def main(args):
    directory = tempfile.mkdtemp(prefix="maps-bench", dir=args.directory)
    known = Known()
    resident = []

    async def nothing(bookie):
        resident.append(resident_bytes())

    async def work(bookie):
        print(f"{'start':34} {time.process_time() - cpu:7.3f} s CPU")
        more = resident_bytes() - resident[-1]
        print(
            f"{'memory for the logs':34} {more / MIB:7.1f} MiB, {more / pairs:.1f} bytes a ledger"
        )
        await rounds(bookie, known, args)
        more = resident_bytes() - resident[-1]
        print(f"{'memory after the rounds':34} {more / MIB:7.1f} MiB more than without logs")

    try:
        await run(directory, nothing)
        make_ledgers(directory, args.ledgers)
        make_logs(directory, 1, args.each, args.ledgers)  # what the process needs once
        await run(directory, nothing)
        make_logs(directory, args.logs, args.each, args.ledgers)
        pairs = args.logs * args.each
        print(f"{args.logs} logs of {args.each} ledgers each, {args.ledgers} ledgers in all")
        cpu = time.process_time()
        await run(directory, work, known)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--each", type=int, default=10_000, help="ledgers in a log")
    parser.add_argument("--ledgers", type=int, default=50_000, help="ledgers in all")
    parser.add_argument("--deleted", type=int, default=1000)
    trio.run(main, parser.parse_args())

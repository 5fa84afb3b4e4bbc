"""What a bookie costs: adds in bursts, with the real journal, flush and index; reads, warm.

    python bench/bookie_bench.py [--seconds 3] [--directory DIR] [--profile]

CPU is the process's own time (all threads: flush and index included) without the time spent inside
syncs made on the loop's thread; `sync` is what those took.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import shutil
import struct
import tempfile
import time

import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from runtime.env import real_env
from runtime.turn import Turn
from wire.bookkeeper.status import Status

KEY = b"k" * 20
LEDGERS = 8


def make_bursts(payload_size: int, burst: int):
    """Yields lists of (ledger id, entry id, pieces): pieces as the ledger client sends them."""
    payload = os.urandom(payload_size)
    ours = bytes(30)
    next_ids = [0] * LEDGERS
    length = 0
    number = 0
    while True:
        entries = []
        for _ in range(burst):
            ledger_id = number % LEDGERS
            number += 1
            entry_id = next_ids[ledger_id]
            next_ids[ledger_id] += 1
            length += payload_size
            header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, length)
            digest = crc32c(payload, crc32c(ours, crc32c(header)))
            header += digest.to_bytes(4, "big")
            entries.append((ledger_id, entry_id, [header, ours, payload]))
        yield entries


async def run_adds(bookie, turn, disk, bursts, seconds):
    """Returns (adds, wall s, cpu s, add_entry s, inline sync s)."""
    pending = 0
    wake = trio.Event()

    def done(status):
        nonlocal pending
        assert status is Status.EOK, status
        pending -= 1
        if not pending:
            wake.set()

    adds = 0
    cpu_in_add = 0.0
    syncs = disk.statistics().sync_seconds
    cpu = time.process_time()
    start = time.perf_counter()
    preparing = 0.0
    while time.perf_counter() - start < seconds:
        t = time.process_time()
        entries = next(bursts)
        preparing += time.process_time() - t
        pending = len(entries)
        wake = trio.Event()
        t = time.thread_time()
        turn.begin()
        for ledger_id, entry_id, pieces in entries:
            bookie.add_entry(ledger_id, entry_id, KEY, pieces, 0, done)
        cpu_in_add += time.thread_time() - t
        turn.run()
        if pending:
            await wake.wait()
        else:
            await trio.lowlevel.checkpoint()
        adds += len(entries)
    wall = time.perf_counter() - start
    await bookie.flush()
    cpu = time.process_time() - cpu - preparing
    return adds, wall, cpu, cpu_in_add, disk.statistics().sync_seconds - syncs


async def run_reads(bookie, size_max, seconds):
    """Reads ledger 0 from the page cache, over and over: (entries, bytes, cpu s)."""
    entries_count = size = 0
    start = time.perf_counter()
    cpu = time.process_time()
    at = 0
    while time.perf_counter() - start < seconds:
        for _ in range(100):
            answer = bookie.read_entries_nowait(0, at, 0, size_max)
            if answer is None:
                answer = await bookie.read_entries(0, at, 0, size_max)
            status, entries = answer
            if status is not Status.EOK:
                at = 0
                continue
            at += len(entries)
            entries_count += len(entries)
            size += sum(map(len, entries))
    return entries_count, size, time.process_time() - cpu, time.perf_counter() - start


async def bench(name, payload_size, burst, directory, seconds, verify):
    path = tempfile.mkdtemp(dir=directory)
    turn = Turn()
    env = real_env(turn=turn)
    config = BookieConfig(
        bookie_id="bench",
        instance_id="",
        journal_directory=f"{path}/journal",
        ledger_directory=f"{path}/ledgers",
        write_cache_size_bytes=256 << 20,
        verify_digest_on_write=verify,
    )
    bookie = Bookie(config, env)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.serve)
            await nursery.start(lambda task_status: bookie.run(task_status=task_status))
            bursts = make_bursts(payload_size, burst)
            await run_adds(bookie, turn, env.disk, bursts, seconds / 2)
            adds, wall, cpu, in_add, sync = await run_adds(bookie, turn, env.disk, bursts, seconds)
            reads, read_bytes, read_cpu, read_wall = await run_reads(bookie, 1 << 20, seconds / 2)
            statistics = bookie.statistics()
            print(
                f"{name:14s} {adds / wall:9.0f} {adds * payload_size / wall / 1e6:8.0f} "
                f"{cpu / adds * 1e6:8.2f} {in_add / adds * 1e6:8.2f} "
                f"{sync / adds * 1e6:8.2f} | {read_cpu / reads * 1e6:8.2f} "
                f"{read_bytes / read_wall / 1e9:8.1f} | misses={statistics.read_misses} "
                f"syncs={statistics.journal_syncs} flushes={statistics.flushes}"
            )
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(
        f"{'burst':14s} {'adds/s':>9s} {'MB/s':>8s} {'cpu us':>8s} {'add us':>8s} "
        f"{'sync us':>8s} | {'read us':>8s} {'GB/s':>8s}   (us per entry)"
    )
    cases = [("1 kB x50", 1024, 50), ("64 KiB x5", 65536, 5), ("1 MiB x5", 1 << 20, 5)]
    for name, payload_size, burst in cases:
        if arguments.only and not name.startswith(arguments.only):
            continue
        profile = cProfile.Profile() if arguments.profile else None
        if profile is not None:
            profile.enable()
        trio.run(
            bench,
            name,
            payload_size,
            burst,
            arguments.directory,
            arguments.seconds,
            not arguments.no_verify,
        )
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

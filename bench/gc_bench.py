"""What collection of garbage costs: how fast compaction copies, what a round with many ledgers
takes, and what a writer next to them sees.

    python bench/gc_bench.py [--directory DIR] [--megabytes 1024] [--entry 1000] [--ledgers 10000]
                             [--rate BYTES_PER_SECOND] [--writer-rate ADDS_PER_SECOND]

First a bookie is filled with entries of 16 ledgers in small entry logs, and half of the ledgers are
deleted: what is left is about half of every log. Then a writer adds at a steady rate, and the time
from each add to its answer is measured, without compaction and with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from math import inf

import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.space.gc_config import GcConfig
from runtime.env import real_env
from wire.bookkeeper.status import Status

KEY = b"k" * 20
LEDGERS = 16
WRITER_LEDGER = 1000
MIB = 1 << 20


class Known:
    """Knows every ledger but those that are set gone."""

    def __init__(self):
        self.gone_ids = set()

    async def gone(self, ledger_ids):
        return [i for i in ledger_ids if i in self.gone_ids]

    async def confirmed(self):
        return []

    seconds_to_confirm = inf

    async def digest(self, ledger_id):
        return None


def make_entry(ledger_id, entry_id, payload):
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return [header + crc32c(payload, crc32c(header)).to_bytes(4, "big"), payload]


async def fill(bookie, megabytes, entry_size):
    """Adds in bursts, entries of all ledgers in turns."""
    payload = os.urandom(entry_size)
    count = megabytes * MIB // entry_size // LEDGERS
    for start in range(0, count, 50):
        pending = 0
        done_event = trio.Event()

        def done(status, done_event=done_event):
            nonlocal pending
            assert status is Status.EOK, status
            pending -= 1
            if pending == 0:
                done_event.set()

        for entry_id in range(start, min(start + 50, count)):
            for ledger_id in range(LEDGERS):
                pending += 1
                entry = make_entry(ledger_id, entry_id, payload)
                bookie.add_entry(ledger_id, entry_id, KEY, entry, 0, done)
        await done_event.wait()
    await bookie.flush()
    return count


class Writer:
    """Adds at a steady rate; the latencies in seconds, from when the add was due."""

    def __init__(self, bookie, per_second, size):
        self.bookie = bookie
        self.per_second = per_second
        self.payload = os.urandom(size)
        self.entry_id = 0
        self.latencies = []

    async def run(self, until):
        self.latencies = []
        start = time.perf_counter()
        number = 0
        while not until():
            due = start + number / self.per_second
            now = time.perf_counter()
            if due > now:
                await trio.sleep(due - now)
            number += 1

            def done(status, due=due):
                assert status is Status.EOK, status
                self.latencies.append(time.perf_counter() - due)

            entry = make_entry(WRITER_LEDGER, self.entry_id, self.payload)
            self.bookie.add_entry(WRITER_LEDGER, self.entry_id, KEY, entry, 0, done)
            self.entry_id += 1
        await trio.sleep(0.2)

    def show(self, name):
        values = sorted(self.latencies)
        shares = ", ".join(
            f"p{share * 100:g} {values[min(int(len(values) * share), len(values) - 1)] * 1000:.2f}"
            for share in (0.5, 0.99, 0.999)
        )
        print(f"{name:28} {len(values):7} adds  {shares}, max {values[-1] * 1000:.1f} ms")


async def compaction(bookie, args):
    start = time.perf_counter()
    count = await fill(bookie, args.megabytes, args.entry)
    seconds = time.perf_counter() - start
    print(f"filled {args.megabytes} MiB, {count * LEDGERS} entries in {seconds:.1f} s")
    writer = Writer(bookie, args.writer_rate, args.writer_entry)
    end = time.perf_counter() + args.seconds
    await writer.run(lambda: time.perf_counter() > end)
    writer.show("writer alone")
    for ledger_id in range(0, LEDGERS, 2):
        await bookie.delete_ledger(ledger_id)
    await bookie.flush()
    before = bookie.statistics().entry_log_bytes
    cpu, start = time.process_time(), time.perf_counter()
    reports = []

    async def collect():
        reports.append(await bookie.collect_garbage(force_major=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        if args.writer_rate:
            await writer.run(lambda: bool(reports))
    report = reports[0]
    seconds = report.seconds
    writer.show("writer during compaction")
    print(
        f"compacted {report.compacted_logs} logs, {before / MIB:.0f} -> "
        f"{bookie.statistics().entry_log_bytes / MIB:.0f} MiB: copied {report.copied_entries} "
        f"entries, {report.copied_bytes / MIB:.0f} MiB in {seconds:.2f} s = "
        f"{report.copied_bytes / MIB / seconds:.0f} MiB/s copied, "
        f"{(report.copied_bytes + report.reclaimed_bytes) / MIB / seconds:.0f} MiB/s read; "
        f"CPU {time.process_time() - cpu:.2f} s of {time.perf_counter() - start:.2f}"
    )


async def many_ledgers(bookie, known, args):
    ids = range(10_000, 10_000 + args.ledgers)
    pending = len(ids)
    event = trio.Event()

    def done(status):
        nonlocal pending
        pending -= 1
        if pending == 0:
            event.set()

    for number, ledger_id in enumerate(ids):
        bookie.add_entry(ledger_id, 0, KEY, make_entry(ledger_id, 0, b"x" * 100), 0, done)
        if number % 500 == 499:
            await trio.sleep(0.005)
    await event.wait()
    await bookie.flush()
    report = await bookie.collect_garbage()
    print(f"round with {args.ledgers} ledgers, nothing to do: {report.seconds * 1000:.1f} ms")
    known.gone_ids.update(ids)
    writer = Writer(bookie, args.writer_rate, args.writer_entry)
    writer.entry_id = 10_000_000
    reports = []

    async def collect():
        reports.append(await bookie.collect_garbage())
        await trio.sleep(1)
        reports.append(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        await writer.run(lambda: len(reports) == 2)
    print(f"round that deletes {reports[0].deleted_ledgers}: {reports[0].seconds * 1000:.1f} ms")
    writer.show("writer during deletion")


async def main(args):
    directory = tempfile.mkdtemp(prefix="gc-bench", dir=args.directory)
    try:
        env = real_env()
        known = Known()
        config = BookieConfig(
            bookie_id="bench",
            instance_id="",
            journal_directory=f"{directory}/journal",
            ledger_directory=f"{directory}/ledgers",
            write_cache_size_bytes=256 << 20,
            entry_log_size_limit_bytes=args.log_size << 20,
            verify_digest_on_write=True,
            held_adds_max=1_000_000,
            held_adds_size_max_bytes=1 << 30,
            gc=GcConfig(rate_bytes=args.rate, throttle_by_bytes=True),
        )
        bookie = Bookie(config, env, known_ledgers=known)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(env.turn.serve)
            await nursery.start(lambda task_status: env.poller.run(task_status=task_status))
            await nursery.start(lambda task_status: bookie.run(task_status=task_status))
            await compaction(bookie, args)
            await many_ledgers(bookie, known, args)
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--entry", type=int, default=1000, help="bytes of an entry")
    parser.add_argument("--log-size", type=int, default=128, help="MiB of an entry log")
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=0, help="bytes per second, 0: no limit")
    parser.add_argument("--writer-rate", type=int, default=1000)
    parser.add_argument("--writer-entry", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    trio.run(main, parser.parse_args())

"""A real process on a real disk, killed while it writes: what it said was stored is there."""

import os
import random
import select
import signal
import struct
import subprocess
import sys
import textwrap
import time

import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from runtime.env import real_env
from runtime.turn import Turn
from wire.bookkeeper.status import Status

KEY = b"k" * 20
LEDGERS = 3

WRITER = textwrap.dedent(
    """
    import os, struct, sys
    import trio
    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from runtime.env import real_env
    from runtime.turn import Turn

    config = BookieConfig(**eval(sys.argv[1]))
    first = int(sys.argv[2])

    def payload(ledger_id, entry_id):
        return struct.pack(">qq", ledger_id, entry_id) * (1 + entry_id * 7 % 200)

    async def main():
        turn = Turn()
        bookie = Bookie(config, real_env(turn=turn))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.serve)
            await nursery.start(lambda task_status: bookie.run(task_status=task_status))
            entry_id = first
            while True:
                pending = []
                event = trio.Event()
                for _ in range(20):
                    for ledger_id in range(3):
                        key = (ledger_id, entry_id)
                        pending.append(key)
                        entry = struct.pack(">qqqq", *key, -1, 0) + payload(*key)

                        def done(status, key=key):
                            assert status == 0, status
                            os.write(1, struct.pack(">qq", *key))
                            pending.remove(key)
                            if not pending:
                                event.set()

                        bookie.add_entry(*key, b"k" * 20, [entry], 0, done)
                    entry_id += 1
                await event.wait()

    trio.run(main)
    """
)


def payload(ledger_id, entry_id):
    return struct.pack(">qq", ledger_id, entry_id) * (1 + entry_id * 7 % 200)


def write_until_killed(values, first, seconds):
    """The (ledger id, entry id) pairs that the process acknowledged before it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, repr(values), str(first)], stdout=subprocess.PIPE
    )
    data = b""
    deadline = None
    try:
        while deadline is None or time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.01)[0]:
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                assert chunk, "the writer ended by itself"
                data += chunk
                deadline = deadline or time.monotonic() + seconds
        process.send_signal(signal.SIGKILL)
        data += process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return list(struct.iter_unpack(">qq", data[: len(data) // 16 * 16]))


async def check(values, acknowledged):
    """Every acknowledged entry is there; returns the highest id that is stored."""
    turn = Turn()
    bookie = Bookie(BookieConfig(**values), real_env(turn=turn))
    last = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await nursery.start(lambda task_status: bookie.run(task_status=task_status))
        for ledger_id, entry_id in acknowledged:
            status, entry = await bookie.read_entry(ledger_id, entry_id)
            assert status is Status.EOK, (ledger_id, entry_id, status)
            assert entry[32:] == payload(ledger_id, entry_id)
        for ledger_id in range(LEDGERS):
            status, entry = await bookie.read_entry(ledger_id, -1)
            if status is Status.EOK:
                last = max(last, struct.unpack_from(">q", entry, 8)[0])
        nursery.cancel_scope.cancel()
    return last


async def test_killed_ten_times(tmp_path):
    values = {
        "bookie_id": "b",
        "instance_id": "i",
        "journal_directory": str(tmp_path / "journal"),
        "ledger_directory": str(tmp_path / "ledgers"),
        "journal_size_bytes": 1 << 20,
        "journal_group_size_max_bytes": 1 << 18,
        "entry_size_max_bytes": 1 << 16,
        "write_cache_size_bytes": 1 << 20,
        "write_cache_segment_size_bytes": 1 << 17,
        "entry_log_size_limit_bytes": 1 << 21,
        "flush_interval_ms": 20,
    }
    rng = random.Random(1)
    acknowledged = []
    first = 0
    for number in range(10):
        found = await trio.to_thread.run_sync(write_until_killed, values, first, rng.random() * 0.3)
        assert found, "nothing was acknowledged"
        acknowledged += found
        first = max(entry_id for _, entry_id in acknowledged) + 100
        if number % 3 == 2:  # else the next life starts on the remains of two
            first = max(first, await check(values, acknowledged) + 1)
    await check(values, acknowledged)
    assert len(acknowledged) > 1000

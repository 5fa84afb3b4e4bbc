"""What an entry costs between a partition's queue and the ack of the bookie in the same process.

    python -m bench.entries [--partitions 16] [--rounds 26] [--directory /dev/shm]

Each partition queues one batch of 1 kB in a burst, and all are acknowledged before the next burst.
Microseconds of the loop's own time for an entry, from the end of the burst on; the least and the
median of the rounds. In a directory in memory a sync is made at once, so the ack is in it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from broker.log.append.queue import Append, AppendQueue
from broker.log.life.ledger_info import LedgerInfo
from broker.log.read.offset_index import OffsetIndex
from broker.log.read.segment import Segment
from broker.log.settings import LogSettings
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore, MemoryTree
from runtime.env import Env, real_env
from runtime.turn import Gathered

BURSTS = 25
BATCH = memoryview(bytearray(1024))


class Counted(Append):
    """Of how many nobody has heard yet."""

    __slots__ = ()
    outstanding = 0
    none_left = trio.Event()

    def finished(self) -> None:
        Counted.outstanding -= 1
        if not Counted.outstanding:
            Counted.none_left.set()


async def queues_of(client: LedgerClient, env: Env, count: int) -> list[AppendQueue]:
    flushes, queues = Gathered(env.turn), []
    for _ in range(count):
        writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        queue = AppendQueue(
            LogSettings(), env.turn, flushes, on_progress=lambda: None, on_lost=print,
            on_attention=lambda: None, take_snapshot=list,
        )  # fmt: skip
        info = LedgerInfo(writer.ledger_id, base_offset=0, leader_epoch=0, created_ms=0)
        queue.attach(
            writer,
            Segment(info, client, LogSettings(), reader=writer.reader, index=OffsetIndex()),
        )
        queues.append(queue)
    return queues


async def burst(env: Env, queues: Sequence[AppendQueue]) -> float:
    """Seconds from its end on."""
    Counted.none_left = trio.Event()
    env.turn.begin()
    for queue in queues:
        append = Counted(BATCH)
        append.base_offset = append.last_offset = queue.pushed_offset
        Counted.outstanding += 1
        queue.put(append)
    start = time.thread_time()
    env.turn.run()
    took = time.thread_time() - start
    await Counted.none_left.wait()
    return took


async def measure(options: argparse.Namespace, directory: Path) -> None:
    env = real_env()
    config = BookieConfig(
        bookie_id="bench",
        instance_id="",
        journal_directory=str(directory / "journal"),
        ledger_directory=str(directory / "ledgers"),
        journal_size_bytes=64 << 20,
        write_cache_size_bytes=64 << 20,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        bookie = Bookie(config, env)
        await nursery.start(bookie.run)
        placement = RandomPlacement(lambda: ["bench"], env.rng)
        bookies = LocalBookieClient({"bench": bookie})
        client = LedgerClient(MemoryStore(MemoryTree()), bookies, env, placement=placement)
        await nursery.start(client.run)
        queues = await queues_of(client, env, options.partitions)
        found = []
        for _ in range(options.rounds):
            took = 0.0
            for _ in range(BURSTS):
                took += await burst(env, queues)
            found.append(took / BURSTS / len(queues) * 1e6)
        median = statistics.median(found)
        print(f"{options.partitions} partitions: {min(found):.2f} us an entry, median {median:.2f}")
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=26)
    parser.add_argument("--directory", default="/dev/shm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        trio.run(measure, options, Path(directory))


if __name__ == "__main__":
    main()

"""What a fetch of old records costs a server's processor: one connection reads a topic again and
again.

    python -m bench.fetches [--kb 64] [--batches 4000] [--partitions 1] [--rounds 8]
                            [--directory DIR]

`quire standalone` of this tree, from which the tree's own loader reads everything, one request of
1 MiB a partition under way; batches of `--kb` times 1,024 bytes (1: of one record of 1 kB), twenty
in flight when they are written. Between the third and the fourth round what was written is flushed
(12 s), so that the later ones read entry logs in the page cache; the means are of the last four.
CPU is the server's. To compare trees, run it in each, in turn.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from bench import clients, frames, load
from bench.servers import Quire

#: A bookie's flushInterval, and some.
FLUSH_SECONDS = 12.0
FLUSHED_BEFORE = 3
MEANS_OF = 4
IN_FLIGHT = 20
TOPIC = "fetches"


def measure(server: Quire, options: argparse.Namespace) -> None:
    partitions = range(options.partitions)
    batch = load.KILOBYTE if options.kb == 1 else frames.batch_of(options.kb << 10)
    clients.create_topic(server, TOPIC, options.partitions)
    load.produce_count(server.address, TOPIC, partitions, batch, options.batches, IN_FLIGHT)
    rates, costs = [], []
    for number in range(options.rounds):
        if number == FLUSHED_BEFORE:
            time.sleep(FLUSH_SECONDS)
        before = server.cpu_seconds()
        result = load.fetch_all(server.address, TOPIC, partitions)
        costs.append((server.cpu_seconds() - before) / (result.bytes / 1e9))
        rates.append(result.megabytes_per_second)
        print(f"{result.bytes / 1e6:6,.0f} MB {rates[-1]:6,.0f} MB/s {costs[-1]:.2f} s/GB")
    rate, cost = (statistics.mean(each[-MEANS_OF:]) for each in (rates, costs))
    print(f"the last {MEANS_OF}: {rate:,.0f} MB/s, {cost:.2f} s/GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kb", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        server = Quire(Path(directory) / "server")
        server.start()
        try:
            measure(server, options)
        finally:
            server.discard()


if __name__ == "__main__":
    main()

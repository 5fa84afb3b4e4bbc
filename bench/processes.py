"""One broker or several in `quire standalone`: what the split costs, and what it gives.

    python -m bench.processes [--counts 1,2] [--cores 0-1] [--rounds 5] [--seconds 3] [--only TEXT]
        [--set KEY=VALUE] [--directory DIRECTORY]

Each partition's requests go to its leader; the requests under way are as many for one broker as for
several. CPU is that of all the server's processes. What the first one, with the bookie, takes of it
is the limit of any number of processes and cores. `--cores` pins the server, all of it to the same
ones, as `taskset -c` has them; the load runs where it likes, so on a machine of few cores it takes
from what the brokers could use.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, frames, load, machine, rounds, spread
from bench.peers import free_port
from bench.rounds import Figure, Measure
from bench.servers import Quire, cpu_seconds_of

PARTITIONS = 16
#: Name -> (batch, connections in all, requests under way on each).
CASES = {
    "produce 1 kB, 32 connections": (load.KILOBYTE, 32, 1),
    "produce 1 kB, 4 connections, 50 in flight": (load.KILOBYTE, 4, 50),
    "produce 64 kB, 4 connections, 5 in flight": (frames.batch_of(65_536), 4, 5),
}
CONSUMERS = 4
CONSUME = f"{CONSUMERS} consumers, 64 kB batches"


def named(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


class QuireProcesses(Quire):
    """With `count` brokers, each a process, on `cores`."""

    def __init__(
        self, directory: Path, count: int, cores: str | None = None, settings: Sequence[str] = ()
    ) -> None:
        super().__init__(directory)
        self.name = named(count)
        self.count, self.cores = count, cores
        self.options = tuple(word for one in settings for word in ("--set", one))
        self.port = free_port(count)

    def command(self) -> list[str]:
        pinned = ["taskset", "-c", self.cores] if self.cores else []
        return [*pinned, *super().command(), "--processes", str(self.count)]

    def create(self, topic: str) -> dict[tuple[str, int], list[int]]:
        """Partitions by their leader's address, once all are there."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **clients.QUIET})
        new = NewTopic(topic, PARTITIONS, config=clients.KEPT)
        admin.create_topics([new])[topic].result(clients.TIMEOUT_SECONDS)
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(
            clients.TIMEOUT_SECONDS
        )
        found: dict[tuple[str, int], list[int]] = {}
        for one in described.partitions:
            found.setdefault((one.leader.host, one.leader.port), []).append(one.id)
        assert len(found) == self.count, found
        return found


def measure_case(name: str, seconds: float) -> Measure:
    batch, connections, in_flight = CASES[name]

    def measure(server: QuireProcesses, number: int) -> Iterator[Figure]:
        topic = f"produce-{number}-{time.monotonic_ns()}"
        led = server.create(topic)
        before, first = server.cpu_seconds(), cpu_seconds_of(server.pid)
        made = spread.produce(led, topic, batch, connections // len(led), in_flight, seconds)
        cpu, first = server.cpu_seconds() - before, cpu_seconds_of(server.pid) - first
        # The load's warm-up is in the CPU time too, at the same rate.
        share = seconds / (seconds + load.WARM_UP_SECONDS)
        cpu, first = cpu * share, first * share
        yield name, "requests/s", made.requests_per_second
        yield f"{name}: CPU", "us/request", cpu / made.requests * 1e6
        yield f"{name}: CPU of the first process", "us/request", first / made.requests * 1e6
        yield f"{name}: cores in use", "", cpu / seconds
        clients.delete_topic(server, topic)

    return measure


def measure_consume(name: str, seconds: float) -> Measure:
    """100 MB, again and again: the partitions' ends, which are in memory."""

    def measure(server: QuireProcesses, number: int) -> Iterator[Figure]:
        topic = f"consume-{number}-{time.monotonic_ns()}"
        led = server.create(topic)
        for address, partitions in led.items():
            count = 100 * len(partitions)
            load.produce_count(address, topic, partitions, frames.batch_of(65_536), count, 20)
        consumers = CONSUMERS // len(led)
        parts = [
            (address, partitions[first::consumers])
            for address, partitions in led.items()
            for first in range(consumers)
        ]
        before = server.cpu_seconds()
        read = spread.consume(parts, topic, seconds)
        cpu = server.cpu_seconds() - before
        yield name, "MB/s", read.megabytes_per_second
        yield f"{name}: CPU", "s/GB", cpu / (read.bytes / 1e9)
        clients.delete_topic(server, topic)

    return measure


def measure_rest(server: QuireProcesses, number: int) -> Iterator[Figure]:
    yield "memory after the load", "MB", server.memory_mb()


def start(server: QuireProcesses) -> None:
    server.start()
    clients.wait_for_brokers(server, server.count)


def main() -> None:
    parser = rounds.options_of(__doc__, [], 5)
    parser.add_argument("--counts", default="1,2", help="numbers of processes")
    parser.add_argument("--cores", help="to which all of them are pinned")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the server's")
    parser.add_argument("--directory", type=Path, default=rounds.BUILD, help="/dev/shm: no disk")
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args()
    print("\n".join(f"- {line}" for line in machine.measure().lines()), flush=True)
    chosen = [
        partial(QuireProcesses, count=int(count), cores=options.cores, settings=options.set)
        for count in options.counts.split(",")
    ]
    cases = {name: measure_case(name, options.seconds) for name in CASES}
    cases[CONSUME] = measure_consume(CONSUME, options.seconds)
    cases = {name: measure for name, measure in cases.items() if options.only in name}
    rounds.side_by_side(
        "processes",
        chosen,
        start,
        (cases, options.rounds),
        ({"rest": measure_rest}, 1),
        mine=named(int(options.counts.rpartition(",")[2])),
        base=options.directory,
    )


if __name__ == "__main__":
    main()
